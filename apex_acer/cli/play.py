"""`apex-acer play WEIGHTS [flags]`."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from apex_acer.cli.parsing import Acting, ImportModules, Weights, evaluation_settings, parse, playing_seed
from apex_acer.config import require
from apex_acer.config.imports import needs
from apex_acer.system.output import printable, say


@dataclass(frozen=True)
class Play:
    """Plays whole games with a weights file and shows them, in a window or as a video."""

    weights: Weights
    video: Annotated[str | None, tyro.conf.arg(metavar="FILE")] = None
    """Write an .mp4 or a .gif instead of opening a window."""
    episodes: int = 1
    """Whole games to play."""
    policy: Acting = None
    seed: int | None = None
    """Seed of the environment and of sampling; by default the run's."""
    fps: int | None = None
    """Frames per second; by default the environment's, 60 for Atari; a .gif has at most 50."""
    import_modules: ImportModules = False


def run(arguments: list[str]) -> int:
    """Plays, and prints each return and the path of the video."""
    given = parse(Play, arguments, "play")
    with needs("play", "video"):
        from apex_acer.environments import display
    import torch

    from apex_acer.actor.play import play
    from apex_acer.actor.policy import load_policy
    from apex_acer.environments.rendering import make_pictured

    path = None if given.video is None else Path(given.video)
    require(given.fps is None or given.fps >= 1, "fps", given.fps, "give 1 or more")
    if path:
        display.check_video(path)
    torch.set_num_threads(1)  # a single observation is too little work for several
    policy = load_policy(given.weights, given.import_modules)
    settings = evaluation_settings(policy.config, given.episodes, given.policy)
    seed = playing_seed(policy.config, given.seed)
    policy.require_known_environment()
    environment = make_pictured(policy.config.environment)
    fps = given.fps or environment.fps
    shown = display.video(path, fps) if path else display.window(printable(policy.config.environment.id), fps)
    with contextlib.closing(environment), contextlib.suppress(display.Closed), shown as show:
        for number, episode in enumerate(play(environment, policy, settings, seed, show), start=1):
            say(f"episode {number}: return {episode.episode_return:.2f}, {episode.length:,} steps")
    if path:
        say(f"video: {path}")
    return 0
