"""Races apex_acer and other trainers to a score, in turns on this machine: `make bench-peers`.

`python -m checks.benchmarks.peers --task pendulum`; `peer_tasks.py` has the tasks. The score is a mean over 100 greedy
episodes. `wall_s` is the first step to the decision, `train_s` is that without the pauses for evaluation: apex_acer has
none, because it evaluates beside the training. A run that ends without the target counts with what it took: a lower bound.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import tyro

from checks.benchmarks.peer_programs import PEERS, ROOT, Failed, Record, last_json, script, versions
from checks.benchmarks.peer_tasks import TASKS, Peer, Task

RESULTS = ROOT / "docs" / "results"
FIGURES = ("env_steps", "train_s", "wall_s")


def run(task: Task, name: str, seed: int) -> Record:
    """The record of a run of one trainer. Raises `Failed`."""
    return run_ours(task, name, seed) if name in task.ours else run_peer(task, task.peers[name], seed)


def run_ours(task: Task, name: str, seed: int) -> Record:
    """The record of a run of this project's trainer."""
    flags = ["--until", str(task.target), "--evaluation.every", str(task.every), "--evaluation.episodes", "100"]
    flags += ["--stop.minutes", str(task.limit_s / 60), "--seed", str(seed), "--json"]
    program = str(Path(sys.executable).with_name("apex-acer"))
    with tempfile.TemporaryDirectory() as folder:
        command = [program, "train", *task.ours[name], *flags, "--out", f"{folder}/run"]
        result = last_json(command, deadline_s(task))
    return {
        "peer": name,
        "seed": seed,
        "env_steps": result["env_steps"],
        "train_s": round(result["wall_s"], 3),
        "wall_s": round(result["wall_s"], 3),
        "eval_return": result["eval_return"],
        "reached": result["reason"] == "at_return",
    }


def run_peer(task: Task, peer: Peer, seed: int) -> Record:
    """The record of a run of another trainer."""
    flags = ["--target", str(task.target), "--every", str(task.every)]
    flags += ["--limit", str(task.limit_s), "--seed", str(seed)]
    return last_json(script(peer.script, *peer.flags, *flags), deadline_s(task))


def deadline_s(task: Task) -> float:
    """When a run is killed: late enough for one that notices its limit only at its next evaluation."""
    return 60.0 + 1.25 * task.limit_s


def race(task: Task, seeds: int, trainers: Sequence[str]) -> tuple[list[Record], bool]:
    """The records, one line each as they come, and whether every run gave one."""
    records, complete = [], True
    for seed in range(seeds):
        for name in trainers:
            try:
                records.append(run(task, name, seed))
                print(json.dumps(records[-1]), flush=True)
            except Failed as failure:
                complete = False
                print(f"{name}, seed {seed}: {failure}", flush=True)
    return records, complete


def in_turns(task: Task, peers: Sequence[str]) -> list[str]:
    """Who runs for each seed: each of ours that has a peer among `peers`, and then those peers."""
    beside = {own: [name for name in peers if task.peers[name].beside == own] for own in task.ours}
    return [name for own, others in beside.items() if others for name in (own, *others)]


def medians(records: list[Record]) -> dict[str, Record]:
    """Of each trainer that gave records: the medians of its figures, and how many of its runs reached the target."""
    table: dict[str, Record] = {}
    for name in dict.fromkeys(record["peer"] for record in records):
        runs = [record for record in records if record["peer"] == name]
        figures = {figure: round(statistics.median(run[figure] for run in runs), 3) for figure in FIGURES}
        table[name] = {"runs": len(runs), "reached": sum(run["reached"] for run in runs), **figures}
    return table


def ratios(task: Task, table: dict[str, Record]) -> dict[str, Record]:
    """Our medians over each peer's: below 1 where ours needs less. `relation` tells bounds from equalities."""
    pairs = {name: peer.beside for name, peer in task.peers.items() if {name, peer.beside} <= table.keys()}
    return {
        name: {"ours": own, "relation": relation(table[own], table[name])}
        | {figure: round(table[own][figure] / table[name][figure], 3) for figure in FIGURES}
        for name, own in pairs.items()
    }


def relation(own: Record, peer: Record) -> str:
    """How the true ratio stands to the one measured, as runs without the target are lower bounds: `=`, `<`, `>` or `?`."""
    whole = own["reached"] == own["runs"], peer["reached"] == peer["runs"]
    return {(True, True): "=", (True, False): "<", (False, True): ">", (False, False): "?"}[whole]


def show(table: dict[str, Record], over: dict[str, Record]) -> None:
    """Prints the medians and the ratios."""
    print(f"\n{'median':<28}{'reached':>9}{'env steps':>12}{'train s':>10}{'wall s':>10}")
    for name, row in table.items():
        steps, *times = (row[figure] for figure in FIGURES)
        print(f"{name:<28}{row['reached']:>7}/{row['runs']}{steps:>12,.0f}", *(f"{time:>9.1f}" for time in times))
    for name, row in over.items():
        steps, *times = (row[figure] for figure in FIGURES)
        label = f"{row['ours']} / {name}"
        print(f"{label:<28}{row['relation']:>9}{steps:>12.2f}", *(f"{time:>9.2f}" for time in times))


def main(
    task: Literal["cartpole", "cartpole-ppo", "simple-spread", "pendulum", "lunarlander-continuous"] = "cartpole",
    seeds: int = 5,
    peers: tuple[str, ...] = (),
    limit_s: float | None = None,
    out: Path | None = None,
) -> int:
    """Races apex_acer and its peers to a score.

    Args:
        task: what is learned.
        seeds: runs of each trainer, with seeds from 0.
        peers: who else runs, beside those of ours that they are held against; all if none is named.
        limit_s: seconds of a run, if not the task's own.
        out: the file of results, written if every run gave a record; by default in docs/results.
    """
    race_task = TASKS[task] if limit_s is None else TASKS[task]._replace(limit_s=limit_s)
    if unknown := set(peers) - race_task.peers.keys():
        sys.exit(f"--peers: {', '.join(sorted(unknown))} is not allowed; give some of {', '.join(race_task.peers)}")
    PEERS.make()
    records, complete = race(race_task, seeds, in_turns(race_task, peers or tuple(race_task.peers)))
    table = medians(records)
    over = ratios(race_task, table)
    show(table, over)
    if complete:
        path = out or RESULTS / f"peers-{task}.json"
        facts = {"environment": race_task.environment, "target": race_task.target, "limit_s": race_task.limit_s}
        facts |= {"cores": os.cpu_count(), "versions": versions()}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({**facts, "medians": table, "ratios": over, "runs": records}, indent=2) + "\n")
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
