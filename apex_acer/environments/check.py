"""Checks the environment of a run before it starts: that it works, and that it suits the algorithm or a policy.

A user's environment is tried in a separate process, because it may change the folder, leave threads, or crash. This process
does not import gymnasium, which takes time.
"""

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

from apex_acer.config import AlgorithmConfig, ConfigError, EnvironmentConfig, RunConfig, require, settings_classes
from apex_acer.config.runfile import to_dict
from apex_acer.environments import late
from apex_acer.protocol.specification import EnvironmentSpec
from apex_acer.system.imports import search_path
from apex_acer.system.process import environment_variables

log = logging.getLogger(__name__)

NOTICE_S = 5.0  # after which the user is told what the program waits for
DEADLINE_S = 300.0  # after which the environment is given up
GRACE_S = 30.0  # for the process to start, and to say itself that the environment is late
LEAVE_S = 2.0  # for a killed process to end, unless it is stuck in the kernel
COMMAND = [sys.executable, "-P", "-m", "apex_acer.environments.trial"]
MAX_VALUES = 4096  # combinations of choices of which a network has a value each
BINNED = (1,), (2,), (3,)  # the shapes of actions that `DiscreteActions` supports


class Checked(NamedTuple):
    """Result of the check of an environment that works."""

    spec: EnvironmentSpec
    notes: tuple[str, ...]
    """Lines for the user: a description of the environment's spaces, and what may be unexpected in them."""


def check_environment(run: RunConfig) -> Checked:
    """Makes copies of the environment as a run would, takes a few steps and closes them; Atari games are only made.

    A user's code runs in a separate process, except with the serial engine. Raises `ConfigError`, with the place in the
    user's code, if the environment raises, hangs or returns values that a run cannot use, or if the run's algorithm does
    not support its actions.
    """
    checked = _check_remote(run) if run.environment.is_remote else _check(run, run.environment)
    require_fit(run.algorithm, run.environment.id, checked.spec)
    num, agents = run.actors.environments, checked.spec.agents
    require(num % agents == 0, "actors.environments", num, f"a multiple of the {agents} agents of a game")
    if not checked.spec.takes_turns:
        _require_no_opponents(run)
    return checked


def _require_no_opponents(run: RunConfig) -> None:
    """Raises `ConfigError` if a key for games of two players is set."""
    settings: tuple[tuple[str, Any], ...] = (("self_play", run.self_play), ("evaluation", run.evaluation))
    for section, values in settings:
        for key in dataclasses.fields(values):
            if section == "self_play" or key.name == "opponent":
                value = getattr(values, key.name)
                allowed = f"{run.environment.id} is no game of two players who take turns; leave it out"
                require(value == key.default, f"{section}.{key.name}", value, allowed)


def _check_remote(run: RunConfig) -> Checked:
    """Checks the local environment, if there is one, and that its spaces are like the clients'."""
    from apex_acer.environments.spaces import specify_remote

    remote = run.environment.remote
    spec = specify_remote(run.environment)
    if remote.local:
        changes = _check(run, run.environment.local).spec.changes(spec)
        allowed = f"from clients to it, {changes}; give one like them"
        require(not changes, "environment.remote.local", remote.local, allowed)
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
        how = f"which its processes do not know; register it in a module and give MODULE:{config.id}"
        raise ConfigError(f"environment.id: {config.id!r} is registered in this program only, {how}") from None


def _fewest(run: RunConfig) -> int:
    """The least number of environments that the run has at the same time."""
    evaluation = run.evaluation
    evaluated = min(evaluation.environments, evaluation.episodes) if evaluation.every else 0
    acting = 0 if run.environment.is_remote else max(1, run.actors.count) * run.actors.environments
    return max(1, acting + evaluated)


def _try_apart(config: EnvironmentConfig, copies: int) -> Checked:
    """Runs `trial.try_here` in a new process, which is killed afterwards with all its children; raises `ConfigError`."""
    hearing, telling = os.pipe()
    process = subprocess.Popen(
        [*COMMAND, str(telling)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        pass_fds=[telling],
        start_new_session=True,  # to kill it with its children
        env={**os.environ, **environment_variables()},
    )
    os.close(telling)
    try:
        start = {"path": search_path(), "environment": to_dict(config), "copies": copies}
        start |= {"notice_s": NOTICE_S, "deadline_s": DEADLINE_S}
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), process.stdin:
            process.stdin.write(json.dumps(start).encode())
        if result := _result(config, hearing):
            return result
        code = process.wait(LEAVE_S)
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        raise ConfigError(
            f"environment.id: {config.id!r} ended the process that tried it ({how}); give one that goes on"
        )
    finally:
        os.close(hearing)
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS permits no signal to what has ended
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(LEAVE_S)


def _result(config: EnvironmentConfig, hearing: int) -> Checked | None:
    """The result that the process reports; None if it ends without one. Raises `ConfigError` if it reports an error."""
    for report in _reports(hearing, time.monotonic() + DEADLINE_S + GRACE_S):
        if report is None:
            raise late(config.id, DEADLINE_S)
        if "error" in report:
            raise ConfigError(report["error"])
        if "spec" in report:
            return Checked(EnvironmentSpec.from_dict(report["spec"]), tuple(report["notes"]))
        log.warning("%s", report["warning"])
    return None


def _reports(hearing: int, until: float) -> Iterator[dict[str, Any] | None]:
    """The JSON lines from a pipe until it is closed; None at monotonic time `until`."""
    unread = b""
    while select.select([hearing], [], [], max(0.0, until - time.monotonic()))[0]:
        if not (data := os.read(hearing, 65536)):
            return
        *lines, unread = (unread + data).split(b"\n")
        yield from map(json.loads, lines)
    yield None


def require_fit(algorithm: AlgorithmConfig, name: str, spec: EnvironmentSpec) -> None:
    """Raises `ConfigError` if `algorithm` does not support the actions of the environment `name`."""
    actions, kind = spec.actions, spec.actions.kind
    classes = sorted(settings_classes().items())
    fitting = ", ".join(key for key, settings in classes if settings.actions in ("", kind))
    allowed = f"{name} has {kind} actions, for which there are {fitting}"
    if actions.dim and actions.given_shape in BINNED:
        allowed += "; or give --environment.wrappers apex_acer.wrappers:DiscreteActions"
    require(algorithm.actions in ("", kind), "algorithm.name", algorithm.name, allowed)
    if len(actions.branches) > 1 and algorithm.actions:  # it has a value of each combination of choices
        has = f"{name} has {actions.describe()} = {actions.n:,} combinations, and it has a value of each"
        others = ", ".join(key for key, settings in classes if not settings.actions)
        allowed = f"{has}, {MAX_VALUES:,} at most; give {others}"
        require(actions.n <= MAX_VALUES, "algorithm.name", algorithm.name, allowed)


def require_unchanged(name: str, spec: EnvironmentSpec, trained: EnvironmentSpec) -> None:
    """Raises `ConfigError` if the environment `name`, of `spec`, does not suit a policy that was trained in `trained`."""
    if changes := spec.changes(trained):
        allowed = "give an environment like the one that the policy was trained in"
        raise ConfigError(f"environment.id: {name!r} has changed since the training: {changes}; {allowed}")
