"""Prioritized draws and changes of priorities per second, with 10,000 to 10,000,000 items.

`python -m checks.benchmarks.priorities`; the aim is 2,000 rounds of both on one core with a million items.
"""

from __future__ import annotations

import json
import statistics
import sys
import time

import numpy as np
import torch
import tyro

from apex_acer.config import ReplayConfig
from apex_acer.protocol.actions import Discrete
from apex_acer.protocol.specification import EnvironmentSpec
from apex_acer.protocol.unroll import PRIORITY, Unroll, layout
from apex_acer.replay.sampler import PrioritizedSampler
from apex_acer.replay.storage import Storage
from apex_acer.replay.sum_tree import SumTree

BATCH = 512
ROUNDS = 500
REPEATS = 7


def measure(size: int) -> dict[str, int]:
    """Times per second that a batch is drawn, that its weights are put, and both; NumPy uses one thread for all of it."""
    rng = np.random.default_rng(0)
    tree = SumTree(size)
    tree.put(np.arange(size), rng.pareto(2, size))
    draws, puts = [], []
    for _ in range(REPEATS):
        drawing = putting = 0.0
        for _ in range(ROUNDS):
            points = (np.arange(BATCH) + rng.random(BATCH)) / BATCH
            weights = rng.pareto(2, BATCH)
            start = time.perf_counter()
            items = tree.draw(points)
            drawn = time.perf_counter()
            tree.put(items, weights)
            putting += time.perf_counter() - drawn
            drawing += drawn - start
        draws.append(drawing / ROUNDS)
        puts.append(putting / ROUNDS)
    draw, put = statistics.median(draws), statistics.median(puts)
    return {"draws": round(1 / draw), "puts": round(1 / put), "rounds": round(1 / (draw + put))}


def measure_replay(size: int) -> dict[str, int]:
    """Rounds per second of a replay of so many of CartPole's steps, with importance weights, and with batches gathered."""
    k, num, window = 20, min(1000, size // 20), 3
    rng = np.random.default_rng(0)
    spec = EnvironmentSpec((4,), "float32", Discrete(2, 0), 1, False, 1, (4,))
    storage = Storage(layout(spec, k, {PRIORITY: ()}), size // k, window)
    sampler = PrioritizedSampler(storage, 0, ReplayConfig())
    shape = (k, num)
    flags = {name: np.zeros(shape, bool) for name in ("terminated", "truncated")}
    steps = np.tile(np.arange(k + 1, dtype=np.int32)[:, None], (1, num))
    while storage.num_steps < size // k // num * k * num:
        unroll = Unroll(
            rng.normal(size=(k + 1, num, 4)).astype(np.float32),
            steps,
            rng.integers(2, size=shape),
            np.ones(shape, np.float32),
            **flags,
            mask=np.ones(shape, bool),
            extras={PRIORITY: rng.pareto(2, shape).astype(np.float32)},
            state={},
        )
        sampler.insert(storage.insert(unroll, 0), unroll)
    priorities = torch.from_numpy(rng.pareto(2, BATCH))

    def one(gathers: bool) -> float:
        start = time.perf_counter()
        for _ in range(ROUNDS):
            items = sampler.draw(BATCH)
            probabilities = sampler.probabilities(items)
            weights = sampler.importance(probabilities, 0.5, probabilities.min())
            if gathers:
                storage.gather(items, importance=weights)
            sampler.set_priorities(items, priorities, storage.num_inserted)
        return (time.perf_counter() - start) / ROUNDS

    bare, whole = (statistics.median(one(gathers) for _ in range(REPEATS)) for gathers in (False, True))
    return {"replay_rounds": round(1 / bare), "replay_rounds_with_batches": round(1 / whole)}


def main(sizes: tuple[int, ...] = (10_000, 100_000, 1_000_000, 10_000_000)) -> int:
    """Prints a line for each size: draws, puts and rounds of both per second, in batches of 512."""
    torch.set_num_threads(1)
    for size in sizes:
        print(json.dumps({"items": size, **measure(size), **measure_replay(size)}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
