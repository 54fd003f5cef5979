"""The world of a simulated run: its time, and its disk."""

from __future__ import annotations

import contextlib
import errno
import heapq
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from apex_acer.learner import reporting
from apex_acer.storage.writers import Writers
from apex_acer.system.signals import Signals

START_S = 100.0  # virtual monotonic seconds at which a run begins
FULL, READ_ONLY = errno.ENOSPC, errno.EROFS


class Killed(BaseException):
    """The process is killed in the middle of what it does."""


class Broken(BaseException):
    """Something is not as it must be; nothing in the program may take this for an error of its own."""


class World:
    """Virtual time, and what happens in it, in an order that a seed decides."""

    def __init__(self, seed: int) -> None:
        torch.set_num_threads(1)
        self.random = random.Random(seed)
        self.now = START_S
        self.trace: list[str] = []
        self.running = ""
        """The role whose turn it is."""
        self.disk = Disk(self)
        self.signals = Signals()
        self.slowness = 1.0
        """How many times as long messages take as usual."""
        self._opened: list[Writers] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def monotonic(self) -> float:
        return self.now

    def after(self, seconds: float, event: Callable[[], None]) -> None:
        """Has `event` happen in so many seconds."""
        self._count += 1
        heapq.heappush(self._events, (self.now + seconds, self._count, event))

    def go_on(self, until: float) -> bool:
        """Lets the next event happen; False, at time `until`, if there is none before that."""
        if not self._events or self._events[0][0] > until:
            self.now = max(self.now, until)
            return False
        at, _, event = heapq.heappop(self._events)
        self.now = max(self.now, at)
        event()
        return True

    def some(self, mean: float) -> float:
        """A random duration of this mean."""
        return self.random.uniform(0.5, 1.5) * mean

    def in_order(self, before: float, seconds: float, event: Callable[[], None]) -> float:
        """Has `event` happen in about so many seconds, and after what was to happen at `before`; returns when it does."""
        at = max(before + 1e-6, self.now + self.slowness * self.some(seconds))
        self.after(at - self.now, event)
        return at

    def note(self, what: str) -> None:
        self.trace.append(f"{self.now - START_S:9.3f} {what}")

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Inside the context the program's clock is this world's, and what it writes goes through this world's disk."""
        with (
            mock.patch.object(time, "monotonic", self.monotonic),
            mock.patch.object(time, "time", self.monotonic),
            mock.patch.object(os, "fsync", self.disk.fsync),
            mock.patch.object(os, "replace", self.disk.replace(os.replace)),
            mock.patch.object(reporting, "Writers", self._writers),
        ):
            yield
        for writers in self._opened:  # the system would close them with the process
            with contextlib.suppress(OSError, ValueError):
                writers.close()

    def _writers(self, *arguments: Any) -> Writers:
        self._opened.append(Writers(*arguments))
        return self._opened[-1]


class Disk:
    """What the learner's writing meets: each sync or rename is an operation, before and after which something may happen."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.folder = Path()
        """The run's folder."""
        self.kill_in = 0
        """Operations until the learner is killed in the middle of one; 0: never."""
        self.error = 0
        """The `errno` that writing meets; 0: none."""
        self.seconds = 0.0
        """How long an operation takes."""

    def fsync(self, descriptor: int) -> None:
        self._operation("sync")

    def replace(self, replace: Callable[..., None]) -> Callable[..., None]:
        def operation(*paths: Any, **options: Any) -> None:
            self._operation(f"rename to {Path(paths[1]).name}")
            replace(*paths, **options)
            self._operation("renamed")

        return operation

    def _operation(self, what: str) -> None:
        if self._world.running != "learner":
            return
        self._world.now += self.seconds
        if self.error:
            raise OSError(self.error, os.strerror(self.error))
        if self.kill_in:
            self.kill_in -= 1
            if not self.kill_in:
                self._world.note(f"learner killed: {what}")
                self.keep()
                raise Killed

    def keep(self) -> None:
        """Keeps the folder as it is for `restore`: what runs after a kill in a `finally` did not happen."""
        shutil.copytree(self.folder, self._kept, dirs_exist_ok=True)

    def restore(self) -> None:
        if self._kept.exists():
            for path in self.folder.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            shutil.copytree(self._kept, self.folder, dirs_exist_ok=True)
            shutil.rmtree(self._kept)

    @property
    def _kept(self) -> Path:
        return self.folder.with_name("kept")
