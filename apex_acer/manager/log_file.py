"""The log of a run in this process, which may have several runs at once, in threads."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

from apex_acer.config import ConfigError, LogLevel, writing
from apex_acer.manager.record import last_line
from apex_acer.storage.runlog import Log, Speech

logger = logging.getLogger("apex_acer")
_current: ContextVar[Log | None] = ContextVar("log", default=None)  # of the run to which a thread belongs


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
