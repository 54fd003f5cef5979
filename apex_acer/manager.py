"""The manager: one run from its checks to its one exit reason. Imports no torch."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from apex_acer.config import ConfigError, RunConfig
from apex_acer.engines import engine_class
from apex_acer.engines.engine import Engine, Handle, Run
from apex_acer.environments import make_environments
from apex_acer.messages import Message, Peer
from apex_acer.result import TrainResult
from apex_acer.runfile import dump_run

log = logging.getLogger(__name__)

READY_S = 120.0  # importing torch and reaching a GPU can take a while on a cold machine
END_S = 6.0  # from the decision to stop until the learner has saved; what is left then is killed
STATUS_S = 0.5
ANSWER_S = 60.0  # the inbox answers the manager at once; a learner silent for this long hangs
SAME_SIGNAL_S = 0.2  # one press reaches a program twice where a wrapper passes on what its group has got already
SIGNALS = (signal.SIGINT, signal.SIGTERM)

Status = dict[str, Any]


class RunFailed(Exception):
    """A process of the run ended badly; the message is its traceback."""


def train(
    config: RunConfig, on_status: Callable[[Status], None] | None = None, started_at: float | None = None
) -> TrainResult:
    """Trains until one of `config.stop` is met or a signal comes, and writes the weights.

    Args:
        config: the run.
        on_status: called about twice a second with the live rows of every process.
        started_at: Unix seconds from which `startup_s` counts; now, where not given.

    Raises:
        ConfigError: before any actor starts, with one line that names the key or the path.
        RunFailed: with the traceback of the process that failed.
    """
    run = prepare(config, started_at or time.time())
    with _log_file(run.folder), Signals() as signals:
        return Manager(run, on_status or (lambda status: None), signals).run()


def prepare(config: RunConfig, started_at: float) -> Run:
    """Checks what needs no torch, makes the run's folder and writes its `config.toml`; raises `ConfigError`."""
    if sys.platform not in ("linux", "darwin"):
        raise ConfigError(f"platform: {sys.platform!r} is not supported; run on Linux or macOS")
    if config.load and not Path(config.load).is_file():
        raise ConfigError(f"load: {config.load!r} is no file; give a weights file")
    environments = make_environments(config.environment, 1, training=True)
    environments.close()
    folder = make_folder(config)
    (folder / "config.toml").write_text(dump_run(dataclasses.replace(config, out="")), encoding="utf-8")
    return Run(config, environments.spec, folder, uuid.uuid4().hex, started_at)


def make_folder(config: RunConfig) -> Path:
    """The run's folder, new or empty; raises `ConfigError` where it cannot be written."""
    name = config.environment.id.rpartition(":")[2].rpartition("/")[2].lower()
    folder = Path(config.out or f"runs/{name}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        used = (folder / "metrics.jsonl").exists()
        if not used:
            (folder / "log.txt").touch()
    except OSError as error:
        raise ConfigError(
            f"out: {str(folder)!r} cannot be written ({error.strerror}); give a writable folder"
        ) from None
    if used:  # its curves would double back
        raise ConfigError(f"out: {str(folder)!r} holds another run; give a new or empty folder")
    return folder.absolute()


class Signals:
    """Within it SIGINT and SIGTERM are only noted. Python delivers them to the main thread; elsewhere it does nothing."""

    def __init__(self) -> None:
        self.received: list[signal.Signals] = []
        self.wake: Callable[[], None] = lambda: None
        """Called at each signal; must be safe in a handler."""
        self._before: dict[signal.Signals, Any] = {}
        self._last_at = -SAME_SIGNAL_S

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._on_signal) for number in SIGNALS}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        now = time.monotonic()
        if now - self._last_at > SAME_SIGNAL_S:
            self.received.append(signal.Signals(number))
        self._last_at = now
        self.wake()


