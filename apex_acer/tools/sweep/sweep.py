"""A sweep: trains several seeds of each variant of a run, each in a process of its own, and sums up the results.

Runs are started seed by seed, so that an interrupted sweep has about as many runs of each variant. `results.json` holds the
result of each run; the same command on the same folder does only what is missing there.
"""

from __future__ import annotations

import dataclasses
import shlex
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apex_acer.config import RunConfig, require, writing
from apex_acer.config.runfile import to_dict
from apex_acer.system.files import write
from apex_acer.system.output import printable, say
from apex_acer.system.signals import Signals
from apex_acer.tools.sweep import training
from apex_acer.tools.sweep.commands import Commands, Ended
from apex_acer.tools.sweep.report import Results, as_text, draw_curves, table
from apex_acer.tools.sweep.training import Training, check_before, locked, runs_at_once
from apex_acer.tools.sweep.variants import Variant, make_variants

FINAL_SEED_OFFSET = 1000  # final episodes must differ from those by which weights were chosen


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

    def jobs(self) -> list[Training]:
        """All runs, ordered by seed and then by variant."""
        return [
            Training(self.folder, variant.name, dataclasses.replace(variant.config, seed=seed, out=""))
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
    at_once = at_once or runs_at_once(variant.config for variant in variants)
    command = shlex.join(["apex-acer", "sweep", *arguments])
    numbers = range(base.seed, base.seed + seeds)
    plan = SweepPlan(command, folder, base, variants, numbers, final_episodes, at_once)
    check_before(job.config for job in plan.jobs())
    return plan


def sweep(plan: SweepPlan) -> int:
    """Does what is missing of the sweep; returns the exit code: 0, 1 if a run failed, or 128 plus a signal's number."""
    with locked(plan.folder) as lock, Signals() as signals:
        run = {key: value for key, value in to_dict(plan.base).items() if key != "out"}
        identity = {"run": run, "seeds": list(plan.seeds), "final_episodes": plan.final_episodes}
        results = Results(plan.folder, plan.command, identity, plan.variants)
        with writing("out", plan.folder):
            results.save()
        return Sweep(plan, results, signals, lock).run()


class Sweep:
    """Starts the runs, keeps their results, and ends all runs at a signal."""

    def __init__(self, plan: SweepPlan, results: Results, signals: Signals, lock: int) -> None:
        self._plan, self._results, self._lock = plan, results, lock
        self._commands = Commands()
        self._signals = signals.received
        signals.wake = self._commands.wake
        self._jobs = {job.name: job for job in plan.jobs()}
        self._failed: dict[str, str] = {}

    def run(self) -> int:
        """Runs the sweep; no process remains, however it ends. The first signal saves, the second kills."""
        waiting = deque(job for job in self._jobs.values() if not self._finished(job))
        say(f"{len(waiting)} of {len(self._jobs)} runs to do, {self._plan.at_once} at once, in {self._plan.folder}")
        try:
            self._work(waiting)
            for ended in self._commands.stop(training.STOP_S, self._signals):
                self._take(ended)  # it may have finished
        finally:
            self._commands.close()
        return self._conclude()

    def _work(self, waiting: deque[Training]) -> None:
        while not self._signals and (waiting or self._commands.running):
            while waiting and len(self._commands.running) < self._plan.at_once:
                self._start(waiting.popleft())
            ended = self._commands.wait()
            if ended and self._take(ended) and not self._finished(self._jobs[ended.name]):
                waiting.appendleft(self._jobs[ended.name])  # its final episodes

    def _start(self, job: Training) -> None:
        if "result" not in self._known(job):
            job.train(self._commands, self._lock)
            return
        seed, episodes = str(job.config.seed + FINAL_SEED_OFFSET), str(self._plan.final_episodes)
        weights = str(job.out / "weights.safetensors")
        # the run file named these modules
        arguments = ["evaluate", weights, "--episodes", episodes, "--seed", seed, "--import-modules"]
        job.start(self._commands, arguments, self._lock)

    def _take(self, ended: Ended) -> bool:
        """Keeps the result of a command; returns whether it succeeded."""
        if ended.code and self._signals:
            return False  # because it was interrupted
        job = self._jobs[ended.name]
        run = {key: value for key, value in self._known(job).items() if key != "error"}
        found = job.printed(ended.code)
        if "error" in found:
            self._failed[job.name] = found["error"]
            run |= found
        elif "result" in run:
            run["final_return"] = found["mean"]
        else:
            run |= job.record(found)
        self._results.keep(job.group, job.config.seed, run)
        say(f"{job.name}: {printable(_line(run))}")
        return "error" not in run

    def _known(self, job: Training) -> dict[str, Any]:
        return self._results.run(job.group, job.config.seed)

    def _finished(self, job: Training) -> bool:
        known = self._known(job)
        return "result" in known and ("final_return" in known or not self._plan.final_episodes)

    def _conclude(self) -> int:
        data, folder = self._results.data, self._plan.folder
        ids = dict.fromkeys(variant.config.environment.id for variant in self._plan.variants)
        drawing = draw_curves(data, list(ids))
        if drawing:
            write(folder / "curves.png", drawing)
        say(as_text(table(data)))
        for name, error in self._failed.items():
            say(f"apex-acer: {name} failed: {printable(error)}; see {folder / name}.log", sys.stderr)
        if self._signals:
            say(
                f"apex-acer: {self._signals[0].name}: the same command with --out {folder} continues the sweep",
                sys.stderr,
            )
            return 128 + self._signals[0]
        return 1 if self._failed else 0


def _line(run: Mapping[str, Any]) -> str:
    if "error" in run:
        return f"failed: {run['error']}"
    if "final_return" in run:
        return f"final return {run['final_return']:.2f}"
    result = run["result"]
    score = "" if result["eval_return"] is None else f", evaluation {result['eval_return']:.2f}"
    return f"{result['reason']}: {result['env_steps']:,} env steps in {result['wall_s']:.1f} s{score}"
