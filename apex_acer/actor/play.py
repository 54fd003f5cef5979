"""Plays whole games to watch, in a window or as a video."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

from apex_acer.actor.policy import Policy
from apex_acer.actor.rollout import Episode, Patience, Rollout
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
    """Plays `settings.episodes` games, shows every frame of them and yields each game when it has ended.

    `heartbeat` is called after each step.

    With the run's seed and settings they are the games that the first environment of its evaluator played.
    """
    seed = derive_seed(seed, "evaluator")
    rollout = Rollout(environment, policy, seed=seed, greedy=settings.greedy, stall_steps=settings.stall_steps)
    num, patience = 0, Patience(environment.id)
    while num < settings.episodes:  # a game's end is known at the next reset, whose frame is not shown
        for frame in environment.frames:
            show(frame)
        rollout.unroll(1)
        heartbeat()
        ended = rollout.take_episodes()
        patience.note(1, ended)
        for episode in ended:
            num += 1
            yield episode


def record(
    path: Path, policy: Policy, settings: EvaluationConfig, seed: int, heartbeat: Callable[[], None] = lambda: None
) -> None:
    """Writes a video of the first game of an evaluation with these settings and this seed; calls `heartbeat` as `play`."""
    environment = make_pictured(policy.config.environment, policy.spec)
    with contextlib.closing(environment), video(path, environment.fps) as show:
        for _ in play(environment, policy, dataclasses.replace(settings, episodes=1), seed, show, heartbeat):
            pass
