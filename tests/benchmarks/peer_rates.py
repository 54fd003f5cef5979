"""Environment steps per second while learning Pong, apex_acer and its peers in turns on this machine: `make bench-peers`.

The game and the network are the same; ACER replays 4 steps per fresh one, PPO learns from each step in 4 epochs.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from pathlib import Path

import tyro

from tests.benchmarks.bench import RESULTS, measure_run
from tests.benchmarks.peers import OURS, PYTHON, Record, last_json, make_venv, versions

PEERS = ("pfrl_acer", "sb3_ppo")
REPLAY_RATIO = 4.0


def measure(trainer: str, seconds: float) -> Record:
    """The record of one trainer."""
    if trainer == OURS:
        rate = measure_run("atari", REPLAY_RATIO, seconds)["env_steps_per_s"]
        return {"peer": OURS, "env_steps_per_s": round(rate, 1)}
    script = str(Path(__file__).with_name("peer_pong.py"))
    return last_json([str(PYTHON), "-W", "ignore", script, trainer, "--seconds", str(seconds)])


def main(rounds: int = 2, seconds: float = 60.0, out: Path = RESULTS / "peers-pong.json") -> int:
    """Measures each trainer `rounds` times for `seconds` after its warm-up."""
    make_venv()
    records = []
    for _ in range(rounds):
        for trainer in (OURS, *PEERS):
            records.append(measure(trainer, seconds))
            print(json.dumps(records[-1]), flush=True)
    rates = {
        name: statistics.median(record["env_steps_per_s"] for record in records if record["peer"] == name)
        for name in (OURS, *PEERS)
    }
    over = {name: round(rates[OURS] / rates[name], 2) for name in PEERS}
    for name, rate in rates.items():
        print(
            f"{name:<12}{rate:>8,.0f} env steps/s", f"{OURS} has {over[name]:.1f} times as many" if name in over else ""
        )
    facts = {
        "environment": "ALE/Pong-v5",
        "replay_ratio": REPLAY_RATIO,
        "cores": os.cpu_count(),
        "versions": versions(),
    }
    out.write_text(json.dumps({**facts, "median": rates, "ratios": over, "runs": records}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