class Manager:
    """Starts the roles, watches them, and ends them all."""

    def __init__(self, run: Run, on_status: Callable[[Status], None], signals: Signals) -> None:
        self._run, self._on_status = run, on_status
        self._engine: Engine = engine_class(run.config.engine)(run)
        self._signals = signals.received
        signals.wake = self._engine.wake
        self._handles: list[Handle] = []
        self._sequence = 0
        self._status: Status = {}
        self._asked_at: float | None = None  # when the status was asked for, while unanswered

    def run(self) -> TrainResult:
        """The whole run; leaves no process behind, however it ends. The first signal saves, the second kills."""
        try:
            return self._run_from(self._start(Peer("learner", 0, 0)))
        finally:
            self._engine.close()

    def _run_from(self, learner: Handle) -> TrainResult:
        try:
            if self._wait_ready(learner):
                self._start_peers()
                self._watch(learner)
            return self._end(learner)
        except RunFailed:
            self._save(learner)
            raise

    def _start(self, peer: Peer) -> Handle:
        handle = self._engine.start(peer)
        self._handles.append(handle)
        return handle

    def _start_peers(self) -> None:
        config = self._run.config
        peers = [Peer("actor", index, 0) for index in range(config.actors.count)]
        if config.evaluation.every:
            peers.append(Peer("evaluator", 0, 0))
        # before they start, so that the inbox knows whom it hears
        self._send(incarnations={peer.name: peer.incarnation for peer in peers})
        for peer in peers:
            self._start(peer)
        log.info("started %s", ", ".join(peer.name for peer in peers))

    def _wait_ready(self, learner: Handle) -> bool:
        """Whether the learner is ready; False where a signal came first. Raises where it cannot be."""
        deadline = time.monotonic() + READY_S
        while not learner.ready:
            self._engine.wait(max(0.0, deadline - time.monotonic()))
            self._raise_failures()
            if self._signals:
                return False
            if time.monotonic() >= deadline:
                raise RunFailed(f"learner: not ready within {READY_S:.0f} s")
        return True

    def _watch(self, learner: Handle) -> None:
        """Until the learner ends or a signal comes."""
        status_at = 0.0
        while learner.alive and not learner.result and not self._signals:
            self._engine.wait(STATUS_S)
            self._raise_failures()
            self._receive()
            now = time.monotonic()
            if self._asked_at is None and now >= status_at:
                status_at = now + STATUS_S
                self._send()
            elif self._asked_at is not None and now > self._asked_at + ANSWER_S:
                raise RunFailed(f"learner: no answer for {ANSWER_S:.0f} s")

    def _end(self, learner: Handle) -> TrainResult:
        """Has the learner save and leave; what is not gone by the deadline, or at a second signal, is killed."""
        if self._signals:
            log.info("%s: stopping", self._signals[0].name)
            if not learner.ready:  # nothing to save yet
                return self._unsaved()
            self._send(stop=self._signals[0].name)
        self._wait_result(learner)
        self._raise_failures()
        if learner.result is None and len(self._signals) > 1:
            return self._unsaved()
        if learner.result is None:
            raise RunFailed(f"learner: killed, because it had not saved {END_S:.0f} s after the run was to end")
        log.info("ended: %s", learner.result)
        return learner.result

    def _save(self, learner: Handle) -> None:
        """Has the learner write what was learned before another process failed."""
        if learner.ready and learner.alive and learner.result is None:
            self._send(stop="failure")
            self._wait_result(learner)
        if learner.result:
            log.info("saved before leaving: %s", learner.result.weights)

    def _wait_result(self, learner: Handle) -> None:
        """Until the learner has saved, the deadline, or a second signal."""
        deadline = time.monotonic() + END_S
        while learner.alive and learner.result is None and time.monotonic() < deadline and len(self._signals) < 2:
            self._engine.wait(0.1)

    def _unsaved(self) -> TrainResult:
        """The result of a run that was ended before it could save, as far as it is known."""
        status = self._status
        env_steps, updates = status.get("env_steps", 0), status.get("rows", {}).get("learner", {}).get("updates", 0)
        log.info("%s: ended without saving", self._signals[-1].name)
        return TrainResult(self._signals[-1].name, env_steps, updates, status.get("wall_s", 0.0), 0.0, None, "")

    def _raise_failures(self) -> None:
        for handle in self._handles:
            if handle.config_error:
                raise ConfigError(handle.config_error)
            if not handle.alive and handle.failure:
                log.error("%s failed", handle.peer.name)
                raise RunFailed(handle.failure)

    def _send(self, **said: Any) -> None:
        self._engine.link.send(Message(self._run.run_id, Peer("manager", 0, 0), self._sequence, **said))
        self._sequence += 1
        self._asked_at = time.monotonic()

    def _receive(self) -> None:
        while reply := self._engine.link.receive(0):
            self._asked_at = None if reply.sequence == self._sequence - 1 else self._asked_at
            if reply.status:
                self._status = reply.status
                self._on_status(reply.status)


@contextlib.contextmanager
def _log_file(folder: Path) -> Iterator[None]:
    """Keeps this package's log in the run's folder."""
    handler = logging.FileHandler(folder / "log.txt", encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger = logging.getLogger("apex_acer")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()
