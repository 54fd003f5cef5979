"""`python -m checks.benchmarks.planned`: real runs on this machine beside what `apex-acer plan` says of them.

Each run is planned just before it is made, because a machine that others use is not as fast at all times, and both are done
`rounds` times: the median of planned / measured counts. What others took of the machine is printed, too. Evaluation
is off. `--accept` keeps the result, also of plans that miss `GOAL`.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import tyro

from apex_acer.system.process import available_cores

RESULT = Path(__file__).parents[2] / "docs" / "results" / "planned.json"
PROGRAM = str(Path(sys.executable).with_name("apex-acer"))
GOAL = 0.15
WARM_UP_S, DEADLINE_S = 8.0, 150.0
TICKS_PER_S = 100
Figures = dict[str, Any]


class Case(NamedTuple):
    """A run."""

    preset: str
    actors: int
    replay_ratio: float


CASES = [Case("pong", actors, ratio) for ratio in (0, 1, 4) for actors in (1, 2)]
CASES += [Case("cartpole", 2, 8), Case("cartpole", 2, 1)]


def planned(run: Path, case: Case) -> Figures:
    """What `apex-acer plan` says of the run file."""
    flags = f"--actors {case.actors} --cores-per-node {available_cores()} --gpus 0 --json".split()
    done = subprocess.run([PROGRAM, "plan", str(run), *flags], stdout=subprocess.PIPE, check=True, timeout=DEADLINE_S)
    said: Figures = json.loads(done.stdout)
    return said


def measured(run: Path, case: Case, seconds: float) -> float:
    """Environment steps per second of a real run after its warm-up."""
    folder = run.with_suffix("")
    flags = (
        f"--actors {case.actors} --evaluation.every 0 --stop.at-return None --steps 1000000000 --out {folder}".split()
    )
    flags += ["--minutes", str(seconds / 60), "--learner.device", "cpu", "--engine", "local"]
    subprocess.run([PROGRAM, "train", str(run), *flags], stdout=subprocess.DEVNULL, check=True, timeout=DEADLINE_S)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    first, *_, last = (row for row in rows if row["source"] == "learner" and row["wall_s"] >= WARM_UP_S)
    return float((last["env_steps"] - first["env_steps"]) / (last["wall_s"] - first["wall_s"]))


class Others:
    """Cores that processes of others take on average, from its making on."""

    def __init__(self) -> None:
        self._start = self._now()

    def cores(self) -> float:
        """So far."""
        passed = [now - then for now, then in zip(self._now(), self._start, strict=True)]
        return max(0.0, (passed[1] - passed[2]) / passed[0])

    @staticmethod
    def _now() -> tuple[float, float, float]:
        """Seconds of the clock, of all processors at work or taken away, and of this process's children."""
        user, nice, system, _, _, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        busy = user + nice + system + irq + softirq + steal
        return time.monotonic(), busy / TICKS_PER_S, used.ru_utime + used.ru_stime


def compare(case: Case, seconds: float) -> Figures:
    """One run, planned and made."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder, "run.toml")
        lines = f"[replay]\ncapacity = 10000\nstart = 1000\n[algorithm]\nreplay_ratio = {float(case.replay_ratio)}\n"
        run.write_text(f'base = "{case.preset}"\n{lines}')
        others = Others()
        said = planned(run, case)
        beside_plan, others = others.cores(), Others()
        rate = measured(run, case, seconds)
    found = {"planned": said["plan"]["env_steps_per_s"], "measured": rate, "limits": said["plan"]["limits"]}
    return {**case._asdict(), **found, "others": max(beside_plan, others.cores()), "work": said["work"]}


def ratio(found: Figures) -> float:
    """Planned / measured."""
    return float(found["planned"] / found["measured"])


def main(seconds: float = 25.0, rounds: int = 3, accept: bool = False, only: str = "") -> int:
    """Plans and makes each run, and prints planned / measured.

    Args:
        seconds: of each run.
        rounds: how often each is planned and made.
        accept: keep the result.
        only: cases whose preset is this.
    """
    results = list[Figures]()
    for case in CASES:
        if only not in ("", case.preset):
            continue
        found = sorted((compare(case, seconds) for _ in range(rounds)), key=ratio)
        results.append(found[len(found) // 2])
        name = f"{case.preset}, {case.actors} actor{'s' * (case.actors > 1)}, replay ratio {case.replay_ratio:g}"
        ratios = ", ".join(f"{ratio(each):.2f}" for each in found)
        others = max(each["others"] for each in found)
        rates = f"{results[-1]['planned']:>7,.0f} / {results[-1]['measured']:>7,.0f}"
        print(f"{name:<34} planned / measured {rates} ({ratios}); others took {others:.2f} cores", flush=True)
    within = all(abs(ratio(result) - 1) <= GOAL for result in results)
    print(f"{'all' if within else 'not all'} within {GOAL:.0%}")
    Path("build").mkdir(exist_ok=True)
    text = json.dumps({"cores": available_cores(), "goal": GOAL, "runs": results}, indent=2) + "\n"
    for path in [Path("build/planned.json"), *([RESULT] if accept else [])]:
        path.write_text(text)
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
