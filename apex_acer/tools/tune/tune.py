"""Tuning: tries settings of a run, several seeds each, and writes down which was the best.

The seeds of a trial train one after another, each in a process of its own, so that a bad trial is ended in its first seed.
Whatever ends this program, the same command goes on: a trial that was left behind keeps the seeds that had finished.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from apex_acer.config import ConfigError, RunConfig, require, writing
from apex_acer.storage.history import RowReader
from apex_acer.system.output import printable, say
from apex_acer.system.signals import Signals
from apex_acer.tools.sweep.commands import STOP_S, Commands
from apex_acer.tools.sweep.report import read_curve
from apex_acer.tools.sweep.training import Training, exit_code
from apex_acer.tools.tune.plan import TunePlan
from apex_acer.tools.tune.report import BEST, Report
from apex_acer.tools.tune.study import JOURNAL, Study, Trial


def run_study(plan: TunePlan) -> int:
    """Does what is missing of the study; returns 0, 1 if no trial is complete, or 128 plus a signal's number."""
    _make(plan.folder)
    with Signals() as signals:
        study = Study(plan)
        study.begin()
        return Tuner(plan, study, signals).run()


def score(config: RunConfig, results: Sequence[dict[str, Any]]) -> float | None:
    """What is compared of a setting, from the results of its seeds.

    With a target, the mean over seeds of the environment steps to it, to be as low as possible; a seed that did not reach
    it counts twice its budget. Without a target, the mean of the last evaluations, to be as high as possible; None if a
    seed has no evaluation.
    """
    if config.stop.at_return is None:
        counted: list[float] = [result["eval_return"] for result in results]
        if None in counted:
            return None
    else:
        missed = 2 * config.stop.env_steps
        counted = [result["env_steps"] if result["reason"] == "at_return" else missed for result in results]
    return sum(counted) / len(counted)


@dataclass
class Attempt:
    """A trial that this process works on."""

    trial: Trial
    jobs: Sequence[Training]
    """One for each seed."""
    lock: int
    results: list[dict[str, Any]] = field(default_factory=list)
    """Of the seeds that have finished."""
    bests: list[float] = field(default_factory=list)
    """The best evaluation of each of them."""
    best: float = -math.inf
    """The best evaluation of the seed that trains."""
    rows: RowReader | None = None
    """The rows of the seed that trains."""
    kill_at: float | None = None
    """Monotonic time at which its run is killed; None unless the trial is too bad to go on."""

    @property
    def job(self) -> Training:
        """The run of the seed that trains, or is next."""
        return self.jobs[len(self.results)]

    def keep(self, result: dict[str, Any]) -> None:
        """Takes the result of the seed that has finished."""
        curve_of, curve = read_curve(self.job.out / "metrics.jsonl")
        self.bests.append(max(point[1] for point in curve) if curve_of == "evaluator" else -math.inf)
        self.results.append(result)
        self.best = -math.inf
        self.watch(None)

    def watch(self, rows: RowReader | None) -> None:
        """Changes the rows that are read."""
        if self.rows:
            self.rows.close()
        self.rows = rows

    def close(self) -> None:
        """Closes its files; another process may then go on with the trial, unless it has ended."""
        self.watch(None)
        os.close(self.lock)


