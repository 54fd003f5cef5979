"""The verbs that take a policy from its weights file: `apex-acer evaluate`, `play` and `export`; `serve` is beside it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from apex_acer.cli.flags import place
from apex_acer.cli.notice import EXIT_FAILED, PROGRAM, Notice
from apex_acer.cli.parsing import parse
from apex_acer.config import ConfigError, EvaluationConfig, RunConfig, reading, require, writing
from apex_acer.environments import late
from apex_acer.system.imports import needs
from apex_acer.system.output import printable, printable_lines, say

SCORES = {"mean": "", "std": "_std", "min": "_min", "max": "_max"}
SHARES = "win_share", "draw_share", "loss_share"  # of a game of two players


@dataclass(frozen=True)
class WeightsFlags:
    """The weights file whose policy a verb uses."""

    weights: str = place("WEIGHTS")
    """The .safetensors file of a run."""
    import_modules: bool = False
    """Import the modules that the file names; this runs code from outside this program and gymnasium."""


@dataclass(frozen=True)
class Evaluate(WeightsFlags):
    """Plays whole games with a weights file and prints the returns, which are not clipped."""

    episodes: int | None = None
    """Episodes to play; by default as many as the run's evaluations."""
    seed: int | None = None
    """Seed of the environments and of sampling; by default the run's, with which the run's evaluator played."""
    policy: Literal["greedy", "sampled"] | None = None
    """Greedy or sampled actions; by default as in the run's evaluations."""
    opponent: str | None = None
    """Opponent in a game of two players, as `evaluation.opponent`; by default that of the run's evaluations."""
    card: bool = False
    """Print the file's metadata, which has its configuration and its score, and play nothing."""
    json: bool = False
    """Print one JSON object as the last line of standard output."""


def evaluate(arguments: list[str]) -> int:
    """Plays and prints the returns, or prints the metadata of the file."""
    options = parse(Evaluate, arguments)
    from apex_acer.actor.policy import load_metadata, load_policy
    from apex_acer.networks.metadata import metadata_text, score_text

    if options.card:
        metadata = load_metadata(options.weights)
        with reading(options.weights):
            text = metadata_text(metadata)
        print(json.dumps(metadata) if options.json else printable_lines(text))
        return 0
    policy = load_policy(options.weights, options.import_modules)
    settings = evaluation_settings(policy.config, options.episodes, options.policy, options.opponent)
    import torch

    from apex_acer.actor.evaluator import evaluate_policy

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the batches are small; the emulators gain more from the cores
    seed = _playing_seed(policy.config, options.seed)
    with Notice(quiet=options.json) as notice, _must_answer(policy.config, notice) as heartbeat:
        notice.say(f"playing {settings.episodes} episodes")
        row = evaluate_policy(policy, settings, seed, threads, heartbeat)
    scores = {name: row[f"eval_return{suffix}"] for name, suffix in SCORES.items()}
    environment, how = policy.config.environment.id, "greedy" if settings.greedy else "sampled"
    shares = {name: row[name] for name in SHARES if name in row}
    if options.json:
        played = {"episodes": settings.episodes, "seed": seed, **scores, "length": row["eval_length"]}
        against = {"opponent": settings.opponent, **shares} if shares else {}
        weights = {"env_steps": policy.metadata["env_steps"], "stored": policy.metadata["score"]}
        print(json.dumps({**played, **against, "environment": environment, "policy": how, **weights}))
    else:
        figures = ", ".join(f"{name} {score:.2f}" for name, score in scores.items())
        print(f"{printable(environment)}: {settings.episodes} {how} episodes: {figures}")
        if shares:
            won, drew, lost = shares.values()
            print(f"against {printable(settings.opponent)}: won {won:.1%}, drew {drew:.1%}, lost {lost:.1%}")
        with reading(options.weights):
            stored = score_text(policy.metadata["score"])
        print(f"its run's evaluation: {printable(stored)}")
    return 0


@contextlib.contextmanager
def _must_answer(config: RunConfig, notice: Notice) -> Iterator[Callable[[], None]]:
    """Gives a function to call after each environment step; without steps this process ends, as a run's evaluator does.

    A thread ends it, because an environment may be deaf to signals, once it has waited a whole time without a step: so
    Ctrl-Z, during which the clock goes on, is no hang.
    """
    limit_s, num_steps, over = 60 * config.supervision.evaluation_minutes, 0, threading.Event()

    def count() -> None:
        nonlocal num_steps
        num_steps += 1

    def watch() -> None:
        before = -1
        while num_steps > before:
            before = num_steps
            if over.wait(limit_s):
                return
        notice.clear()
        say(f"{PROGRAM}: {late(config.environment.id, limit_s)} (supervision.evaluation_minutes)", sys.stderr)
        os._exit(EXIT_FAILED)

    threading.Thread(target=watch, name="deadline", daemon=True).start()
    try:
        yield count
    finally:
        over.set()


