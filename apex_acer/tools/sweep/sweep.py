"""A sweep: trains several seeds of each variant of a run, each in a process of its own, and sums up the results.

Runs are started seed by seed, so that an interrupted sweep has about as many runs of each variant. `results.json` holds the
result of each run; the same command on the same folder does only what is missing there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import shlex
import shutil
import signal
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from apex_acer.config import RunConfig, require, writing
from apex_acer.config.runfile import dump_run, to_dict
from apex_acer.environments.check import check_environment
from apex_acer.system.files import write
from apex_acer.system.output import printable, say
from apex_acer.system.signals import Signals
from apex_acer.tools.sweep.commands import Commands, Ended
from apex_acer.tools.sweep.report import Results, draw_curves, read_curve, table
from apex_acer.tools.sweep.variants import Variant, make_variants

PROGRAM = (sys.executable, "-P", "-m", "apex_acer")
STOP_S = 15.0  # a run that was interrupted and has not ended within this is killed
FINAL_SEED_OFFSET = 1000  # final episodes must differ from those by which weights were chosen
ERROR_LINES = 3  # the last line alone often only says where to look
PLAIN_WIDTH = 160  # of the table if there is no terminal


class Job(NamedTuple):
    """One run of the sweep."""

    variant: str
    config: RunConfig

    @property
    def name(self) -> str:
        """The path of its folder within the sweep's folder."""
        return f"{self.variant}/seed_{self.config.seed}"


@dataclass(frozen=True)
class SweepPlan:
    """What a sweep does; everything is checked."""

    command: str
    """The command line that the user typed."""
    folder: Path
    base: RunConfig
    variants: Sequence[Variant]
    seeds: Sequence[int]
    final_episodes: int
    """Episodes to play with the weights of each finished run; 0: none."""
    at_once: int
    """Runs at the same time."""

    def jobs(self) -> list[Job]:
        """All runs, ordered by seed and then by variant."""
        return [
            Job(variant.name, dataclasses.replace(variant.config, seed=seed, out=""))
            for seed in self.seeds
            for variant in self.variants
        ]


