"""Environment steps per second while learning Pong, apex_acer and its peers in turns on this machine: `make bench-peers`.

The game and the networks are the same; ACER replays 4 steps per fresh one, PPO learns from each step in 4 epochs.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from pathlib import Path

import tyro

from tests.benchmarks.bench import RESULTS, measure_run
from tests.benchmarks.peer_programs import OURS, Record, last_json, make_venv, script, versions

PEERS = ("pfrl_acer", "sb3_ppo")
PRESETS = {"a3c": "pong", "nature": "atari"}  # by the name of their convolutions
REPLAY_RATIO = 4.0


def measure(trainer: str, network: str, seconds: float) -> Record:
    """The record of one trainer."""
    if trainer == OURS:
        rate = measure_run(PRESETS[network], REPLAY_RATIO, seconds)["env_steps_per_s"]
        record = {"peer": OURS, "env_steps_per_s": round(rate, 1)}
    else:
        record = last_json(script("peer_pong.py", trainer, "--network", network, "--seconds", str(seconds)))
    return {"network": network, **record}


def main(rounds: int = 2, seconds: float = 60.0, out: Path = RESULTS / "peers-pong.json") -> int:
    """Measures each trainer with each network `rounds` times for `seconds` after its warm-up."""
    make_venv()
    records, networks = [], {}
    for network in PRESETS:
        for _ in range(rounds):
            for trainer in (OURS, *PEERS):
                records.append(measure(trainer, network, seconds))
                print(json.dumps(records[-1]), flush=True)
        networks[network] = compare([record for record in records if record["network"] == network])
        print(json.dumps({network: networks[network]}), flush=True)
    facts = {
        "environment": "ALE/Pong-v5",
        "replay_ratio": REPLAY_RATIO,
        "cores": os.cpu_count(),
        "versions": versions(),
    }
    out.write_text(json.dumps({**facts, "networks": networks, "runs": records}, indent=2) + "\n")
    return 0


def compare(records: list[Record]) -> Record:
    """Median rates, and how many times a peer's ours is."""
    rates = {
        name: statistics.median(record["env_steps_per_s"] for record in records if record["peer"] == name)
        for name in (OURS, *PEERS)
    }
    return {"env_steps_per_s": rates, "times": {name: round(rates[OURS] / rates[name], 2) for name in PEERS}}


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
