"""Whole runs in sessions of their own, to be killed and signalled; what they say, and what they leave behind."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from apex_acer.config import RunConfig
from apex_acer.config.runfile import dump_run
from tests.runs import tiny_run

PROGRAM = """
import dataclasses, json, signal, sys, tempfile
signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever the tests themselves run under
signal.signal(signal.SIGHUP, signal.SIG_DFL)
import apex_acer
from apex_acer.manager import supervised_process, supervisor
from apex_acer.config.runfile import load_run

def say(**said):
    print(json.dumps(said), flush=True)

def noted(*arguments, make=tempfile.mkdtemp, **more):
    folder = make(*arguments, **more)
    say(private=folder)
    return folder

tempfile.mkdtemp = noted
supervisor.BACKOFF_S, supervised_process.READY_S = json.loads(sys.argv[2])
say(started=True)
try:
    result = apex_acer.train(load_run(sys.argv[1]), apex_acer.Callbacks(on_status=lambda status: say(status=status)))
    say(**dataclasses.asdict(result))
    sys.exit(result.exit_code)
except apex_acer.RunFailed as error:
    say(failed=str(error))
    sys.exit(1)
except apex_acer.ConfigError as error:
    say(refused=str(error))
    sys.exit(2)
except KeyboardInterrupt:
    sys.exit(130)
"""
ROLE = re.compile(r"(actor|evaluator|learner)_\d+")


class Program:
    """A process that trains."""

    def __init__(
        self,
        folder: Path,
        *,
        config: RunConfig | None = None,
        backoff_s: float = 0.5,
        ready_s: float = 120.0,
        **changes: Any,
    ) -> None:
        """The run is `config`, or else `tiny_run` with `changes`; `backoff_s` and `ready_s` are the supervisor's."""
        folder.mkdir(parents=True)
        self.out = folder / "run"
        self._errors = folder / "stderr.txt"
        config = config or tiny_run(**({"engine": "local"} | changes))
        (folder / "run.toml").write_text(dump_run(dataclasses.replace(config, out=str(self.out))))
        constants = json.dumps([backoff_s, ready_s])
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, str(folder / "run.toml"), constants],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        self.said: list[dict[str, Any]] = []
        """All that it has printed."""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            self.said.extend(json.loads(line) for line in lines)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def code(self) -> int:
        return int(self._process.returncode)

    @property
    def statuses(self) -> list[dict[str, Any]]:
        return [said["status"] for said in self.said if "status" in said]

    @property
    def private(self) -> Path | None:
        """The run's private folder, once it is made."""
        return next((Path(said["private"]) for said in self.said if "apex-acer-" in said.get("private", "")), None)

    @property
    def news(self) -> list[str]:
        """What was restarted, and why."""
        return [line for status in self.statuses for line in status["news"]]

    def children(self) -> dict[str, int]:
        """Process ids of the living children by role and index: `actor_0`, `learner_0`."""
        return {name: pid for pid, name in processes_of(self.pid).items() if ROLE.fullmatch(name)}

    def wait_for(self, condition: Callable[[], object], within_s: float = 60.0) -> None:
        """Until `condition` holds; fails where the program ends before, or too much time passes."""
        eventually(lambda: condition() or not self.running, within_s)
        assert condition(), f"ended: {self.said[-1:]} {self._errors.read_text()}"

    def wait_until_it_learns(self, steps: int = 100) -> None:
        """Until so many more environment steps were learned from than were known of."""
        known = self.statuses[-1]["env_steps"] if self.statuses else 0
        self.wait_for(lambda: self.statuses and self.statuses[-1]["env_steps"] > known + steps)

    def wait_until_it_works(self, name: str) -> None:
        """Until the process has sent another row of metrics."""
        known = self.statuses[-1]["rows"].get(name)
        self.wait_for(lambda: self.statuses[-1]["rows"].get(name) != known)

    def send(self, number: int, group: bool = False) -> None:
        """To the manager, or to it and all its children."""
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if group else os.kill)(self.pid, number)

    def kill_child(self, name: str, number: int = signal.SIGKILL) -> None:
        os.kill(self.children()[name], number)

    def ended(self, within_s: float) -> dict[str, Any]:
        """What it printed last; it must end in time, without a word on standard error, and leave nothing behind."""
        self.wait(within_s)
        self.assert_nothing_left(within_s=5)
        self._reader.join()
        assert self._errors.read_text() == ""
        return self.said[-1]

    def wait(self, timeout_s: float) -> None:
        """Until it has ended; raises `subprocess.TimeoutExpired`."""
        self._process.wait(timeout_s)

    def assert_nothing_left(self, within_s: float) -> None:
        deadline = time.monotonic() + within_s
        while (left := processes_of(self.pid)) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not left
        private = self.private
        eventually(lambda: private is None or not private.exists(), 5)

    def kill(self) -> None:
        """Whatever is left of it."""
        for pid in processes_of(self.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join()
        if self.private:
            shutil.rmtree(self.private, ignore_errors=True)


@contextlib.contextmanager
def program(folder: Path, **changes: Any) -> Iterator[Program]:
    """A program that is gone afterwards."""
    started = Program(folder, **changes)
    try:
        yield started
    finally:
        started.kill()


def signal_when(condition: Callable[[], object], *signals: signal.Signals) -> None:
    """Sends this process signals, a second apart, from another thread."""

    def send() -> None:
        eventually(condition, 60)
        for index, number in enumerate(signals):
            time.sleep(index and 1.0)
            os.kill(os.getpid(), number)

    threading.Thread(target=send, daemon=True).start()


def report(capsys: pytest.CaptureFixture[str], test: str, **found: Any) -> None:
    """A line of results past pytest's capture."""
    with capsys.disabled():
        print(f"\n{json.dumps({'test': test} | found)}", flush=True)


def processes_of(session: int) -> dict[int, str]:
    """Names of the processes in `session` by process id, zombies left out."""
    found = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            pid = int(entry.name)
            state, _, _, its_session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(its_session) == session and state not in "ZX":
                found[pid] = (entry / "comm").read_text().strip()
    return found


def eventually(condition: Callable[[], object], within_s: float) -> None:
    """Returns once `condition` holds; fails where it does not in time."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {within_s} s"
        time.sleep(0.02)