class Tuner:
    """Starts the runs of trials, tells the study how they learn, and ends all runs at a signal."""

    def __init__(self, plan: TunePlan, study: Study, signals: Signals) -> None:
        self._plan, self._study, self._signals = plan, study, signals
        self._budget = plan.base.stop.env_steps
        self._report = Report(plan, study)
        self._commands = Commands()
        self._attempts: dict[str, Attempt] = {}  # by the name of the run that trains

    def run(self) -> int:
        """Works until all trials are done; returns the exit code."""
        plan, begun = self._plan, len(self._study.trials())
        each = f"{len(plan.seeds)} seeds each, {plan.at_once} at once, in {plan.folder}"
        say(f"{begun} of {plan.trials} trials begun, {each}")
        try:
            self._commands.work(plan.at_once, self._signals, self._begin, self._take, self._look)
        finally:
            for attempt in self._attempts.values():
                attempt.close()
        return self._conclude()

    def _begin(self) -> bool:
        """Begins a trial, or goes on with one that was left behind; returns whether there was one."""
        if not (taken := self._study.take(self._plan.trials)):
            return False
        trial, lock = taken
        try:
            config = self._plan.config(trial.chosen)
        except ConfigError as error:
            self._end(Attempt(trial, [], lock), str(error))
            return True
        self._next(Attempt(trial, self._plan.jobs(trial.number, config), lock))
        return True

    def _next(self, attempt: Attempt) -> None:
        """Takes what has finished of an attempt's seeds, and starts the first that is missing or completes the trial."""
        while (result := attempt.job.finished()) is not None:
            attempt.keep(result)
            if len(attempt.results) == len(attempt.jobs):
                self._complete(attempt)
                return
        if self._signals.received:
            attempt.close()  # left behind
            return
        attempt.job.train(self._commands, attempt.lock)
        attempt.watch(RowReader(attempt.job.out / "metrics.jsonl"))
        self._attempts[attempt.job.name] = attempt

    def _look(self) -> None:
        for attempt in self._attempts.values():
            self._look_at(attempt)

    def _look_at(self, attempt: Attempt) -> None:
        """Reports the evaluations of the seed that trains, and interrupts it if the trial is too bad to go on."""
        name = attempt.job.name
        if attempt.kill_at is not None:
            if time.monotonic() > attempt.kill_at and name in self._commands.running:
                self._commands.kill(name)
            return
        for row in attempt.rows.read() if attempt.rows else ():
            if row.get("eval_return") is not None and self._is_bad(attempt, row):
                attempt.kill_at = time.monotonic() + STOP_S
                if name in self._commands.running:
                    self._commands.interrupt(name)
                return

    def _is_bad(self, attempt: Attempt, row: dict[str, Any]) -> bool:
        """Reports an evaluation; returns whether to end the trial."""
        attempt.best = max(attempt.best, row["eval_return"])
        every, budget = [*attempt.bests, attempt.best], self._budget
        env_steps = len(attempt.bests) * budget + min(row["eval_env_steps"], budget - 1)
        mean = sum(every) / len(every)
        return math.isfinite(mean) and self._study.report(attempt.trial.number, env_steps, mean)

    def _take(self, name: str, code: int) -> None:
        """Goes on after the run of a seed has ended."""
        if code and self._signals.received:
            return  # it was interrupted, and the trial is left behind
        attempt = self._attempts.pop(name)
        result = attempt.job.printed(code)
        is_last = len(attempt.results) == len(attempt.jobs) - 1
        if "error" in result and attempt.kill_at is None:
            self._end(attempt, result["error"])
        elif "error" in result or (attempt.kill_at is not None and not is_last):
            self._end(attempt)
        else:
            self._next(attempt)

    def _complete(self, attempt: Attempt) -> None:
        value = score(attempt.jobs[0].config, attempt.results)
        if value is None:
            self._end(attempt, "a seed ended before its first evaluation")
            return
        self._study.complete(attempt.trial.number, value)
        self._close(attempt)

    def _end(self, attempt: Attempt, error: str = "") -> None:
        self._study.end(attempt.trial.number, error)
        self._close(attempt)

    def _close(self, attempt: Attempt) -> None:
        attempt.close()
        self._report.save()
        say(f"trial {attempt.trial.number}: {printable(self._report.line(attempt.trial.number))}")

    def _conclude(self) -> int:
        self._report.save()
        self._report.draw()
        say(self._report.text())
        best = self._study.best()
        if best is not None:
            file = self._plan.folder / BEST
            fresh = self._plan.seeds[-1] + 1
            say(f"best: trial {best.number}, written to {file}; on fresh seeds: apex-acer sweep {file} --seed {fresh}")
        return exit_code(self._signals.received, self._plan.folder, "study", int(best is None))


def _make(folder: Path) -> None:
    with writing("out", folder):
        folder.mkdir(parents=True, exist_ok=True)
        is_other = not (folder / JOURNAL).exists() and any(folder.iterdir())
    require(not is_other, "out", str(folder), "the folder is not empty; give a new one")
