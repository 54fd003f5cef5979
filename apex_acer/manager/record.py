"""What the manager writes into a run's folder: `log.txt`, `config.toml` at the beginning, `result.json` at the end.

This process may have several runs at once, in threads.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import logging
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from apex_acer.config import ConfigError, LogLevel, writing
from apex_acer.engines.engine import one_line
from apex_acer.manager.result import END, TrainResult
from apex_acer.manager.supervisor import RunFailed
from apex_acer.manager.trackers import Trackers
from apex_acer.storage.folder import where
from apex_acer.storage.runlog import Log, Speech
from apex_acer.system import files

log = logging.getLogger(__name__)
logger = logging.getLogger("apex_acer")
_lock = threading.Lock()  # of the next two
_handlers: list[logging.Handler] = []
_level_before = logging.NOTSET  # of `logger`, without a run
_current: ContextVar[Log | None] = ContextVar("log", default=None)  # of the run to which a thread belongs


class Record:
    """Writes `config.toml` once the run has begun and `result.json` at its end; a start that is refused leaves nothing."""

    def __init__(self, folder: Path, config: str, trackers: Trackers) -> None:
        """`config` is the text of `config.toml`."""
        self._folder, self._config, self._trackers = folder, config.encode(), trackers
        self.begun = False  # whether there is something new to save

    def begin(self) -> None:
        """Writes the configuration, removes the end of the run that this one continues, and has the trackers begin."""
        if self.begun:
            return
        self.begun = True
        folder = where(self._folder)
        files.write(folder / "config.toml", self._config)
        (folder / END).unlink(missing_ok=True)
        self._trackers.begin()

    def end(self, result: TrainResult) -> None:
        state = "stopped" if result.reason.startswith("SIG") else "ended"
        self._write(state=state, **dataclasses.asdict(result))

    def fail(self, error: BaseException) -> None:
        self._write(state="failed", error=last_line(error))

    def _write(self, **end: Any) -> None:
        """Writes the end for programs; a full disk does not change the end itself."""
        if not self.begun:
            return
        try:
            folder = where(self._folder)
            if not (folder / "config.toml").exists():  # the folder that had it was deleted
                files.write(folder / "config.toml", self._config)
            fields = {"state": "", "reason": "", "error": "", **end}
            files.write(folder / END, json.dumps(fields, indent=1).encode() + b"\n")
        except OSError as problem:
            log.warning("%s: not written (%s)", END, problem)


def last_line(error: BaseException) -> str:
    """What ended a run, in one line."""
    if isinstance(error, ConfigError | RunFailed):
        return str(error).strip().rpartition("\n")[2]
    return one_line(error)


@contextlib.contextmanager
def _handling(handler: logging.Handler) -> Iterator[None]:
    """Adds the handler of one of this process's runs; the logger's level lets through what any of them wants."""
    global _level_before
    with _lock:
        if not _handlers:
            _level_before = logger.level
        _handlers.append(handler)
        logger.addHandler(handler)
        logger.setLevel(min(each.level for each in _handlers))
    try:
        yield
    finally:
        with _lock:
            _handlers.remove(handler)
            logger.removeHandler(handler)
            logger.setLevel(min((each.level for each in _handlers), default=_level_before))


def in_use(folder: Path) -> ConfigError:
    """The error of a run's folder in which another program trains."""
    return ConfigError(f"out: {str(folder)!r} is in use; another program trains there")


@contextlib.contextmanager
def log_file(folder: Path, level: LogLevel) -> Iterator[None]:
    """Writes what this package logs of the run into its folder, and locks that folder; raises `ConfigError`.

    Lines of a thread that was started without this one's context go to the logs of all runs. On a file system without
    locks a run is not locked, and a warning says so.
    """
    unlocked = ""
    with writing("out", folder):
        file = Log(folder)
    try:
        fcntl.flock(file.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise in_use(folder) from None
    except OSError as error:
        unlocked = f"{str(folder)!r} cannot be locked ({error.strerror}); have no other program train there"
    handler = logging.StreamHandler(Speech(file).stream())
    handler.setLevel(level.upper())
    handler.addFilter(lambda record: _current.get() in (None, file))
    token = _current.set(file)
    try:
        with _handling(handler):
            if unlocked:
                logger.warning("%s", unlocked)
            try:
                yield
            except BaseException as error:
                logger.info("failed: %s", last_line(error))
                raise
    finally:
        _current.reset(token)
        file.close()
