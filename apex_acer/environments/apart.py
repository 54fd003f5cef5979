"""Tries an environment in a process of its own, which a constructor may leave in another folder, with threads, or dead."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from apex_acer.config import ConfigError, EnvironmentConfig
from apex_acer.config.runfile import to_dict
from apex_acer.protocol.specification import EnvironmentSpec
from apex_acer.system.process import environment_variables

log = logging.getLogger(__name__)

COMMAND = [sys.executable, "-P", "-m", "apex_acer.environments.trial"]
GRACE_S = 30.0  # in which the process starts, and says itself that it is late
LEAVE_S = 2.0  # in which a killed process is gone, unless it is stuck in the kernel


class Limits(NamedTuple):
    """Seconds that an environment may take."""

    notice_s: float
    """Before the user is told what the program waits for."""
    deadline_s: float
    """Before it is given up."""


class Checked(NamedTuple):
    """The result for an environment that works."""

    environment: EnvironmentConfig
    """As given, but for `action_masks`."""
    spec: EnvironmentSpec
    notes: tuple[str, ...]
    """What was understood of the environment, one line each."""


def try_apart(config: EnvironmentConfig, copies: int, limits: Limits) -> Checked:
    """`trial.try_here` in a new interpreter, with which all that the environment has started ends; raises `ConfigError`."""
    hearing, telling = os.pipe()
    process = subprocess.Popen(
        [*COMMAND, str(telling)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        pass_fds=[telling],
        start_new_session=True,  # so that it can be killed with all that it has started
        env={**os.environ, **environment_variables()},
    )
    os.close(telling)
    try:
        start = {"path": sys.path, "environment": to_dict(config), "copies": copies, "limits": limits}
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), process.stdin:
            process.stdin.write(json.dumps(start).encode())
        return _result(config, hearing, limits.deadline_s) or _fail(config, process)
    finally:
        os.close(hearing)
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS permits no signal to what has ended
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(LEAVE_S)


def _result(config: EnvironmentConfig, hearing: int, deadline_s: float) -> Checked | None:
    """The result that the process tells; None if it ends without one."""
    for said in _lines(hearing, time.monotonic() + deadline_s + GRACE_S):
        if said is None:
            raise late(config.id, deadline_s)
        if "error" in said:
            raise ConfigError(said["error"])
        if "spec" in said:
            environment = dataclasses.replace(config, action_masks=said["action_masks"])
            return Checked(environment, EnvironmentSpec.from_dict(said["spec"]), tuple(said["notes"]))
        log.warning("%s", said["warning"])
    return None


def _lines(hearing: int, until: float) -> Iterator[dict[str, Any] | None]:
    """The JSON lines from a pipe, to its end; None at monotonic time `until`."""
    unread = b""
    while select.select([hearing], [], [], max(0.0, until - time.monotonic()))[0]:
        if not (data := os.read(hearing, 65536)):
            return
        *lines, unread = (unread + data).split(b"\n")
        yield from map(json.loads, lines)
    yield None


def _fail(config: EnvironmentConfig, process: subprocess.Popen[bytes]) -> Checked:
    code = process.wait(LEAVE_S)
    how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    raise ConfigError(f"environment.id: {config.id!r} ended the process that tried it ({how}); give one that goes on")


def late(name: str, deadline_s: float) -> ConfigError:
    """The error of an environment that hangs."""
    return ConfigError(f"environment.id: {name!r} did not answer within {deadline_s:g} s; give one that answers")
