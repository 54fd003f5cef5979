"""A sweep: trains several seeds of each variant of a run, each in a process of its own, and sums up the results.

Runs are started seed by seed, so that an interrupted sweep has about as many runs of each variant. `results.json` holds the
result of each run; the same command on the same folder does only what is missing there, from a run's newest checkpoint.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import sys
import time
import zlib
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from apex_acer.config import ConfigError, RunConfig, require, writing
from apex_acer.system.files import write
from apex_acer.system.output import printable, say
from apex_acer.system.signals import Signals
from apex_acer.tools.sweep.commands import Commands
from apex_acer.tools.sweep.report import Data, as_text, draw_curves, portable, summarise, table, write_json
from apex_acer.tools.sweep.training import (
    Training,
    check_before,
    exit_code,
    lock_folder,
    runs_at_once,
    stop_s,
    without_out,
)
from apex_acer.tools.sweep.variants import make_variants

FINAL_SEED_OFFSET = 1000  # final episodes must differ from those by which weights were chosen


def plan_sweep(
    base: RunConfig, arguments: Sequence[str], *, seeds: int, vary: Sequence[str], at_once: int, final_episodes: int
) -> Sweep:
    """The sweep of a command line, whose `arguments` begin with the run's name; raises `ConfigError`.

    `base` has the first of the `seeds` and the sweep's folder; `at_once` 0 means as many runs as the cores allow.
    """
    for key, value, least in (("seeds", seeds, 1), ("jobs", at_once, 0), ("final_episodes", final_episodes, 0)):
        require(value >= least, key, value, f"give {least} or more")
    name = Path(arguments[0]).resolve().stem  # of a run's folder, too, which may be `.`
    variants = make_variants(base, vary, name)
    folder = Path(base.out or f"sweeps/{name}-{time.strftime('%Y%m%d-%H%M%S')}")
    numbers = range(base.seed, base.seed + seeds)
    jobs = [
        Training(folder, variant.name, dataclasses.replace(variant.config, seed=seed, out=""))
        for seed in numbers
        for variant in variants
    ]
    check_before(job.config for job in jobs)
    data = {
        "command": shlex.join(["apex-acer", "sweep", *arguments]),
        "run": without_out(base),
        "seeds": list(numbers),
        "final_episodes": final_episodes,
        "variants": {variant.name: {"overrides": variant.overrides, "runs": {}} for variant in variants},
    }
    data["checksum"] = _checksum(data)
    return Sweep(folder, jobs, at_once or runs_at_once(job.config for job in jobs), portable(data))


def run_sweep(sweep: Sweep) -> int:
    """Does what is missing of the sweep; returns the exit code: 0, 1 if a run failed, or 128 plus a signal's number."""
    folder = sweep.folder
    with writing("out", folder):
        lock = lock_folder(folder)
    if lock is None:
        raise ConfigError(f"out: {str(folder)!r} is in use by a sweep or by its runs; wait, or give another folder")
    try:
        with Signals() as signals:
            sweep.read()
            with writing("out", folder):
                sweep.save()
            return sweep.run(signals, lock)
    finally:
        os.close(lock)


