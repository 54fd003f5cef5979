"""What a run's folder says of the run: `log.txt`, `config.toml` from its beginning on, `result.json` from its end on.

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
_current: ContextVar[Log | None] = ContextVar("log", default=None)  # of the run to which a thread belongs


class Record:
    """Leaves the folder as it is until the run has begun, so that a start that is refused changes nothing there."""

    def __init__(self, folder: Path, config: str, trackers: Trackers) -> None:
        """`config` is the text of `config.toml`."""
        self._folder, self._config, self._trackers = folder, config.encode(), trackers
        self.begun = False  # whether there is something new to save

    def begin(self) -> None:
        """Writes the configuration, removes the end of the run that this one continues, and has the trackers begin."""
        if self.begun:
            return
        self.begun = True
        self._write_config()
        (where(self._folder) / END).unlink(missing_ok=True)
        self._trackers.begin()

    def end(self, result: TrainResult) -> None:
        state = "stopped" if result.reason.startswith("SIG") else "ended"
        self._write(state=state, **dataclasses.asdict(result))

    def fail(self, error: BaseException) -> None:
        self._write(state="failed", error=last_line(error))

    def _write_config(self) -> None:
        files.write(where(self._folder) / "config.toml", self._config)

    def _write(self, **end: Any) -> None:
        """Writes the end for programs; a full disk does not change the end itself."""
        if not self.begun:
            return
        try:
            folder = where(self._folder)
            if not (folder / "config.toml").exists():  # the folder that had it was deleted
                self._write_config()
            whole = {"state": "", "reason": "", "error": "", **end}
            files.write(folder / END, json.dumps(whole, indent=1).encode() + b"\n")
        except OSError as problem:
            log.warning("%s: not written (%s)", END, problem)


def last_line(error: BaseException) -> str:
    """What ended a run, in one line."""
    if isinstance(error, ConfigError | RunFailed):
        return str(error).strip().rpartition("\n")[2]
    return one_line(error)


class _Handlers:
    """The handlers of this process's runs; the level of the package's logger lets through what any of them wants."""

    def __init__(self) -> None:
        self._all: list[logging.Handler] = []
        self._level = logger.level  # that of before
        self._lock = threading.Lock()

    def add(self, handler: logging.Handler) -> None:
        with self._lock:
            if not self._all:
                self._level = logger.level
            self._all.append(handler)
            logger.addHandler(handler)
            self._set_level()

    def remove(self, handler: logging.Handler) -> None:
        with self._lock:
            self._all.remove(handler)
            logger.removeHandler(handler)
            self._set_level()

    def _set_level(self) -> None:
        logger.setLevel(min((handler.level for handler in self._all), default=self._level))


_handlers = _Handlers()


def in_use(folder: Path) -> ConfigError:
    """The error of a run's folder in which another program trains."""
    return ConfigError(f"out: {str(folder)!r} is in use; another program trains there")


@contextlib.contextmanager
def log_file(folder: Path, level: LogLevel) -> Iterator[None]:
    """Writes what this package logs of the run into its folder, and locks that folder; raises `ConfigError`.

    The lines of a thread that was started without this one's context belong to all runs.
    """
    with writing("out", folder):
        file = Log(folder)
    try:
        fcntl.flock(file.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise in_use(folder) from None
    handler = logging.StreamHandler(Speech(file).stream())
    handler.setLevel(level.upper())
    handler.addFilter(lambda record: _current.get() in (None, file))
    token = _current.set(file)
    _handlers.add(handler)
    try:
        yield
    except BaseException as error:
        logger.info("failed: %s", last_line(error))
        raise
    finally:
        _handlers.remove(handler)
        _current.reset(token)
        file.close()
