"""`train` and `resume`, and the manager that takes one run from its start to its end. Imports no torch."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

from apex_acer.config import ConfigError, RunConfig
from apex_acer.config.runfile import dump_run, flat, load_run
from apex_acer.engines import engine_class
from apex_acer.engines.engine import Engine, Run
from apex_acer.engines.machine import describe
from apex_acer.manager.callbacks import EVALUATED, Callbacks, Evaluation
from apex_acer.manager.preparation import prepare, prepare_resume
from apex_acer.manager.record import Record, log_file
from apex_acer.manager.result import TrainResult
from apex_acer.manager.supervisor import LOOK_S, Supervisor
from apex_acer.manager.supervisor import RunFailed as RunFailed
from apex_acer.manager.trackers import Trackers
from apex_acer.protocol.messages import Status
from apex_acer.storage.folder import held, where
from apex_acer.storage.history import RowReader
from apex_acer.system.output import say
from apex_acer.system.signals import Signals

log = logging.getLogger(__name__)

# 10 s after a signal or a failure nothing is left of a run; 2 s of them are the engine's KILL_S
SAVE_S = 6.0  # in which the learner saves, replay not counted
TOLD_S = 1.0  # in which actors hear of the end from a learner that has saved; then they are dismissed
LEAVE_S = 2.0  # in which the processes then end; then they are killed


def train(
    config: RunConfig | str | Path,
    callbacks: Callbacks | None = None,
    started_at: float | None = None,
    *,
    progress: bool = False,
    **changes: Any,
) -> TrainResult:
    """Trains until one of the limits in the run's `stop` is reached or a signal comes, and writes the weights.

    Args:
        config: the run: a preset's name, a run file's path, or a configuration.
        callbacks: functions that hear of the run; an exception in one of them ends the run, saved, and is raised again.
        started_at: the start from which `startup_s` counts, in seconds of `time.monotonic`; by default now.
        progress: whether to show the command's live view: a table on a terminal or in a notebook, lines elsewhere.
        **changes: keys of the run, as `load_run` takes them: `seed=1, stop={"env_steps": 2000}`.

    Raises:
        ConfigError: with one line that names the key or the path; before any process starts unless only one can find out.
        RunFailed: with the traceback of the process that failed.
    """
    _require_callbacks(callbacks)
    run = prepare(load_run(config, **changes), started_at or time.monotonic())
    return watch(run, callbacks) if progress else manage(run, callbacks)


def resume(
    folder: str | Path,
    stop: Mapping[str, Any] | None = None,
    callbacks: Callbacks | None = None,
    started_at: float | None = None,
    *,
    progress: bool = False,
    schedule_steps: int | None = None,
) -> TrainResult:
    """Continues the run in `folder` from its newest checkpoint, with its own configuration.

    Args:
        folder: the folder of a run that has saved a checkpoint.
        stop: new values of keys in `config.stop`; `env_steps` is the run's total. A target that was reached no longer ends
            the run, unless `stop` has `at_return`.
        callbacks: as for `train`; they are not told of the rows written before.
        started_at: as for `train`.
        progress: as for `train`.
        schedule_steps: environment steps at which schedules end; by default those of the run so far, whatever the new total.

    Raises:
        ConfigError: if there is no checkpoint, or nothing left to do.
        RunFailed: with the traceback of the process that failed.
    """
    _require_callbacks(callbacks)
    at = started_at or time.monotonic()
    run = prepare_resume(Path(folder).absolute(), stop or {}, at, schedule_steps=schedule_steps)
    return watch(run, callbacks) if progress else manage(run, callbacks)


def _require_callbacks(callbacks: object) -> None:
    if callbacks is not None and not isinstance(callbacks, Callbacks):
        raise ConfigError(f"callbacks: {str(callbacks)[:60]!r} is not allowed; give Callbacks(on_status=…)")


def watch(run: Run, callbacks: Callbacks | None = None, stream: TextIO | None = None) -> TrainResult:
    """Trains a prepared run with its live view, on `stream` or, by default, on the program's output."""
    from apex_acer.views.console import live_view  # imports rich, which takes time

    callbacks = callbacks or Callbacks()
    secrets = [run.secret] if run.secret and (stream or sys.stdout).isatty() else []
    say("\n".join([describe(run.config), *run.notes, *secrets]), stream)
    # in this order, no signal leaves the terminal half restored
    with Signals() as signals, live_view(run.config, stream) as view:

        def show(status: Status) -> None:
            view.update(status)
            callbacks.on_status(status)

        result = manage(run, dataclasses.replace(callbacks, on_status=show), signals, view.tell)
        view.conclude(result)
    return result


def manage(
    run: Run,
    callbacks: Callbacks | None = None,
    signals: Signals | None = None,
    tell: Callable[[str], object] = lambda line: None,
) -> TrainResult:
    """Trains a prepared run, from its first process to its result; raises `ConfigError` or `RunFailed`.

    `signals` may have been entered by the caller already. `tell` gets lines that come after the last status.
    """
    callbacks = callbacks or Callbacks()
    entered = contextlib.nullcontext(signals) if signals else Signals()
    with log_file(run.folder, run.config.logging.level), held(run.folder, run.run_id), entered as signals:
        config, result = dataclasses.replace(run.config, out=""), None
        trackers = Trackers(config.logging, flat(config), run.folder)
        record = Record(run.folder, dump_run(config), trackers)
        try:
            result = Manager(run, trackers.listen(callbacks), signals, record).run()
            record.end(result)
        except BaseException as error:
            record.fail(error)
            raise
        finally:
            trackers.close(result, signals.received, tell)
    callbacks.on_stop(result)
    return result