class Sweep:
    """Starts runs and keeps their results in `results.json`, which is whole at any time."""

    def __init__(self, folder: Path, jobs: Sequence[Training], at_once: int, data: Data) -> None:
        """`jobs` are started in their order, `at_once` at a time; `data` is what `results.json` holds."""
        self.folder, self._at_once, self._data = folder, at_once, data
        self._jobs = {job.name: job for job in jobs}
        self._failed: dict[str, str] = {}

    def read(self) -> None:
        """Takes over the results in the folder; raises `ConfigError` unless it is empty or holds the same sweep."""
        path = self.folder / "results.json"
        try:
            if not path.exists():
                is_empty = not any(self.folder.iterdir())
                require(is_empty, "out", str(self.folder), "the folder is not empty; give a new one")
                return
            before: Data = json.loads(path.read_text(encoding="utf-8"))
            is_same = before["checksum"] == self._data["checksum"]
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            raise ConfigError(f"out: {str(path)!r} is not of a sweep; give a new or empty folder") from None
        require(is_same, "out", str(self.folder), "it holds another sweep; give a new folder")
        self._data["variants"] = before["variants"]

    def save(self) -> None:
        """Updates the statistics and writes the file."""
        for name, job in {job.group: job for job in self._jobs.values()}.items():
            variant, has_target = self._data["variants"][name], job.config.stop.at_return is not None
            variant["summary"] = summarise(variant["runs"].values(), len(self._data["seeds"]), has_target)
        write_json(self.folder / "results.json", self._data)

    def run(self, signals: Signals, lock: int) -> int:
        """Does what is missing, or ends all runs at a signal; `lock` stays open in each run. Returns the exit code."""
        for job in self._jobs.values():
            # the sweep may have been killed, or its disk full, before this result was saved
            if "result" not in self._known(job) and (result := job.finished()):
                self._keep(job, result)
        waiting = deque(job for job in self._jobs.values() if not self._is_finished(job))
        commands = Commands()

        def begin() -> bool:
            if not waiting:
                return False
            job = waiting.popleft()
            if "result" not in self._known(job):
                job.train(commands, lock)
                return True
            weights, seed = str(job.out / "weights.safetensors"), str(job.config.seed + FINAL_SEED_OFFSET)
            # modules may be imported, as the run file named them
            flags = ["--episodes", str(self._data["final_episodes"]), "--seed", seed, "--import-modules"]
            job.start(commands, ["evaluate", weights, *flags], lock)
            return True

        def take(name: str, code: int) -> None:
            if code and signals.received:
                return  # it was interrupted
            job = self._jobs[name]
            self._keep(job, job.printed(code))
            if name not in self._failed and not self._is_finished(job):
                waiting.appendleft(job)  # its final episodes

        say(f"{len(waiting)} of {len(self._jobs)} runs to do, {self._at_once} at once, in {self.folder}")
        commands.work(self._at_once, signals, begin, take, stop_s=stop_s(job.config for job in self._jobs.values()))
        return self._conclude(signals)

    def _known(self, job: Training) -> Data:
        """What is known of a run, any of: `result`, `curve_of`, `curve`, `final_return`, `error`."""
        return dict(self._data["variants"][job.group]["runs"].get(str(job.config.seed), {}))

    def _is_finished(self, job: Training) -> bool:
        known = self._known(job)
        return "result" in known and ("final_return" in known or not self._data["final_episodes"])

    def _keep(self, job: Training, result: Data) -> None:
        """Saves what a command of the run has printed."""
        run = {key: value for key, value in self._known(job).items() if key != "error"}
        if "error" in result:
            self._failed[job.name] = result["error"]
            run |= result
        elif "result" in run:
            run["final_return"] = result["mean"]
        else:
            run |= job.record(result)
        self._data["variants"][job.group]["runs"][str(job.config.seed)] = run
        self.save()
        say(f"{job.name}: {printable(_line(run))}")

    def _conclude(self, signals: Signals) -> int:
        ids = dict.fromkeys(job.config.environment.id for job in self._jobs.values())
        drawing = draw_curves(self._data, list(ids))
        if drawing:
            write(self.folder / "curves.png", drawing)
        say(as_text(table(self._data)))
        for name, error in self._failed.items():
            say(f"apex-acer: {name} failed: {printable(error)}; see {self.folder / name}.log", sys.stderr)
        return exit_code(signals.received, self.folder, "sweep", int(bool(self._failed)))


def _checksum(data: Data) -> int:
    """Checksum of what must be the same for a sweep to go on, with whole paths, which the file cuts."""
    overrides = {name: variant["overrides"] for name, variant in data["variants"].items()}
    return zlib.crc32(json.dumps([overrides, *(data[key] for key in ("run", "seeds", "final_episodes"))]).encode())


def _line(run: Mapping[str, Any]) -> str:
    if "error" in run:
        return f"failed: {run['error']}"
    if "final_return" in run:
        return f"final return {run['final_return']:.2f}"
    result = run["result"]
    score = "" if result["eval_return"] is None else f", evaluation {result['eval_return']:.2f}"
    return f"{result['reason']}: {result['env_steps']:,} env steps in {result['wall_s']:.1f} s{score}"
