"""Checks the environment of a run before it starts: that it works, and that the algorithm or a policy is for it.

A user's environment is tried in a process of its own, which a constructor may leave in another folder, with threads, or
dead. This process does without gymnasium, which takes time to import.
"""

from __future__ import annotations

import contextlib
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

from apex_acer.config import AlgorithmConfig, ConfigError, EnvironmentConfig, RunConfig, require, settings_classes
from apex_acer.config.runfile import to_dict
from apex_acer.environments import late
from apex_acer.protocol.actions import Actions
from apex_acer.protocol.specification import EnvironmentSpec
from apex_acer.system.process import environment_variables

log = logging.getLogger(__name__)

NOTICE_S = 5.0  # that an environment may take before the user is told what the program waits for
DEADLINE_S = 300.0  # before it is given up
GRACE_S = 30.0  # in which the process starts, and says itself that it is late
LEAVE_S = 2.0  # in which a killed process is gone, unless it is stuck in the kernel
COMMAND = [sys.executable, "-P", "-m", "apex_acer.environments.trial"]
MAX_VALUES = 4096
BINNED = (1,), (2,), (3,)  # the shapes of actions that `DiscreteActions` takes


class Checked(NamedTuple):
    """The result for an environment that works."""

    spec: EnvironmentSpec
    notes: tuple[str, ...]
    """What was understood of the environment, one line each."""


def check_environment(run: RunConfig) -> Checked:
    """Makes copies of the environment as a run would, takes a few steps and closes them; those of Atari are only made.

    Whatever of a user's runs then does so in a process of its own, except with the serial engine, which has no others.

    Raises `ConfigError` if the run's algorithm does not fit its actions, and if it raises, hangs or returns what a run
    cannot use, with the place in the user's code.
    """
    checked = _check_remote(run) if run.environment.is_remote else _check(run, run.environment)
    require_fit(run.algorithm, run.environment.id, checked.spec)
    return checked


def _check_remote(run: RunConfig) -> Checked:
    """Tries the local environment, if one is named, and has it fit what clients have."""
    from apex_acer.environments.spaces import specify_remote

    remote = run.environment.remote
    spec = specify_remote(run.environment)
    if remote.local:
        changes = _check(run, run.environment.local).spec.changes(spec)
        require(
            not changes, "environment.remote.local", remote.local, f"from clients to it, {changes}; give one like them"
        )
    return Checked(spec, (spec.describe(),))


def _check(run: RunConfig, config: EnvironmentConfig) -> Checked:
    copies = min(2, _fewest(run))
    if config.is_atari or run.engine == "serial":
        from apex_acer.environments.trial import try_here

        return Checked(*try_here(config, copies, NOTICE_S, DEADLINE_S))
    try:
        return _try_apart(config, copies)
    except ConfigError as error:
        gymnasium = sys.modules.get("gymnasium")
        if gymnasium is None or "is not registered" not in str(error) or config.id not in gymnasium.registry:
            raise
        allowed = f"which its processes do not know; register it in a module and give MODULE:{config.id}"
        raise ConfigError(f"environment.id: {config.id!r} is registered in this program only, {allowed}") from None


def _fewest(run: RunConfig) -> int:
    """The environments that the run has at least at a time."""
    evaluation = run.evaluation
    evaluated = min(evaluation.environments, evaluation.episodes) if evaluation.every else 0
    acting = 0 if run.environment.is_remote else max(1, run.actors.count) * run.actors.environments
    return max(1, acting + evaluated)


def _try_apart(config: EnvironmentConfig, copies: int) -> Checked:
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
        start = {"path": sys.path, "environment": to_dict(config), "copies": copies}
        start |= {"notice_s": NOTICE_S, "deadline_s": DEADLINE_S}
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), process.stdin:
            process.stdin.write(json.dumps(start).encode())
        return _result(config, hearing) or _fail(config, process)
    finally:
        os.close(hearing)
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS permits no signal to what has ended
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(LEAVE_S)


def _result(config: EnvironmentConfig, hearing: int) -> Checked | None:
    """The result that the process tells; None if it ends without one."""
    for said in _lines(hearing, time.monotonic() + DEADLINE_S + GRACE_S):
        if said is None:
            raise late(config.id, DEADLINE_S)
        if "error" in said:
            raise ConfigError(said["error"])
        if "spec" in said:
            return Checked(EnvironmentSpec.from_dict(said["spec"]), tuple(said["notes"]))
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


def require_fit(algorithm: AlgorithmConfig, name: str, spec: EnvironmentSpec) -> None:
    """Raises `ConfigError` if `algorithm` is for another kind of actions than those of the environment `name`."""
    kind = spec.actions.kind
    fitting = ", ".join(sorted(key for key, settings in settings_classes().items() if settings.actions in ("", kind)))
    allowed = f"{name} has {kind} actions, for which there are {fitting}"
    if spec.actions.dim and spec.actions.given_shape in BINNED:
        allowed += "; or give --environment.wrappers apex_acer.wrappers:DiscreteActions"
    require(algorithm.actions in ("", kind), "algorithm.name", algorithm.name, allowed)
    if len(spec.actions.branches) > 1 and algorithm.actions:
        _require_few(algorithm, name, spec.actions)


def _require_few(algorithm: AlgorithmConfig, name: str, actions: Actions) -> None:
    """An algorithm that is for discrete actions alone has a value of each combination of several choices."""
    fitting = ", ".join(sorted(key for key, settings in settings_classes().items() if not settings.actions))
    has = f"{name} has {actions.describe()} = {actions.n:,} combinations, and it has a value of each, {MAX_VALUES:,} at most"
    require(actions.n <= MAX_VALUES, "algorithm.name", algorithm.name, f"{has}; give {fitting}")


def require_unchanged(name: str, spec: EnvironmentSpec, trained: EnvironmentSpec) -> None:
    """Raises `ConfigError` if the environment `name` with `spec` does not suit a policy trained with `trained`."""
    if changes := spec.changes(trained):
        allowed = "give an environment like the one that the policy was trained in"
        raise ConfigError(f"environment.id: {name!r} has changed since the training: {changes}; {allowed}")
