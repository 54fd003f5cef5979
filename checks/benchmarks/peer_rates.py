"""Rates of apex_acer and its peers, in turns on this machine: `make bench-peers`.

`--task pong`: environment steps per second while learning Pong. The game and the networks are the same; ACER replays 4 steps
per fresh one; PPO learns from each step in 4 epochs of minibatches of 256.
`--task continuous`: updates per second of SAC, TD3 and DDPG with the same networks (256 x 256), batch (256) and full replay,
for the sizes of two environments, with the threads that each takes by itself and with one. Ours start as in a run, with the
environment variables of its processes.
Peers compute in float32. Ours are measured in float32, too, which is what a processor without bfloat16 instructions gives.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
import tyro

from apex_acer.networks.speed import multiplies_bfloat16
from apex_acer.system.process import environment_variables
from checks.benchmarks.bench import RESULTS, measure_run
from checks.benchmarks.peer_programs import OURS, PEERS, Record, last_json, script, versions

Measure = Callable[[float], Record]
"""Measures for so many seconds; the record has the rate."""


class Rates(NamedTuple):
    """What is compared: for each `case` the measures by trainer, and which peer each of ours is held against."""

    facts: dict[str, Any]
    figure: str
    case: str
    measures: dict[str, dict[str, Measure]]
    beside: dict[str, str]
    seconds: float  # of each measurement, after its warm-up


CPU = torch.device("cpu")
PRECISIONS = {"": "auto", "_float32": "float32"}  # of ours, by the end of its name
PRESETS = {"a3c": "pong", "nature": "atari"}  # by the name of their convolutions
OURS_PPO = f"{OURS}_ppo"
PONG_PEERS = {OURS: "pfrl_acer", OURS_PPO: "sb3_ppo"}
PPO_NETWORKS = {
    "a3c": (),
    "nature": ("--network.convolutions", "nature", "--network.hidden-sizes", "512"),
}  # flags of the preset pong-ppo
REPLAY_RATIO = 4.0


def pong() -> Rates:
    """Environment steps per second while learning Pong, by network."""

    def ours(preset: str, ratio: float | None, flags: Sequence[str]) -> Measure:
        def run(seconds: float) -> Record:
            return {"env_steps_per_s": round(measure_run(preset, ratio, seconds, flags=flags)["env_steps_per_s"], 1)}

        return run

    def peer(name: str, network: str) -> Measure:
        flags = ("--network", network, "--seconds")
        return lambda seconds: last_json(script("peer_pong.py", name, *flags, str(seconds)))

    measures: dict[str, dict[str, Measure]] = {network: {} for network in PRESETS}
    for network, measured in measures.items():
        for suffix, precision in PRECISIONS.items():
            flags = ("--learner.precision", precision)
            measured[f"{OURS}{suffix}"] = ours(PRESETS[network], REPLAY_RATIO, flags)
            measured[f"{OURS_PPO}{suffix}"] = ours("pong-ppo", None, (*PPO_NETWORKS[network], *flags))
        measured |= {name: peer(name, network) for name in PONG_PEERS.values()}
    beside = {f"{own}{suffix}": name for own, name in PONG_PEERS.items() for suffix in PRECISIONS}
    facts = {"environment": "ALE/Pong-v5", "replay_ratio": REPLAY_RATIO}
    return Rates(facts, "env_steps_per_s", "network", measures, beside, seconds=60.0)


SIZES = {"Pendulum-v1": (3, 1), "HalfCheetah-v5": (17, 6)}  # numbers of an observation and of an action
ALGORITHMS = ("sac", "td3", "ddpg")
NETWORKS: dict[str, Any] = {"hidden_sizes": [256, 256], "batch_size": 256, "replay_steps": 100_000}
THREADS = {"": 0, "_1_thread": 1}  # 0: the trainer's own choice


def continuous() -> Rates:
    """Updates per second of learners for continuous actions, by sizes and algorithm."""
    ours, variables = [sys.executable, "-m", "checks.benchmarks.updates", "--precision"], environment_variables()
    commands = {f"{OURS}{suffix}": ([*ours, precision], variables) for suffix, precision in PRECISIONS.items()}
    commands["sb3"] = script("peer_updates.py"), {}

    def measure(name: str, algorithm: str, sizes: tuple[int, int], threads: int) -> Measure:
        flags = ["--obs", str(sizes[0]), "--actions", str(sizes[1]), "--threads", str(threads)]
        flags += ["--hidden", *map(str, NETWORKS["hidden_sizes"]), "--batch-size", str(NETWORKS["batch_size"])]
        flags += ["--env-steps", str(NETWORKS["replay_steps"]), "--seconds"]
        command, variables = commands[name]
        return lambda seconds: last_json([*command, algorithm, *flags, str(seconds)], variables=variables)

    measures = {
        f"{task} {algorithm}": {
            f"{name}{suffix}": measure(name, algorithm, sizes, threads)
            for suffix, threads in THREADS.items()
            for name in commands
        }
        for task, sizes in SIZES.items()
        for algorithm in ALGORITHMS
    }
    beside = {f"{OURS}{end}{threads}": f"sb3{threads}" for end in PRECISIONS for threads in THREADS}
    return Rates(NETWORKS, "updates_per_s", "case", measures, beside, seconds=10.0)


TASKS = {"pong": pong, "continuous": continuous}


def measure_all(rates: Rates, rounds: int, seconds: float) -> tuple[dict[str, Record], list[Record]]:
    """What was found for each case, and the records, one line each as they come."""
    found, records = {}, []
    for case, measures in rates.measures.items():
        for _ in range(rounds):
            for name, measure in measures.items():
                records.append({rates.case: case, "peer": name, **measure(seconds)})
                print(json.dumps(records[-1]), flush=True)
        found[case] = compare(rates, [record for record in records if record[rates.case] == case])
        print(json.dumps({case: found[case]}), flush=True)
    return found, records


def compare(rates: Rates, records: list[Record]) -> Record:
    """Median rates, and how many times its peer's each of ours is."""
    names = dict.fromkeys(record["peer"] for record in records)
    median = {
        name: statistics.median(record[rates.figure] for record in records if record["peer"] == name) for name in names
    }
    return {
        rates.figure: median,
        "times": {own: round(median[own] / median[peer], 2) for own, peer in rates.beside.items()},
    }


def main(
    task: Literal["pong", "continuous"] = "pong",
    rounds: int = 2,
    seconds: float | None = None,
    cases: tuple[str, ...] = (),
    out: Path | None = None,
) -> int:
    """Measures each trainer in turns.

    Args:
        task: what is compared.
        rounds: turns of each trainer for each case.
        seconds: of each measurement, after its warm-up, if not the task's own.
        cases: only those whose names contain one of these.
        out: the file of results; by default in docs/results.
    """
    rates = TASKS[task]()
    PEERS.make()
    wanted = {name: some for name, some in rates.measures.items() if not cases or any(case in name for case in cases)}
    found, records = measure_all(rates._replace(measures=wanted), rounds, seconds or rates.seconds)
    machine = {"cores": os.cpu_count(), "cpu_capability": torch.backends.cpu.get_cpu_capability()}
    facts = {**rates.facts, **machine, "has_bfloat16": multiplies_bfloat16(CPU), "versions": versions()}
    path = out or RESULTS / f"peers-{task}{'-rates' if task == 'continuous' else ''}.json"
    path.write_text(json.dumps({**facts, f"{rates.case}s": found, "runs": records}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
