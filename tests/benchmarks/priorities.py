"""Draws and changes of weights per second with 10,000 to 10,000,000 items: `python -m tests.benchmarks.priorities`."""

from __future__ import annotations

import json
import statistics
import sys
import time

import numpy as np
import tyro

from apex_acer.sum_tree import SumTree

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


def main(sizes: tuple[int, ...] = (10_000, 100_000, 1_000_000, 10_000_000)) -> int:
    """Prints a line for each size: draws, puts and rounds of both per second, in batches of 512."""
    for size in sizes:
        print(json.dumps({"items": size, **measure(size)}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
