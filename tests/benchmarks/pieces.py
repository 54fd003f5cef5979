"""Measures the pieces of an Atari run on one core and prints them as JSON: `make bench`.

The ceiling is cores / (t_environment + t_inference + (1 + ratio) * t_update), for the preset's replay ratio.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable

import torch

from apex_acer.algorithms.acer import Acer
from apex_acer.environments import make_environments
from apex_acer.metrics import Timers
from apex_acer.optimizer import Optimizer
from apex_acer.policy import Policy
from apex_acer.replay import UniformReplay
from apex_acer.rollout import Rollout
from apex_acer.runfile import load_run
from apex_acer.seeds import derive_seed
from apex_acer.trajectory import layout

SECONDS = 5.0


def per_second(work: Callable[[], int]) -> float:
    """Items per second of `work`, which returns how many it did; the first call is not counted."""
    work()
    start, items = time.perf_counter(), 0
    while time.perf_counter() - start < SECONDS:
        items += work()
    return items / (time.perf_counter() - start)


def main() -> None:
    """Prints the rates and the ceiling they give."""
    torch.set_num_threads(1)
    config = load_run("pong")
    k, ratio, batch_size = config.algorithm.unroll_length, config.algorithm.replay_ratio, config.learner.batch_size
    environments = make_environments(config.environment, config.actors.environments, training=True)
    timers = Timers()
    rollout = Rollout(environments, Policy(config, environments.spec), seed=derive_seed(0, "actor"), timers=timers)
    algorithm = Acer(config, environments.spec, torch.device("cpu"))
    optimizer = Optimizer(config, algorithm.network)
    replay = UniformReplay(layout(environments.spec, k, Acer.behaviour_shapes(environments.spec)), 256, 0)

    def act() -> int:
        unroll = rollout.unroll(k)
        replay.insert(unroll, 0)
        return unroll.num_steps

    def update() -> int:
        batch = replay.gather(replay.draw(batch_size))
        optimizer.step(algorithm.loss(batch).loss, 0)
        algorithm.after_step()
        return int(batch.mask.sum())

    act()
    timers.shares()  # what came before does not count
    acting = per_second(act)
    shares = timers.shares()
    learning = per_second(update)
    environments.close()
    ceiling = (os.cpu_count() or 1) / (1 / acting + (1 + ratio) / learning)
    figures = {
        "act_env_steps_per_s": acting,
        "share_environment": shares["time_environment"],
        "share_inference": shares["time_policy"],
        "learner_samples_per_s": learning,
        "replay_ratio": ratio,
        "cores": os.cpu_count(),
        "ceiling_env_steps_per_s": ceiling,
    }
    print(json.dumps({name: round(value or 0, 3) for name, value in figures.items()}, indent=2))


if __name__ == "__main__":
    main()
