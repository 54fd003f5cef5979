"""Races apex_acer and other trainers to a solved CartPole-v1, in turns on this machine: `make bench-peers`.

Solved is a mean of 475 over 100 greedy episodes, looked at every 1,000 steps; each trainer has 200,000 steps. `wall_s` is
the first step to the decision, `train_s` is that without the pauses for evaluation: apex_acer has none, it evaluates beside
the training. A run that ends without the target counts with what it took: a lower bound.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tyro

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results" / "peers-cartpole.json"
VENV = ROOT / "build" / "peers"
PYTHON = VENV / "bin" / "python"
REQUIREMENTS = (
    "stable-baselines3==2.9.2",
    "pfrl==0.4.0",
    "packaging",
    "ale-py",
    "opencv-python-headless",
)  # PFRL does not say that it needs the last
DISTRIBUTIONS = ("stable-baselines3", "pfrl", "torch", "gymnasium", "numpy")
DEADLINE_S, LIMIT_S = 300.0, 240.0  # of a run, and of a slow peer's own clock, so that it can still report
OURS = "apex_acer"
FIGURES = ("env_steps", "train_s", "wall_s")

Record = dict[str, Any]


class Failed(Exception):
    """A run that gave no record; the message is one line."""


def ours(seed: int) -> Record:
    """The record of a run of this project's trainer."""
    with tempfile.TemporaryDirectory() as folder:
        flags = ["--engine", "local", "--actors", "2", "--until", "475", "--seed", str(seed), "--out", f"{folder}/run"]
        program = str(Path(sys.executable).with_name("apex-acer"))
        result = last_json([program, "train", "cartpole", *flags, "--json"])
    return {
        "peer": OURS,
        "seed": seed,
        "env_steps": result["env_steps"],
        "train_s": round(result["wall_s"], 3),
        "wall_s": round(result["wall_s"], 3),
        "eval_return": result["eval_return"],
        "reached": result["reason"] == "at_return",
    }


def script(name: str, *flags: str) -> Callable[[int], Record]:
    """What runs a peer's script for a seed, in the peers' own environment."""
    path = str(Path(__file__).with_name(name))
    return lambda seed: last_json([str(PYTHON), "-W", "ignore", path, "--seed", str(seed), *flags])


TRAINERS: dict[str, Callable[[int], Record]] = {
    OURS: ours,
    "sb3_ppo": script("peer_ppo.py", "--threads", "1"),
    "pfrl_acer": script("peer_acer.py", "--processes", "2", "--limit", str(LIMIT_S)),
}


def last_json(command: list[str]) -> Record:
    """The JSON object that a program prints last; it and what it started end within the deadline."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as process:
        try:
            output, errors = process.communicate(timeout=DEADLINE_S)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                raise Failed(f"no end within {DEADLINE_S:.0f} s") from None
            raise
    if process.returncode or not output.strip():
        raise Failed(f"exit code {process.returncode}: {(errors.strip() or 'no message').splitlines()[-1]}")
    record: Record = json.loads(output.splitlines()[-1])
    return record


def make_venv() -> None:
    """The peers' environment, unless it is there: the packages the project pins, in the same versions, and the peers."""
    done, constraints = VENV / ".installed", ROOT / "constraints.txt"
    wanted = "\n".join([*REQUIREMENTS, constraints.read_text(encoding="utf-8")])
    if done.exists() and done.read_text(encoding="utf-8") == wanted:
        return
    venv.create(VENV, with_pip=True, clear=True)
    install = [str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    install += ["--constraint", str(constraints)]
    subprocess.run([*install, "torch"], check=True)
    subprocess.run([*install, *REQUIREMENTS], check=True)
    done.write_text(wanted, encoding="utf-8")


def versions() -> dict[str, str]:
    """Those of the packages that ran."""
    code = "import json, sys; from importlib.metadata import version; print(json.dumps([version(n) for n in sys.argv[1:]]))"
    found = subprocess.check_output([str(PYTHON), "-c", code, *DISTRIBUTIONS], text=True)
    own = subprocess.check_output([sys.executable, "-c", code, OURS], text=True)
    return dict(zip((OURS, *DISTRIBUTIONS), json.loads(own) + json.loads(found), strict=True))


def race(seeds: int, trainers: Sequence[str]) -> tuple[list[Record], bool]:
    """The records, one line each as they come, and whether every run gave one."""
    records, complete = [], True
    for seed in range(seeds):
        for name in trainers:
            try:
                records.append(TRAINERS[name](seed))
                print(json.dumps(records[-1]), flush=True)
            except Failed as failure:
                complete = False
                print(f"{name}, seed {seed}: {failure}", flush=True)
    return records, complete


def medians(records: list[Record]) -> dict[str, Record]:
    """Of each trainer that gave records: the medians of its figures, and how many of its runs reached the target."""
    table: dict[str, Record] = {}
    for name in TRAINERS:
        runs = [record for record in records if record["peer"] == name]
        if runs:
            figures = {figure: round(statistics.median(run[figure] for run in runs), 3) for figure in FIGURES}
            table[name] = {"runs": len(runs), "reached": sum(run["reached"] for run in runs), **figures}
    return table


def ratios(table: dict[str, Record]) -> dict[str, Record]:
    """Our medians over each peer's: below 1 where apex_acer needs less. `relation` tells bounds from equalities."""
    if OURS not in table:
        return {}
    own, peers = table[OURS], [name for name in table if name != OURS]
    return {
        name: {"relation": relation(own, table[name])}
        | {figure: round(own[figure] / table[name][figure], 3) for figure in FIGURES}
        for name in peers
    }


def relation(own: Record, peer: Record) -> str:
    """How the true ratio stands to the one measured, as runs without the target are lower bounds: `=`, `<`, `>` or `?`."""
    whole = own["reached"] == own["runs"], peer["reached"] == peer["runs"]
    return {(True, True): "=", (True, False): "<", (False, True): ">", (False, False): "?"}[whole]


def show(table: dict[str, Record], over: dict[str, Record]) -> None:
    """Prints the medians and the ratios."""
    print(f"\n{'median':<24}{'reached':>9}{'env steps':>12}{'train s':>10}{'wall s':>10}")
    for name, row in table.items():
        steps, *times = (row[figure] for figure in FIGURES)
        print(f"{name:<24}{row['reached']:>7}/{row['runs']}{steps:>12,.0f}", *(f"{time:>9.1f}" for time in times))
    for name, row in over.items():
        steps, *times = (row[figure] for figure in FIGURES)
        print(f"{f'{OURS} / {name}':<24}{row['relation']:>9}{steps:>12.2f}", *(f"{time:>9.2f}" for time in times))


def main(seeds: int = 5, peers: tuple[str, ...] = ("sb3_ppo", "pfrl_acer"), out: Path = RESULTS) -> int:
    """Races apex_acer and its peers to a solved CartPole.

    Args:
        seeds: runs of each trainer, with seeds from 0.
        peers: who else runs; pfrl_acer takes minutes a seed.
        out: the file of results, written where every run gave a record.
    """
    make_venv()
    records, complete = race(seeds, (OURS, *peers))
    table = medians(records)
    show(table, ratios(table))
    if complete:
        facts = {"environment": "CartPole-v1", "cores": os.cpu_count(), "versions": versions()}
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(
            json.dumps({**facts, "medians": table, "ratios": ratios(table), "runs": records}, indent=2) + "\n"
        )
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
