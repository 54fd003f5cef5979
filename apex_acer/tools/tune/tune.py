"""Tuning: tries settings of a run, several seeds each, and writes down the best.

The seeds of a trial train one after another, each in a process of its own, so that a bad trial is ended in its first seed.
Whatever ends this program, the same command goes on: a trial that was left behind keeps its finished seeds and continues
the next one from its newest checkpoint.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from apex_acer.config import ConfigError, RunConfig, require, writing
from apex_acer.storage.history import RowReader
from apex_acer.system.output import printable, say
from apex_acer.system.signals import Signals
from apex_acer.tools.sweep.commands import Commands
from apex_acer.tools.sweep.report import read_curve
from apex_acer.tools.sweep.training import STOP_S, Training, exit_code, stop_s
from apex_acer.tools.tune.plan import TunePlan
from apex_acer.tools.tune.report import BEST, Report
from apex_acer.tools.tune.study import JOURNAL, Study, Trial


def run_study(plan: TunePlan) -> int:
    """Does what is missing of the study; returns 0, 1 if no trial is complete, or 128 plus a signal's number."""
    with writing("out", plan.folder):
        plan.folder.mkdir(parents=True, exist_ok=True)
        names = {path.name for path in plan.folder.iterdir()}  # one look: another command may begin the study meanwhile
    require(not names or JOURNAL in names, "out", str(plan.folder), "the folder is not empty; give a new one")
    with Signals() as signals:
        return Tuner(plan, Study(plan), signals).run()


def score(config: RunConfig, results: Sequence[dict[str, Any]]) -> float | None:
    """The score of a trial from the results of its seeds; None if a seed has no evaluation.

    With a target it is the mean number of environment steps to it, the fewer the better; a seed that did not reach the
    target counts twice its budget. Otherwise it is the mean of the last evaluations.
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
    """The run of each seed."""
    lock: int
    results: list[dict[str, Any]] = field(default_factory=list)
    """Results of the seeds that have finished."""
    bests: list[float] = field(default_factory=lambda: [-math.inf])
    """The best evaluation of each seed, the last of which trains or is next."""
    rows: RowReader | None = None
    """The rows of the seed that trains."""
    kill_at: float | None = None
    """Monotonic time at which the run is killed, if the trial is bad."""

    @property
    def job(self) -> Training:
        """The run of the seed that trains or is next."""
        return self.jobs[len(self.results)]

    def keep(self, result: dict[str, Any]) -> None:
        """Keeps the result of the seed that has finished."""
        curve_of, curve = read_curve(self.job.out / "metrics.jsonl")
        best = max(point[1] for point in curve) if curve_of == "evaluator" else -math.inf
        self.bests[-1:] = [best, -math.inf]
        self.results.append(result)

    def watch(self, rows: RowReader | None) -> None:
        if self.rows:
            self.rows.close()
        self.rows = rows

    def close(self) -> None:
        """Closes its files, so that another process may go on with the trial unless it has ended."""
        self.watch(None)
        os.close(self.lock)


class Tuner:
    """Runs the seeds of trials, tells the study their scores, and ends all runs at a signal."""

    def __init__(self, plan: TunePlan, study: Study, signals: Signals) -> None:
        self._plan, self._study, self._signals = plan, study, signals
        self._report = Report(plan, study)
        self._commands = Commands()
        self._attempts: dict[str, Attempt] = {}  # by name of the run that trains

    def run(self) -> int:
        plan, begun = self._plan, len(self._study.trials())
        each = f"{len(plan.seeds)} seeds each, {plan.at_once} at once, in {plan.folder}"
        say(f"{begun} of {plan.trials} trials begun, {each}")
        try:
            self._commands.work(
                plan.at_once, self._signals, self._begin, self._take, self._look, stop_s=stop_s([plan.base])
            )
        finally:
            for attempt in self._attempts.values():
                attempt.close()
        return self._conclude()

    def _begin(self) -> bool:
        """Begins a trial or goes on with one that was left behind; returns whether there was one."""
        if not (taken := self._study.take(self._plan.trials)):
            return False
        trial, lock = taken
        try:
            config = self._plan.config(trial.chosen)
        except ConfigError as error:
            self._end(Attempt(trial, [], lock), error=str(error))
            return True
        self._next(Attempt(trial, self._plan.jobs(trial.number, config), lock))
        return True

    def _next(self, attempt: Attempt) -> None:
        """Keeps the seeds that have finished, and starts the next one or completes the trial."""
        while (result := attempt.job.finished()) is not None:
            attempt.keep(result)
            if len(attempt.results) == len(attempt.jobs):
                value = score(self._plan.base, attempt.results)
                error = "a seed ended before its first evaluation" if value is None else ""
                self._end(attempt, value, error)
                return
        if self._signals.received:
            attempt.close()  # left behind
            return
        attempt.job.train(self._commands, attempt.lock)
        attempt.watch(RowReader(attempt.job.out))
        self._attempts[attempt.job.name] = attempt

    def _look(self) -> None:
        """Reports new evaluations, interrupts the run of a trial that is bad and kills it if it does not end."""
        for name, attempt in self._attempts.items():
            is_running = name in self._commands.running
            if attempt.kill_at is not None:
                if time.monotonic() > attempt.kill_at and is_running:
                    self._commands.kill(name)
            elif attempt.rows and any(self._is_bad(attempt, row) for row in attempt.rows.read()):
                attempt.kill_at = time.monotonic() + STOP_S
                if is_running:
                    self._commands.interrupt(name)

    def _is_bad(self, attempt: Attempt, row: dict[str, Any]) -> bool:
        """Reports the evaluation in `row`, if it has one; returns whether to end the trial."""
        if row.get("eval_return") is None:
            return False
        attempt.bests[-1] = max(attempt.bests[-1], row["eval_return"])
        mean, budget = sum(attempt.bests) / len(attempt.bests), self._plan.base.stop.env_steps
        env_steps = len(attempt.results) * budget + min(row["eval_env_steps"], budget - 1)
        return math.isfinite(mean) and self._study.report(attempt.trial.number, env_steps, mean)

    def _take(self, name: str, code: int) -> None:
        if code and self._signals.received:
            return  # it was interrupted, and the trial is left behind
        attempt = self._attempts.pop(name)
        result = attempt.job.printed(code)
        is_last = len(attempt.results) == len(attempt.jobs) - 1
        if "error" in result and attempt.kill_at is None:
            self._end(attempt, error=result["error"])
        elif "error" in result or (attempt.kill_at is not None and not is_last):
            self._end(attempt)
        else:
            self._next(attempt)

    def _end(self, attempt: Attempt, value: float | None = None, error: str = "") -> None:
        number = attempt.trial.number
        self._study.end(number, value, error)
        attempt.close()
        self._report.save()
        say(f"trial {number}: {printable(self._report.line(number))}")

    def _conclude(self) -> int:
        self._report.save()
        self._report.draw()
        say(self._report.text())
        ranked, folder = self._study.ranked(), self._plan.folder
        if ranked:
            best, file, fresh = ranked[0].number, folder / BEST, self._plan.seeds[-1] + 1
            say(f"best: trial {best}, written to {file}; on fresh seeds: apex-acer sweep {file} --seed {fresh}")
        return exit_code(self._signals.received, folder, "study", int(not ranked))
