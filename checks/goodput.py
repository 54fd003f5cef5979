"""`make goodput`: what a run loses when a random process of it is killed every minute.

Trains each preset to the same number of environment steps in pairs, one run left alone and one with kills, and prints
both rates, their ratio, and how long each killed learner took to its successor's first update.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from apex_acer.config import LoggingConfig, RunConfig, SupervisionConfig
from apex_acer.config.runfile import load_run
from tests.programs import Program, program

POLL_S = 0.05
LOG_S = 0.25  # between two rows, and so the resolution of the time to an update
RUNS = {"cartpole": (600_000, 20_000), "pong": (300_000, 5_000)}
"""Environment steps of each run, and between two checkpoints."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--presets", nargs="+", default=list(RUNS), choices=list(RUNS))
    parser.add_argument("--every", type=float, default=60.0, help="seconds between two kills")
    parser.add_argument("--pairs", type=int, default=1, help="pairs of runs of each preset")
    parser.add_argument("--share", type=float, default=1.0, help="share of the usual environment steps")
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    arguments = parser.parse_args()
    figures = []
    for preset in arguments.presets:
        for seed in range(arguments.pairs):
            figures.append(pair(preset, seed, arguments.every, arguments.share))
            print(json.dumps(figures[-1]), flush=True)
    if arguments.out:
        arguments.out.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


def pair(preset: str, seed: int, every_s: float, share: float) -> dict[str, Any]:
    """The figures of two runs, of which the second one has kills."""
    alone, killed = (measure(configure(preset, seed, share), each) for each in (0.0, every_s))
    return {
        "preset": preset,
        "seed": seed,
        "env_steps": alone["env_steps"],
        "seconds": [round(each["seconds"], 1) for each in (alone, killed)],
        "ratio": round(killed["seconds"] / alone["seconds"], 3),
        "returns": [each["eval_return"] for each in (alone, killed)],
        "kills": killed["kills"],
        "update_after_s": killed["update_after_s"],
    }


def configure(preset: str, seed: int, share: float) -> RunConfig:
    """The preset, without a score to stop at, and with a checkpoint now and then."""
    config = load_run(preset)
    env_steps, every = (int(share * number) for number in RUNS[preset])
    return dataclasses.replace(
        config,
        seed=seed,
        stop=dataclasses.replace(config.stop, env_steps=env_steps, at_return=None),
        schedule_steps=config.schedule_end,
        checkpoint=dataclasses.replace(config.checkpoint, every=every, replay=True),
        logging=LoggingConfig(every_seconds=LOG_S),
        supervision=SupervisionConfig(restarts=1000),
    )


def measure(config: RunConfig, every_s: float) -> dict[str, Any]:
    """Seconds from the first to the last environment step, and what was killed meanwhile; 0 s: nothing is killed."""
    kills, chance, after = Counter[str](), random.Random(config.seed), list[float]()
    with tempfile.TemporaryDirectory() as folder, program(Path(folder) / "run", config=config) as run:
        run.wait_for(lambda: run.statuses and run.statuses[-1]["env_steps"] > 0, 120)
        begun = at = time.monotonic()
        while run.running:
            time.sleep(POLL_S)
            if every_s and time.monotonic() > at + every_s:
                at += every_s
                if not (names := sorted(run.children())):
                    continue  # the run ends
                name = chance.choice(names)
                kills[name] += 1
                run.kill_child(name)
                if name == "learner_0":
                    after.append(round(first_update_s(run), 2))
        seconds = time.monotonic() - begun
        result = run.ended(within_s=60)
    return {**result, "seconds": seconds, "kills": dict(kills), "update_after_s": after}


def first_update_s(run: Program) -> float:
    """Seconds until the learner that follows one that was killed just now tells of an update, at most 0.75 s late."""
    begun, told = time.monotonic(), len(run.statuses)
    run.wait_for(lambda: any("learner" not in status["rows"] for status in run.statuses[told:]))
    restored = max(int(path.name) for path in (run.out / "checkpoint").iterdir() if path.name.isdecimal())
    run.wait_for(lambda: run.statuses[-1]["rows"].get("learner", {}).get("updates", 0) > restored)
    return time.monotonic() - begun


if __name__ == "__main__":
    sys.exit(main())