def plan_sweep(
    base: RunConfig,
    arguments: Sequence[str],
    *,
    seeds: int = 5,
    vary: Sequence[str] = (),
    at_once: int = 0,
    final_episodes: int = 0,
) -> SweepPlan:
    """The sweep that the command line asks for; starts nothing. Raises `ConfigError`.

    Args:
        base: the run, with its first seed; `out` is the sweep's folder.
        arguments: as typed; the first is the run's name.
        seeds: number of seeds.
        vary: see `make_variants`.
        at_once: runs at the same time; 0: as many as the cores allow, two cores for a run unless its engine is serial.
        final_episodes: see `SweepPlan`.
    """
    for name, value, least in (("seeds", seeds, 1), ("jobs", at_once, 0), ("final_episodes", final_episodes, 0)):
        require(value >= least, name, value, f"give {least} or more")
    name = Path(arguments[0]).stem
    variants = make_variants(base, vary, name)
    folder = Path(base.out or f"sweeps/{name}-{time.strftime('%Y%m%d-%H%M%S')}")
    cores = os.cpu_count() or 1
    each = 1 if all(variant.config.engine == "serial" for variant in variants) else 2
    command = shlex.join(["apex-acer", "sweep", *arguments])
    numbers = range(base.seed, base.seed + seeds)
    plan = SweepPlan(command, folder, base, variants, numbers, final_episodes, at_once or max(1, cores // each))
    _check(plan.jobs())
    return plan


def sweep(plan: SweepPlan) -> int:
    """Does what is missing of the sweep; returns the exit code: 0, 1 if a run failed, or 128 plus a signal's number."""
    with _locked(plan.folder) as lock, Signals() as signals:
        run = {key: value for key, value in to_dict(plan.base).items() if key != "out"}
        identity = {"run": run, "seeds": list(plan.seeds), "final_episodes": plan.final_episodes}
        results = Results(plan.folder, plan.command, identity, plan.variants)
        with writing("out", plan.folder):
            results.save()
        return Sweep(plan, results, signals, Commands(lock)).run()


class Sweep:
    """Starts the runs, keeps their results, and ends all runs at a signal."""

    def __init__(self, plan: SweepPlan, results: Results, signals: Signals, commands: Commands) -> None:
        self._plan, self._results, self._commands = plan, results, commands
        self._signals = signals.received
        signals.wake = commands.wake
        self._jobs = {job.name: job for job in plan.jobs()}
        self._failed: dict[str, str] = {}

    def run(self) -> int:
        """Runs the sweep; no process remains, however it ends. The first signal saves, the second kills."""
        waiting = deque(job for job in self._jobs.values() if not self._finished(job))
        say(f"{len(waiting)} of {len(self._jobs)} runs to do, {self._plan.at_once} at once, in {self._plan.folder}")
        try:
            self._work(waiting)
            self._interrupt()
        finally:
            self._commands.close()
        return self._conclude()

    def _work(self, waiting: deque[Job]) -> None:
        while not self._signals and (waiting or self._commands.running):
            while waiting and len(self._commands.running) < self._plan.at_once:
                self._start(waiting.popleft())
            ended = self._commands.wait()
            if ended and self._take(ended) and not self._finished(self._jobs[ended.name]):
                waiting.appendleft(self._jobs[ended.name])  # its final episodes

    def _interrupt(self) -> None:
        """Makes all runs save and end, and keeps the results of those that had finished."""
        self._commands.interrupt()
        deadline = time.monotonic() + STOP_S
        while self._commands.running and len(self._signals) < 2 and (left := deadline - time.monotonic()) > 0:
            ended = self._commands.wait(left)
            if ended:
                self._take(ended)

    def _start(self, job: Job) -> None:
        folder, run_file = self._plan.folder / job.name, self._path(job, ".toml")
        if "result" in self._known(job):
            seed = str(job.config.seed + FINAL_SEED_OFFSET)
            weights = str(folder / "weights.safetensors")
            episodes = str(self._plan.final_episodes)
            # the run file named these modules
            arguments = ["evaluate", weights, "--episodes", episodes, "--seed", seed, "--import-modules"]
        else:
            shutil.rmtree(folder, ignore_errors=True)  # left by a run that did not finish
            folder.parent.mkdir(exist_ok=True)
            self._path(job, ".log").unlink(missing_ok=True)
            run_file.write_text(dump_run(job.config), encoding="utf-8")
            arguments = ["train", str(run_file), "--out", str(folder)]
        threads = {"OMP_NUM_THREADS": "1"} if job.config.engine == "serial" else {}
        command = [*PROGRAM, *arguments, "--json"]
        self._commands.start(job.name, command, self._path(job, ".json"), self._path(job, ".log"), threads)

    def _take(self, ended: Ended) -> bool:
        """Keeps the result of a command; returns whether it succeeded."""
        if ended.code and self._signals:
            return False  # because it was interrupted
        job = self._jobs[ended.name]
        run = {key: value for key, value in self._known(job).items() if key != "error"}
        found = _result(ended.code, self._path(job, ".json"), self._path(job, ".log"))
        if "error" in found:
            self._failed[job.name] = found["error"]
            run |= found
        elif "result" in run:
            run["final_return"] = found["mean"]
        else:
            found["weights"] = f"{job.name}/{Path(found['weights']).name}"
            curve_of, curve = read_curve(self._plan.folder / job.name / "metrics.jsonl")
            run |= {"result": found, "curve_of": curve_of, "curve": curve}
        self._results.keep(job.variant, job.config.seed, run)
        say(f"{job.name}: {printable(_line(run))}")
        return "error" not in run

    def _path(self, job: Job, suffix: str) -> Path:
        return self._plan.folder / f"{job.name}{suffix}"

    def _known(self, job: Job) -> dict[str, Any]:
        return self._results.run(job.variant, job.config.seed)

    def _finished(self, job: Job) -> bool:
        known = self._known(job)
        return "result" in known and ("final_return" in known or not self._plan.final_episodes)

    def _conclude(self) -> int:
        data, folder = self._results.data, self._plan.folder
        ids = dict.fromkeys(variant.config.environment.id for variant in self._plan.variants)
        drawing = draw_curves(data, list(ids))
        if drawing:
            write(folder / "curves.png", drawing)
        console = Console()
        console = Console(width=None if console.is_terminal else PLAIN_WIDTH)
        with console.capture() as printed:
            console.print(table(data))
        say(printed.get().rstrip("\n"))
        for name, error in self._failed.items():
            say(f"apex-acer: {name} failed: {printable(error)}; see {folder / name}.log", sys.stderr)
        if self._signals:
            say(
                f"apex-acer: {self._signals[0].name}: the same command with --out {folder} continues the sweep",
                sys.stderr,
            )
            return 128 + self._signals[0]
        return 1 if self._failed else 0


def _check(jobs: Sequence[Job]) -> None:
    """Checks at once what each run would otherwise check when it starts."""
    for config in {(job.config.environment, job.config.algorithm.name): job.config for job in jobs}.values():
        check_environment(config)
    for load in dict.fromkeys(job.config.load for job in jobs):
        require(not load or Path(load).is_file(), "load", load, "give a weights file")


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[int]:
    """Makes the folder and locks it; the lock lasts as long as any process holds the descriptor."""
    with writing("out", folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder, os.O_RDONLY)
    try:
        require(_lock(lock), "out", str(folder), "it is in use by a sweep, or by a run that a sweep left behind")
        yield lock
    finally:
        os.close(lock)


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _result(code: int, output: Path, log: Path) -> dict[str, Any]:
    """The JSON object in the last line of a command's output, or `error`: how it ended, and the last lines of its log."""
    with contextlib.suppress(IndexError, TypeError, ValueError):
        if code == 0:
            return dict(json.loads(output.read_text(encoding="utf-8").splitlines()[-1]))
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return {"error": " | ".join([how, *lines[-ERROR_LINES:]])}


def _line(run: Mapping[str, Any]) -> str:
    if "error" in run:
        return f"failed: {run['error']}"
    if "final_return" in run:
        return f"final return {run['final_return']:.2f}"
    result = run["result"]
    score = "" if result["eval_return"] is None else f", evaluation {result['eval_return']:.2f}"
    return f"{result['reason']}: {result['env_steps']:,} env steps in {result['wall_s']:.1f} s{score}"