@dataclass(frozen=True)
class Play(WeightsFlags):
    """Plays whole games with a weights file and shows them, in a window or as a video."""

    video: str | None = None
    """Write an .mp4 or a .gif instead of opening a window."""
    episodes: int = 1
    """Whole games to play."""
    policy: Literal["greedy", "sampled"] | None = None
    """Greedy or sampled actions; by default as in the run's evaluations."""
    opponent: str | None = None
    """Opponent in a game of two players, as `evaluation.opponent`; by default that of the run's evaluations."""
    seed: int | None = None
    """Seed of the environment and of sampling; by default the run's."""
    fps: int | None = None
    """Frames per second; by default the environment's, 60 for Atari; a .gif has at most 50."""


def play(arguments: list[str]) -> int:
    """Plays, and prints each return and the path of the video."""
    options = parse(Play, arguments)
    with needs("play", "video"):
        from apex_acer.environments import display
    import torch

    from apex_acer.actor.opponents import face
    from apex_acer.actor.play import play as episodes_of
    from apex_acer.actor.policy import load_policy
    from apex_acer.environments.rendering import make_pictured

    path = None if options.video is None else Path(options.video)
    require(options.fps is None or options.fps >= 1, "fps", options.fps, "give 1 or more")
    if path:
        display.check_video(path)
    torch.set_num_threads(1)  # a single observation is too little work for several
    policy = load_policy(options.weights, options.import_modules)
    config = policy.config
    settings = evaluation_settings(config, options.episodes, options.policy, options.opponent)
    seed = _playing_seed(config, options.seed)
    policy.require_known_environment()
    environment = make_pictured(config.environment, policy.spec)
    face(environment, settings, import_modules=options.import_modules)
    fps = options.fps or environment.fps
    shown = display.video(path, fps) if path else display.window(printable(config.environment.id), fps)
    limited, closed = _must_answer(config, Notice(quiet=True)), contextlib.suppress(display.Closed)
    with contextlib.closing(environment), limited as heartbeat, closed, shown as show:
        episodes = episodes_of(environment, policy, settings, seed, show, heartbeat)
        for number, episode in enumerate(episodes, start=1):
            say(f"episode {number}: return {episode.episode_return:.2f}, {episode.length:,} steps")
    if path:
        say(f"video: {path}")
    return 0


@dataclass(frozen=True)
class Export(WeightsFlags):
    """Writes the policy of a weights file, including its preprocessing, in a format for other programs."""

    onnx: bool = False
    """Write ONNX, the only format."""
    out: str | None = None
    """The file to write; by default WEIGHTS with the suffix .onnx."""


def export(arguments: list[str]) -> int:
    """Writes the file and prints the shapes of its inputs and outputs."""
    options = parse(Export, arguments)
    if not options.onnx:
        raise ConfigError("export: no format is given; give --onnx")
    weights = Path(options.weights)
    require(bool(weights.name), "weights", options.weights, "give a weights file")
    path = Path(options.out) if options.out else weights.with_suffix(".onnx")
    with writing("out", path):
        require(path.parent.is_dir() and not path.is_dir(), "out", str(path), "give a file in a folder that exists")
        is_own = path.exists() and weights.exists() and path.samefile(weights)
        require(not is_own, "out", str(path), "it is the weights file; give another")
    with needs("export", "onnx"):
        from apex_acer.tools.export import BATCHES, export_onnx
    from apex_acer.actor.policy import load_policy

    policy = load_policy(options.weights, options.import_modules)
    with writing("out", path), Notice() as notice:
        notice.say("writing and checking the file")
        written = export_onnx(policy, path)
    for kind, values in (("in", written.inputs), ("out", written.outputs)):
        for name, shape in values.items():
            print(f"{kind:<4} {name:<14} {shape}")
    batches = " and ".join(map(str, BATCHES))
    print(f"checked on batches of {batches}: the outputs differ from torch's by at most {written.difference:.1g}")
    print(f"policy: {path}")
    return 0


def evaluation_settings(
    config: RunConfig, episodes: int | None, policy: str | None, opponent: str | None = None
) -> EvaluationConfig:
    """The evaluation settings of a run; `episodes`, `policy` (greedy or sampled) and `opponent` replace them unless None."""
    require(episodes is None or episodes >= 1, "episodes", episodes, "give 1 or more")
    settings = config.evaluation
    greedy = settings.greedy if policy is None else policy == "greedy"
    opponent = settings.opponent if opponent is None else opponent
    return dataclasses.replace(settings, episodes=episodes or settings.episodes, greedy=greedy, opponent=opponent)


def _playing_seed(config: RunConfig, seed: int | None) -> int:
    """The checked `seed` or, if it is None, the run's."""
    return config.seed if seed is None else dataclasses.replace(config, seed=seed).seed
