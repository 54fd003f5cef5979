"""Processor time of CrossQ's updates by the width of the critics, and of SAC's: `python -m checks.benchmarks.critic_widths`.

Updates are those of `updates.py`, on one thread and in turns. The smallest time of all turns counts: other programs add to
processor time, too, because they empty the caches.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch
import tyro

from apex_acer.config import RunConfig
from apex_acer.config.runfile import load_run
from apex_acer.system.process import environment_variables
from checks.benchmarks.updates import Updates, box_spec, sized

EVERY = 3  # updates per update of CrossQ's policy, and updates per turn


def variants(widths: Sequence[int], hidden: tuple[int, ...], batch_size: int) -> dict[str, RunConfig]:
    """SAC, and CrossQ with critics of each of `widths`, by name."""
    sac = sized(load_run("pendulum-sac"), hidden, batch_size, 10_000, threads=1)
    found = {"sac": sac}
    for width in widths:
        crossq: dict[str, Any] = {"batch_norm": True, "policy_every": EVERY, "critic_hidden_sizes": (width, width)}
        found[f"crossq {width}"] = dataclasses.replace(sac, algorithm=dataclasses.replace(sac.algorithm, **crossq))
    return found


def measure(configs: dict[str, RunConfig], turns: int, obs: int, actions: int) -> dict[str, float]:
    """Milliseconds of processor time per update of each of `configs`."""
    made = {name: Updates(config, box_spec(obs, actions)) for name, config in configs.items()}
    spent: dict[str, list[float]] = {name: [] for name in made}
    for _ in range(turns):
        for name, updates in made.items():
            start = time.process_time()
            updates.make(EVERY)
            spent[name].append(1000 * (time.process_time() - start) / EVERY)
    return {name: round(min(times), 2) for name, times in spent.items()}


def main(widths: tuple[int, ...] = (256, 512, 1024, 2048), turns: int = 10, obs: int = 17, actions: int = 6) -> int:
    """Prints milliseconds per update as JSON.

    Args:
        widths: of both layers of the critics.
        turns: of each variant.
        obs: numbers of an observation.
        actions: numbers of an action.
    """
    torch.set_num_threads(1)
    milliseconds = measure(variants(widths, (256, 256), 256), turns, obs, actions)
    print(json.dumps({"obs": obs, "actions": actions, "batch_size": 256, "turns": turns, "cpu_ms": milliseconds}))
    return 0


if __name__ == "__main__":
    kept = environment_variables()  # as in a run: freed memory is kept, which the C library reads at the start
    if any(os.environ.get(name) != value for name, value in kept.items()):
        os.execve(sys.executable, [sys.executable, "-m", __spec__.name, *sys.argv[1:]], {**os.environ, **kept})
    sys.exit(tyro.cli(main))