class Manager:
    """One run, until it has reached its end, fails, or is stopped by a signal."""

    def __init__(self, run: Run, callbacks: Callbacks, signals: Signals, record: Record) -> None:
        self._folder, self._is_resumed, self._record, self._callbacks = run.folder, run.resume, record, callbacks
        self._rows = RowReader(run.folder)
        self._rows.read()  # those of before
        self._is_telling = False  # whether a callback is running
        self._engine: Engine = engine_class(run.config.engine)(run)
        self._supervisor = Supervisor(run, self._engine)
        self._signals = signals.received
        signals.wake, signals.pause = self._wake, self._engine.pause
        self._status: Status = {}
        self._ends_at = 0.0
        for line in (f"started {describe(run.config)}", *run.notes):
            log.info(line)

    def run(self) -> TrainResult:
        """Trains; leaves no process behind, however the run ends. A first signal saves, a second one kills."""
        with contextlib.closing(self._engine), contextlib.closing(self._rows):
            try:
                self._watch()
                result = self._end()
                self._tell()
                return result
            except BaseException as error:  # a callback may leave by `sys.exit`, too
                if isinstance(error, KeyboardInterrupt) and self._killing:
                    return self._result or self._unsaved()
                self._stop("failure", saves=self._record.begun)  # else there is nothing new to save
                if saved := self._result:
                    log.info("saved before leaving: %s", saved.weights)
                raise

    def _tell(self, status: Status | None = None) -> None:
        """Calls the callbacks for which there is something new; raises what a callback raises."""
        self._is_telling = True
        try:
            if status:
                self._callbacks.on_status(status)
            if rows := self._rows.read():
                self._callbacks.on_rows(rows)
            for row in rows:
                if "eval_return" in row:
                    self._callbacks.on_evaluation(Evaluation(*(row[name] for name in EVALUATED)))
        finally:
            self._is_telling = False

    def _wake(self) -> None:
        """Called at each signal; the second one interrupts a callback, or a role that this thread runs."""
        self._engine.wake()
        if self._killing and (self._is_telling or self._engine.busy):
            raise KeyboardInterrupt

    @property
    def _result(self) -> TrainResult | None:
        handle = self._supervisor.learner.handle
        return TrainResult(**vars(handle.result)) if handle and handle.result else None

    @property
    def _killing(self) -> bool:
        return len(self._signals) > 1

    def _save_s(self) -> float:
        return SAVE_S + self._supervisor.replay_save_s

    def _watch(self) -> None:
        while not (self._result or self._signals):
            if status := self._supervisor.tend():
                self._status = status
                # a process of a resumed run may still refuse to start, as long as nothing new was learned
                if not (self._is_resumed and self._supervisor.is_early):
                    self._record.begin()
                self._tell(status)
            self._engine.wait(LOOK_S)

    def _end(self) -> TrainResult:
        if self._signals:
            name = self._signals[0].name
            log.info("%s: stopping", name)
            if self._status:
                news = f"{name}: saving what was learned; a second signal ends the run at once"
                self._tell({**self._status, "news": [news]})
        learner = self._supervisor.learner.handle
        can_save = learner is not None and learner.ready
        self._stop(self._signals[0].name if self._signals else "")
        if result := self._result:
            log.info("ended: %s", result)
            return result
        if self._killing or learner is None or not can_save:  # there is nothing to save yet, or no time for it
            return self._unsaved()
        raise RunFailed(learner.failure or f"learner: killed, because it had not saved within {self._save_s():.0f} s")

    def _stop(self, reason: str, *, saves: bool = True) -> None:
        """Has the learner save, if it `saves` and has not yet, and waits for all to end, up to the deadline."""
        self._ends_at = self._ends_at or time.monotonic() + self._save_s() + LEAVE_S
        learner = self._supervisor.learner.handle
        if saves and learner and learner.ready:
            if not learner.result:
                self._supervisor.stop_learner(reason)
            self._wait_while(lambda: learner.alive and not learner.result, self._ends_at - LEAVE_S)
            if learner.result:
                self._record.begin()
                self._wait_while(lambda: learner.alive, min(self._ends_at, time.monotonic() + TOLD_S))
        self._supervisor.dismiss()
        self._wait_while(lambda: self._supervisor.working, min(self._ends_at, time.monotonic() + LEAVE_S))

    def _wait_while(self, condition: Callable[[], bool], until: float) -> None:
        """Waits while `condition` holds, but not beyond monotonic time `until` or a second signal."""
        while condition() and not self._killing and (left := until - time.monotonic()) > 0:
            self._supervisor.drop_replies()  # one that is not taken would end each wait at once
            self._engine.wait(left)

    def _unsaved(self) -> TrainResult:
        """What is known of a run that ended before it could save."""
        status, rows = self._status, self._status.get("rows", {})
        log.info("%s: ended without saving", self._signals[-1].name)
        return TrainResult(
            reason=self._signals[-1].name,
            env_steps=status.get("env_steps", 0),
            updates=rows.get("learner", {}).get("updates", 0),
            wall_s=status.get("wall_s", 0.0),
            startup_s=status.get("startup_s", 0.0),
            eval_return=rows.get("evaluator", {}).get("eval_return"),
            weights="",
            folder=str(where(self._folder)),
        )
