"""One run as a command: `apex-acer train … --json` in a process of its own, its files, and its result."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from apex_acer.config import ConfigError, RunConfig, require
from apex_acer.config.runfile import dump_run, to_dict
from apex_acer.environments.check import check_environment
from apex_acer.storage import checkpoint
from apex_acer.system.output import say
from apex_acer.system.process import available_cores
from apex_acer.tools.sweep.commands import Commands
from apex_acer.tools.sweep.report import read_curve

PROGRAM = (sys.executable, "-P", "-m", "apex_acer")
ERROR_LINES = 3  # the last line alone often only says where to look
STOP_S = 15.0  # a run that was interrupted and has not ended within this is killed ...
SAVE_REPLAY_S = 300.0  # ... or within this if it saves its replay memory: 15 GB on a slow disk


class Training(NamedTuple):
    """A run of a sweep or a study, as a command."""

    folder: Path
    """The folder of the sweep or the study."""
    group: str
    """The variant or the trial: a folder in `folder`, with the run of each seed."""
    config: RunConfig

    @property
    def name(self) -> str:
        """Path of the run's folder in `folder`."""
        return f"{self.group}/seed_{self.config.seed}"

    @property
    def out(self) -> Path:
        """The run's folder."""
        return self.folder / self.name

    def _path(self, suffix: str) -> Path:
        return self.folder / f"{self.name}{suffix}"

    def train(self, commands: Commands, lock: int) -> None:
        """Starts the run, or continues it from its newest checkpoint; `lock` stays open in its process."""
        if self._has_steps_left():
            self.start(commands, ["resume", str(self.out)], lock)
            return
        shutil.rmtree(self.out, ignore_errors=True)  # left by a run without such a checkpoint
        self.out.parent.mkdir(parents=True, exist_ok=True)
        self._path(".log").unlink(missing_ok=True)
        self._path(".toml").write_text(dump_run(self.config), encoding="utf-8")
        self.start(commands, ["train", str(self._path(".toml")), "--out", str(self.out)], lock)

    def _has_steps_left(self) -> bool:
        """Whether the run has a checkpoint at which none of its limits is reached."""
        try:
            state = checkpoint.load_newest(self.out).state
        except ConfigError:
            return False
        stop, is_passed = self.config.stop, bool(state["evaluations"]["passed"])
        in_time = stop.minutes is None or state["wall_s"] < 60 * stop.minutes
        return state["env_steps"] < stop.env_steps and in_time and not is_passed

    def start(self, commands: Commands, arguments: Sequence[str], lock: int) -> None:
        """Starts a verb of the program, which prints into the `.json` file beside the run's folder."""
        threads = {"OMP_NUM_THREADS": "1"} if self.config.engine == "serial" else {}
        command, output, log = [*PROGRAM, *arguments, "--json"], self._path(".json"), self._path(".log")
        commands.start(self.name, command, output=output, log=log, environment=threads, lock=lock)

    def printed(self, code: int) -> dict[str, Any]:
        """The JSON object that a verb with the exit code `code` printed, or `error`: how it ended, the end of its log."""
        if code == 0 and (result := self._last()):
            return result
        log = self._path(".log").read_text(encoding="utf-8", errors="replace")
        lines = [line.strip() for line in log.splitlines() if line.strip()]
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return {"error": " | ".join([how, *lines[-ERROR_LINES:]])}

    def finished(self) -> dict[str, Any] | None:
        """What the run printed if it has ended by itself, whoever had started it."""
        result = self._last()
        return result if result and not result["reason"].startswith("SIG") else None

    def _last(self) -> dict[str, Any] | None:
        with contextlib.suppress(IndexError, OSError, TypeError, ValueError):
            return dict(json.loads(self._path(".json").read_text(encoding="utf-8").splitlines()[-1]))
        return None

    def record(self, result: dict[str, Any]) -> dict[str, Any]:
        """What `results.json` keeps of the finished run that printed `result`: `result`, `curve_of`, `curve`."""
        curve_of, curve = read_curve(self.out / "metrics.jsonl")
        weights = f"{self.name}/{Path(result['weights']).name}"
        return {"result": {**result, "weights": weights}, "curve_of": curve_of, "curve": curve}


def without_out(base: RunConfig) -> dict[str, Any]:
    """The configuration without its folder, by which a sweep or a study is recognised."""
    return {key: value for key, value in to_dict(base).items() if key != "out"}


def check_before(configs: Iterable[RunConfig]) -> None:
    """Makes each run's environment and looks for the weights to load; raises `ConfigError`."""
    configs = list(configs)
    for config in {(config.environment, config.algorithm.name): config for config in configs}.values():
        check_environment(config)
    for load in dict.fromkeys(config.load for config in configs):
        require(not load or Path(load).is_file(), "load", load, "give a weights file")


def runs_at_once(configs: Iterable[RunConfig]) -> int:
    """Runs that the cores allow: two cores for each, or one if the engine is serial."""
    each = 1 if all(config.engine == "serial" for config in configs) else 2
    return max(1, available_cores() // each)


def stop_s(configs: Iterable[RunConfig]) -> float:
    """Seconds in which runs that are interrupted save and end."""
    return SAVE_REPLAY_S if any(config.saves_replay for config in configs) else STOP_S


def exit_code(signals: Sequence[signal.Signals], folder: Path, what: str, code: int) -> int:
    """`code`, or 128 plus the first of `signals`; then says how to continue `what`, a sweep or a study."""
    if not signals:
        return code
    say(f"apex-acer: {signals[0].name}: the same command with --out {folder} continues the {what}", sys.stderr)
    return 128 + signals[0]


def lock_folder(folder: Path) -> int | None:
    """Makes and locks the folder, as long as any process has the returned descriptor open; None if it is locked already.

    Raises `ConfigError` on a file system without locks.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder, os.O_RDONLY)
    try:
        lock_file(lock, folder)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def lock_file(descriptor: int, folder: Path, *, waits: bool = False) -> None:
    """Locks the open file, or raises BlockingIOError unless it `waits`; `ConfigError` if the `folder` has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
    except BlockingIOError:
        raise
    except OSError as error:
        what = f"{str(folder)!r} cannot be locked ({error.strerror}); give a folder on a local disk"
        raise ConfigError(f"out: {what}") from None
