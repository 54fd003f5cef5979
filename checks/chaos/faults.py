"""An environment that fails on purpose, some times over the whole run; importing this module registers it."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from tests.environments_for_tests import Clock


def _raise() -> Any:
    raise ZeroDivisionError("the environment broke")


def _hang() -> Any:
    """In native code that hardly ever gives Python a turn: a signal ends a sleep, and the next begins."""
    while True:
        ctypes.PyDLL(None).sleep(10**6)


def _exit() -> Any:
    os._exit(3)


def _crash() -> Any:
    ctypes.string_at(0)


FAULTS: dict[str, Callable[[], Any]] = {
    "raise": _raise,
    "hang": _hang,
    "exit": _exit,
    "crash": _crash,
    "nan": lambda: np.full(1, np.nan, np.float32),
    "dtype": lambda: np.array(["a picture"]),
    "shape": lambda: np.zeros((2, 3), np.float32),
}


class Faulty(Clock):
    """A `Clock` whose step number `at` brings the first of `faults` that is not in the file `done` yet.

    The file lives longer than a process, so that each fault comes once.
    """

    def __init__(self, faults: Sequence[str], done: str, at: int = 50) -> None:
        super().__init__()
        self._faults, self._done, self._at = faults, Path(done), at
        self._steps = 0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, *rest = super().step(action)
        self._steps += 1
        fault = self._next_fault() if self._steps == self._at else ""
        return (FAULTS[fault]() if fault else obs, *rest)

    def _next_fault(self) -> str:
        done = self._done.read_text().split() if self._done.exists() else []
        if len(done) == len(self._faults):
            return ""
        fault = self._faults[len(done)]
        with self._done.open("a") as file:
            file.write(f"{fault}\n")
        return fault


gymnasium.register("Faulty-v0", f"{__name__}:Faulty", disable_env_checker=True)
