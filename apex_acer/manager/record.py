"""What a run's folder says of the run: `config.toml` from its beginning on, `result.json` from its end on."""

from __future__ import annotations

import dataclasses
import json
import logging
from typing import Any

from apex_acer.config import ConfigError
from apex_acer.config.runfile import dump_run
from apex_acer.engines.engine import Run, one_line
from apex_acer.manager.result import END, TrainResult
from apex_acer.manager.supervisor import RunFailed
from apex_acer.manager.trackers import Trackers
from apex_acer.storage.folder import where
from apex_acer.system import files

log = logging.getLogger(__name__)


class Record:
    """Leaves the folder as it is until the run has begun, so that a start that is refused changes nothing there."""

    def __init__(self, run: Run, trackers: Trackers) -> None:
        self._config, self._folder, self._trackers = run.config, run.folder, trackers
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
        """Writes how the run ended."""
        state = "stopped" if result.reason.startswith("SIG") else "ended"
        self._write(state=state, **dataclasses.asdict(result))

    def fail(self, error: BaseException) -> None:
        """Writes what ended the run."""
        self._write(state="failed", error=last_line(error))

    def _write_config(self) -> None:
        text = dump_run(dataclasses.replace(self._config, out=""))
        files.write(where(self._folder) / "config.toml", text.encode())

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
