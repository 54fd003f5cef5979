"""`python -m checks.benchmarks.many_actors`: CartPole with 4 and with 64 actors on a Ray cluster of three nodes.

All nodes are on this machine. Every actor must be heard of; then the learner's rate is measured, a node is taken away with
its actors, another one comes, and every actor must be heard of again. Evaluation is off. `--accept` keeps the result.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import tyro

from apex_acer.config import EvaluationConfig, RayConfig, RunConfig, StopConfig
from apex_acer.config.runfile import load_run
from tests.nodes import Nodes, three_nodes
from tests.programs import Program, processes_of, program

RESULT = Path(__file__).parents[2] / "docs" / "results" / "ray-many-actors.json"
GOAL = 0.1  # by which the learner's rate may differ
SETTLE_S, DEADLINE_S = 15.0, 900.0
Figures = dict[str, Any]


def cartpole(address: str, actors: int) -> RunConfig:
    """A run without an end."""
    config = load_run("cartpole")
    return dataclasses.replace(
        config,
        engine="ray",
        actors=dataclasses.replace(config.actors, count=actors),
        evaluation=EvaluationConfig(every=0),
        stop=StopConfig(env_steps=10**12),
        ray=RayConfig(address=address),
    )


def heard_of(run: Program, known: dict[str, Any]) -> set[str]:
    """The actors that have sent a row other than those `known`."""
    rows = run.statuses[-1]["rows"] if run.statuses else {}
    return {name for name, row in rows.items() if name.startswith("actor_") and row != known.get(name)}


def hear(run: Program, actors: int) -> float:
    """Seconds until each actor has sent a row from now on."""
    started, known = time.monotonic(), dict(run.statuses[-1]["rows"]) if run.statuses else {}
    run.wait_for(lambda: len(heard_of(run, known)) == actors, DEADLINE_S)
    return time.monotonic() - started


def updates_per_s(run: Program, seconds: float) -> float:
    """The learner's, over so many seconds."""
    path = run.out / "metrics.jsonl"
    before = path.stat().st_size
    time.sleep(seconds)
    with path.open() as file:
        file.seek(before)
        rows = [json.loads(line) for line in file if line.endswith("\n")]
    first, *_, last = (row for row in rows if row["source"] == "learner")
    return float((last["updates"] - first["updates"]) / (last["wall_s"] - first["wall_s"]))


def measure(actors: int, seconds: float) -> Figures:
    """A run with so many actors that loses a node and gains one."""
    with (
        three_nodes() as nodes,
        tempfile.TemporaryDirectory() as folder,
        program(Path(folder, "program"), config=cartpole(nodes.address, actors), ready_s=DEADLINE_S) as run,
    ):
        found: Figures = {"actors": actors, "all_heard_after_s": hear(run, actors)}
        time.sleep(SETTLE_S)
        before = processor_s(nodes)
        found["updates_per_s"] = updates_per_s(run, seconds)
        found["cores"] = {name: (taken - before[name]) / seconds for name, taken in processor_s(nodes).items()}
        nodes.do("remove")
        run.wait_for(lambda: run.news, DEADLINE_S)
        started = time.monotonic()
        nodes.do("add")
        run.wait_for(lambda: num_actors(nodes) == actors, DEADLINE_S)
        hear(run, actors)
        found["all_heard_again_after_s"] = time.monotonic() - started
        found["lost_with_the_node"] = sum(run.statuses[-1]["restarts"].values())
        time.sleep(SETTLE_S)
        found["updates_per_s_afterwards"] = updates_per_s(run, seconds)
        run.send(signal.SIGINT)
        found["end"] = run.ended(within_s=120)["reason"]
    return found


def num_actors(nodes: Nodes) -> int:
    """How many actors' processes there are."""
    return sum(name.startswith("actor_") for name in processes_of(nodes.session).values())


def processor_s(nodes: Nodes) -> dict[str, float]:
    """What the learner, the actors and the actors' main threads have taken; Ray waits in these, another thread acts."""
    taken = dict.fromkeys(("learner", "actors", "main threads of actors"), 0.0)
    for pid, name in processes_of(nodes.session).items():
        if name.startswith("actor_"):
            taken["actors"] += ticks(Path(f"/proc/{pid}/stat"))
            taken["main threads of actors"] += ticks(Path(f"/proc/{pid}/task/{pid}/stat"))
        elif name.startswith("learner_"):
            taken["learner"] += ticks(Path(f"/proc/{pid}/stat"))
    return {name: number / os.sysconf("SC_CLK_TCK") for name, number in taken.items()}


def ticks(stat: Path) -> int:
    """Of a processor, in user and kernel mode."""
    user, system = stat.read_text().rpartition(")")[2].split()[11:13]
    return int(user) + int(system)


def main(counts: tuple[int, ...] = (4, 64), seconds: float = 40.0, accept: bool = False) -> int:
    """Measures runs with each number of actors and compares the last with the first.

    Args:
        counts: numbers of actors.
        seconds: over which the learner's rate is measured.
        accept: keep the result.
    """
    found = list[Figures]()
    for actors in counts:
        found.append(measure(actors, seconds))
        print(json.dumps(found[-1]), flush=True)
    ratio = found[-1]["updates_per_s"] / found[0]["updates_per_s"]
    print(f"rate with {counts[-1]} actors / with {counts[0]}: {ratio:.2f}")
    Path("build").mkdir(exist_ok=True)
    command = f"python -m checks.benchmarks.many_actors --seconds {seconds:g}"
    text = json.dumps({"command": command, "goal": GOAL, "ratio": ratio, "runs": found}, indent=1) + "\n"
    for path in [Path("build/ray-many-actors.json"), *([RESULT] if accept else [])]:
        path.write_text(text)
    return 0 if abs(ratio - 1) <= GOAL else 1


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
