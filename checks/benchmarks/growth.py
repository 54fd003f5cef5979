"""What an update costs with 1,000 to 1,000,000 environment steps in replay: `python -m checks.benchmarks.growth`."""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
import time
from typing import Any

import torch
import tyro

from apex_acer.actor.policy import Policy
from apex_acer.actor.rollout import Rollout
from apex_acer.algorithms import make_agent
from apex_acer.config.runfile import load_run
from apex_acer.environments.vector import make_environments
from apex_acer.learner.parts import make_batch_queue
from apex_acer.learner.trainer import Trainer

UPDATES = 300


def measure(preset: str, steps: int) -> dict[str, Any]:
    """Median milliseconds of inserting an unroll and of an update, with so many steps held."""
    config = load_run(preset)
    config = dataclasses.replace(config, replay=dataclasses.replace(config.replay, capacity=steps, start=steps))
    k, num = config.algorithm.unroll_length, config.actors.environments
    environments = make_environments(config.environment, num, training=True)
    spec = environments.spec
    unroll = Rollout(environments, Policy(config, spec), seed=0).unroll(k)
    environments.close()
    trainer = Trainer(config, spec)
    queue = make_batch_queue(config, make_agent(config, spec).layout, trainer.device)
    while queue.storage.num_steps < steps - k * num:
        queue.store(unroll, 0)
    inserts, updates = list[float](), list[float]()
    while len(updates) < UPDATES:
        start = time.perf_counter()
        queue.insert(unroll, 0)
        inserts.append(time.perf_counter() - start)
        queue.agree(unroll.num_steps, False, False)
        while queue.ready:
            start = time.perf_counter()
            trainer.update(queue.next_batch(), 0, len(updates))
            updates.append(time.perf_counter() - start)
    held = {"steps": queue.storage.num_steps, "megabytes": queue.storage.num_bytes / 1e6}
    return {**held, "insert_ms": 1000 * statistics.median(inserts), "update_ms": 1000 * statistics.median(updates)}


def main(preset: str = "cartpole", sizes: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000)) -> int:
    """Prints a line for each size."""
    torch.set_num_threads(1)
    for steps in sizes:
        print(json.dumps({name: round(value, 3) for name, value in measure(preset, steps).items()}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
