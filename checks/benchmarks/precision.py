"""Whether bfloat16 learns what float32 learns: the same updates on one fixed replay of Pong.

`python -m checks.benchmarks.precision` writes JSON and a figure into docs/results. A float32 run that draws other segments
shows how far two runs differ that should not.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import tyro

from apex_acer.actor.policy import Policy
from apex_acer.actor.rollout import Rollout
from apex_acer.algorithms.acer.acer import Acer
from apex_acer.config import RunConfig
from apex_acer.config.runfile import load_run
from apex_acer.environments.vector import make_environments
from apex_acer.learner.gradient import Gradient
from apex_acer.learner.optimizer import Optimizer
from apex_acer.protocol.specification import EnvironmentSpec
from apex_acer.protocol.unroll import Unroll
from apex_acer.replay.sampler import Sampler
from apex_acer.replay.storage import Storage
from apex_acer.views.curves import Line, Panel
from apex_acer.views.plots import plot_curves

RESULTS = Path(__file__).parents[2] / "docs" / "results"
RUNS: dict[str, tuple[Literal["float32", "bfloat16"], int]] = {
    "float32": ("float32", 0),
    "float32, other draws": ("float32", 1),
    "bfloat16": ("bfloat16", 0),
}
WATCHED = ("q_loss", "entropy", "average_policy_kl", "value")
AVERAGED = 25  # updates per point


def play(config: RunConfig, env_steps: int) -> tuple[EnvironmentSpec, list[Unroll]]:
    """What a new policy sees in so many steps."""
    torch.manual_seed(0)
    environments = make_environments(config.environment, config.actors.environments, training=True, threads=2)
    rollout, k = Rollout(environments, Policy(config, environments.spec), seed=0), config.algorithm.unroll_length
    unrolls = [rollout.unroll(k) for _ in range(env_steps // (k * config.actors.environments))]
    environments.close()
    return environments.spec, unrolls


def learn(config: RunConfig, spec: EnvironmentSpec, unrolls: list[Unroll], updates: int, seed: int) -> dict[str, Any]:
    """Means of metrics over every `AVERAGED` updates on `unrolls`; the weights begin the same in every run."""
    torch.manual_seed(0)
    acer = Acer.make(config, spec, torch.device("cpu"))
    optimizer = Optimizer(config, acer.groups())
    gradient = Gradient(acer, optimizer, num_parts=2)
    storage = Storage(acer.agent.layout, sum(unroll.num_columns for unroll in unrolls))
    sampler = Sampler(storage, seed)
    for unroll in unrolls:
        storage.insert(unroll, 0)
        acer.observe(unroll, 0)
    start, found = time.perf_counter(), []
    for update in range(updates):
        samples, due = acer.samples.make(storage.gather(sampler.draw(config.learner.batch_size))), optimizer.due(update)
        output = gradient.compute(samples, due)
        optimizer.step(output.loss, 0, due)
        acer.after_step(update + 1, due)
        found.append([float(output.metrics[name]) for name in WATCHED])
    means = np.array(found).reshape(-1, AVERAGED, len(WATCHED)).mean(1)
    seconds = (time.perf_counter() - start) / updates
    return {"ms_per_update": 1000 * seconds} | {name: means[:, i].tolist() for i, name in enumerate(WATCHED)}


def distance(one: list[float], other: list[float]) -> float:
    """Mean difference of two curves."""
    return statistics.fmean(abs(a - b) for a, b in zip(one, other, strict=True))


def main(preset: str = "pong", env_steps: int = 16_000, updates: int = 1000, out: Path = RESULTS) -> int:
    """Learns from one replay in both precisions."""
    config = load_run(preset)
    spec, unrolls = play(config, env_steps)
    runs = {}
    for name, (precision, seed) in RUNS.items():
        learner = dataclasses.replace(config.learner, precision=precision)
        runs[name] = learn(dataclasses.replace(config, learner=learner), spec, unrolls, updates, seed)
        print(f"{name:<22}", f"{runs[name]['ms_per_update']:.0f} ms", {n: round(runs[name][n][-1], 4) for n in WATCHED})
    first, second, third = runs.values()
    found = {
        name: {"bfloat16": distance(first[name], third[name]), "other draws": distance(first[name], second[name])}
        for name in WATCHED
    }
    for name, distances in found.items():
        print(f"{name:<20}", ", ".join(f"{what} {value:.4g}" for what, value in distances.items()))
    (out / f"precision-{preset}.json").write_text(json.dumps({"distances": found, "runs": runs}) + "\n")
    x = np.arange(AVERAGED, updates + 1, AVERAGED, dtype=np.float64)
    losses = {name: np.array(run["q_loss"], np.float64) for name, run in runs.items()}
    lines = [Line(name, x, loss, loss, loss) for name, loss in losses.items()]
    (out / f"precision-{preset}.png").write_bytes(
        plot_curves(config.environment.id, "Q loss", [Panel("updates", lines)])
    )
    return 0


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
