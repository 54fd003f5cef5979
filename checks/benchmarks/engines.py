"""`python -m checks.benchmarks.engines`: what the ray engine costs beside the local one, the same run on this machine.

Both make the run in turns, so that what others take of the machine meanwhile falls on both.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import tyro

PROGRAM = str(Path(sys.executable).with_name("apex-acer"))
ENGINES = "local", "ray"
WARM_UP_S, DEADLINE_S = 10.0, 300.0


def measure(preset: str, engine: str, seconds: float) -> tuple[float, float]:
    """Environment steps per second after the warm-up, and seconds from the start to the first step."""
    with tempfile.TemporaryDirectory() as folder:
        flags = f"--engine {engine} --minutes {seconds / 60} --steps 1000000000 --out {folder}/run --json"
        flags += " --evaluation.every 0 --stop.at-return None --checkpoint.every 0"
        command = [PROGRAM, "train", preset, *flags.split()]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=DEADLINE_S)
        rows = [json.loads(line) for line in Path(folder, "run", "metrics.jsonl").read_text().splitlines()]
    first, *_, last = (row for row in rows if row["source"] == "learner" and row["wall_s"] >= WARM_UP_S)
    rate = (last["env_steps"] - first["env_steps"]) / (last["wall_s"] - first["wall_s"])
    return rate, json.loads(done.stdout.splitlines()[-1])["startup_s"]


def main(presets: tuple[str, ...] = ("pong", "cartpole"), seconds: float = 36.0, rounds: int = 3) -> None:
    """Prints each engine's rates and the ratio of their medians.

    Args:
        presets: run files.
        seconds: of each run.
        rounds: how often each is made.
    """
    for preset in presets:
        found = [[measure(preset, engine, seconds) for engine in ENGINES] for _ in range(rounds)]
        for engine, runs in zip(ENGINES, zip(*found, strict=True), strict=True):
            rates = ", ".join(f"{rate:,.0f}" for rate, _ in runs)
            startup_s = statistics.median(startup for _, startup in runs)
            print(f"{preset:<10} {engine:<6} {rates} env steps/s; first step after {startup_s:.1f} s", flush=True)
        local, ray = (statistics.median(rate for rate, _ in runs) for runs in zip(*found, strict=True))
        print(f"{preset:<10} ray / local {ray / local:.2f}", flush=True)


if __name__ == "__main__":
    tyro.cli(main)
