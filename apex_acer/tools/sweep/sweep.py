"""A sweep: trains several seeds of each variant of a run, each in a process of its own, and sums up the results.

Runs are started seed by seed, so that an interrupted sweep has about as many runs of each variant. `results.json` holds the
result of each run; the same command on the same folder does only what is missing there.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apex_acer.config import ConfigError, RunConfig, require, writing
from apex_acer.system.files import write
from apex_acer.system.output import printable, say
from apex_acer.system.signals import Signals
from apex_acer.tools.sweep.commands import Commands
from apex_acer.tools.sweep.report import Data, as_text, draw_curves, portable, summarise, table, write_json
from apex_acer.tools.sweep.training import Training, check_before, exit_code, lock_folder, runs_at_once, without_out
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
    base: RunConfig, arguments: Sequence[str], *, seeds: int, vary: Sequence[str], at_once: int, final_episodes: int
) -> SweepPlan:
    """The sweep that the command line asks for, whose `arguments` begin with the run's name; raises `ConfigError`.

    `base` has the first of the `seeds` and the sweep's folder; `at_once` 0 means as many runs as the cores allow.
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


def run_sweep(plan: SweepPlan) -> int:
    """Does what is missing of the sweep; returns the exit code: 0, 1 if a run failed, or 128 plus a signal's number."""
    with writing("out", plan.folder):
        lock = lock_folder(plan.folder)
    in_use = "it is in use by a sweep, or by a run that a sweep left behind"
    if lock is None:
        raise ConfigError(f"out: {str(plan.folder)!r} is not allowed; {in_use}")
    try:
        with Signals() as signals:
            results = Results(plan)
            with writing("out", plan.folder):
                results.save()
            return Sweep(plan, results, signals, lock).run()
    finally:
        os.close(lock)


class Results:
    """The file `results.json` of a sweep, which is complete on disk at any time."""

    def __init__(self, plan: SweepPlan) -> None:
        """Reads the results in the sweep's folder; raises `ConfigError` unless it is empty or holds the same sweep."""
        self._path = plan.folder / "results.json"
        self._targets = {variant.name: variant.config.stop.at_return is not None for variant in plan.variants}
        begun = {variant.name: {"overrides": variant.overrides, "runs": {}} for variant in plan.variants}
        asked = {"run": without_out(plan.base), "seeds": list(plan.seeds), "final_episodes": plan.final_episodes}
        self.data: Data = portable({"command": plan.command, **asked, "variants": begun})
        before = self._read()
        if before is not None:
            same = _identity(before) == _identity(self.data)
            require(same, "out", str(plan.folder), "it holds another sweep; give a new folder")
            self.data["variants"] = before["variants"]

    def known(self, job: Training) -> Data:
        """What is known of a run, any of: `result`, `curve_of`, `curve`, `final_return`, `error`."""
        return dict(self.data["variants"][job.group]["runs"].get(str(job.config.seed), {}))

    def keep(self, job: Training, run: Data) -> None:
        """Replaces what is known of a run, and saves."""
        self.data["variants"][job.group]["runs"][str(job.config.seed)] = run
        self.save()

    def save(self) -> None:
        """Updates the statistics and writes the file."""
        for name, variant in self.data["variants"].items():
            variant["summary"] = summarise(variant["runs"].values(), len(self.data["seeds"]), self._targets[name])
        write_json(self._path, self.data)

    def _read(self) -> Data | None:
        folder = self._path.parent
        try:
            if not self._path.exists():
                require(not any(folder.iterdir()), "out", str(folder), "the folder is not empty; give a new one")
                return None
            before: Data = json.loads(self._path.read_text(encoding="utf-8"))
            _identity(before)
            return before
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            raise ConfigError(
                f"out: {str(self._path)!r} was not written by a sweep; give a new or empty folder"
            ) from None


def _identity(data: Data) -> Data:
    """What must be the same for a sweep to go on."""
    overrides = {name: variant["overrides"] for name, variant in data["variants"].items()}
    return {"overrides": overrides, **{key: data[key] for key in ("run", "seeds", "final_episodes")}}


class Sweep:
    """Starts the runs, keeps their results, and ends all runs at a signal."""

    def __init__(self, plan: SweepPlan, results: Results, signals: Signals, lock: int) -> None:
        self._plan, self._results, self._signals, self._lock = plan, results, signals, lock
        self._commands = Commands()
        self._jobs = {job.name: job for job in plan.jobs()}
        self._waiting = deque(job for job in self._jobs.values() if not self._finished(job))
        self._failed: dict[str, str] = {}

    def run(self) -> int:
        """Does what is missing; returns the exit code."""
        at_once = self._plan.at_once
        say(f"{len(self._waiting)} of {len(self._jobs)} runs to do, {at_once} at once, in {self._plan.folder}")
        self._commands.work(at_once, self._signals, self._begin, self._take)
        return self._conclude()

    def _begin(self) -> bool:
        if not self._waiting:
            return False
        self._start(self._waiting.popleft())
        return True

    def _start(self, job: Training) -> None:
        if "result" not in self._results.known(job):
            job.train(self._commands, self._lock)
            return
        seed, episodes = str(job.config.seed + FINAL_SEED_OFFSET), str(self._plan.final_episodes)
        weights = str(job.out / "weights.safetensors")
        # the run file named these modules
        arguments = ["evaluate", weights, "--episodes", episodes, "--seed", seed, "--import-modules"]
        job.start(self._commands, arguments, self._lock)

    def _take(self, name: str, code: int) -> None:
        """Keeps the result of a command that has ended."""
        if code and self._signals.received:
            return  # it was interrupted
        job = self._jobs[name]
        run = {key: value for key, value in self._results.known(job).items() if key != "error"}
        result = job.printed(code)
        if "error" in result:
            self._failed[job.name] = result["error"]
            run |= result
        elif "result" in run:
            run["final_return"] = result["mean"]
        else:
            run |= job.record(result)
        self._results.keep(job, run)
        say(f"{job.name}: {printable(_line(run))}")
        if "error" not in run and not self._finished(job):
            self._waiting.appendleft(job)  # its final episodes

    def _finished(self, job: Training) -> bool:
        known = self._results.known(job)
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
        return exit_code(self._signals.received, folder, "sweep", int(bool(self._failed)))


def _line(run: Mapping[str, Any]) -> str:
    if "error" in run:
        return f"failed: {run['error']}"
    if "final_return" in run:
        return f"final return {run['final_return']:.2f}"
    result = run["result"]
    score = "" if result["eval_return"] is None else f", evaluation {result['eval_return']:.2f}"
    return f"{result['reason']}: {result['env_steps']:,} env steps in {result['wall_s']:.1f} s{score}"
