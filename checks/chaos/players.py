"""Processes that play CartPole for a run, to be killed, frozen and cut off; each counts its steps in a file."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np

from checks.chaos.proxy import Proxy


class Players:
    """So many clients, each behind a line of its own; whoever is killed has a successor."""

    def __init__(self, count: int, target: int, token: str, counts: Path) -> None:
        """`target` is the run's port; the file `counts` is made."""
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["gymnasium.envs.classic_control", "apex_acer.client"])
        self._token, self._counts = token, counts
        self._made = np.memmap(counts, np.int64, "w+", shape=(count,))
        self.lines = [Proxy(target) for _ in range(count)]
        self._processes: list[BaseProcess] = [self._start(number) for number in range(count)]

    @property
    def made(self) -> int:
        """Steps of all clients so far."""
        return int(self._made.sum())

    @property
    def living(self) -> int:
        """Clients whose process goes on."""
        return sum(process.is_alive() for process in self._processes)

    def kill(self, number: int) -> None:
        """SIGKILL; the next one begins at once."""
        self.signal(number, signal.SIGKILL)
        self._processes[number].join()
        self._processes[number].close()
        self._processes[number] = self._start(number)

    def signal(self, number: int, which: int) -> None:
        """Sends a signal to a client's process."""
        pid = self._processes[number].pid
        assert pid
        os.kill(pid, which)

    def ended(self, within_s: float) -> list[int | None]:
        """The exit codes of all clients, which must end by themselves in time."""
        for process in self._processes:
            process.join(within_s)
        return [process.exitcode for process in self._processes]

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()
        for line in self.lines:
            line.close()

    def _start(self, number: int) -> BaseProcess:
        url = f"ws://127.0.0.1:{self.lines[number].port}"
        process = self._context.Process(target=play, args=(url, self._token, self._counts, number), daemon=True)
        process.start()
        return process


def play(url: str, token: str, counts: Path, number: int) -> None:
    """Plays until the run says goodbye; each step is counted before the server can know of it."""
    import gymnasium

    from apex_acer.client import run

    made = np.memmap(counts, np.int64, "r+")

    class Counting(gymnasium.Wrapper[Any, Any, Any, Any]):
        def step(self, action: Any) -> Any:
            made[number] += 1
            return self.env.step(action)

    with contextlib.suppress(KeyboardInterrupt):
        run(Counting(gymnasium.make("CartPole-v1")), url, token, seed=random.randrange(2**31), patience_s=120.0)
