"""Plays whole games to watch, in a window or as a video."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

from apex_acer.actor.opponents import face
from apex_acer.actor.policy import Policy
from apex_acer.actor.rollout import Episode, Rollout
from apex_acer.config import EvaluationConfig
from apex_acer.environments.display import Show, video
from apex_acer.environments.rendering import Pictured, PicturedAtari, make_pictured
from apex_acer.system.seeds import derive_seed


def play(
    environment: Pictured | PicturedAtari,
    policy: Policy,
    settings: EvaluationConfig,
    seed: int,
    show: Show,
    heartbeat: Callable[[], None] = lambda: None,
) -> Iterator[Episode]:
    """Plays `settings.episodes` games and shows every frame of them; yields each game when it has ended.

    With the run's seed and settings they are the games of its evaluator's first environment. `heartbeat` is called after
    each step.
    """
    seed = derive_seed(seed, "evaluator")
    rollout = Rollout(environment, policy, seed=seed, greedy=settings.greedy, heartbeat=heartbeat)
    num, steps = 0, rollout.play(1)
    while num < settings.episodes * environment.num:  # an end is known at the next reset, whose frame is not shown
        for frame in environment.frames:
            show(frame)
        for episode in next(steps):
            num += 1
            yield episode


def record(
    path: Path, policy: Policy, settings: EvaluationConfig, seed: int, heartbeat: Callable[[], None] = lambda: None
) -> None:
    """Writes a video of an evaluation's first game to `path`; `heartbeat` is called after each step."""
    environment = make_pictured(policy.config.environment, policy.spec)
    face(environment, settings)
    with contextlib.closing(environment), video(path, environment.fps) as show:
        for _ in play(environment, policy, dataclasses.replace(settings, episodes=1), seed, show, heartbeat):
            pass
