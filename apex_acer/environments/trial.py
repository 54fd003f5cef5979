"""Tries an environment in this process; `check` runs it with `python -m` in a separate process."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import logging
import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from gymnasium.vector import SyncVectorEnv

from apex_acer.config import ConfigError, EnvironmentConfig
from apex_acer.config.runfile import from_dict
from apex_acer.environments import late
from apex_acer.environments.inspector import ALONE, Fault, attempt, definitions, inspect
from apex_acer.environments.registry import make_vector
from apex_acer.environments.spaces import oddities
from apex_acer.environments.vector import Environments, environment_spec
from apex_acer.protocol.planes import random_action
from apex_acer.protocol.specification import MASK, EnvironmentSpec
from apex_acer.system import imports
from apex_acer.system.process import die_with_the_parent

log = logging.getLogger("apex_acer.environments.trial")  # `__name__` may be `__main__`

STEPS = 10
Result = tuple[EnvironmentSpec, tuple[str, ...]]
"""The fields of `check.Checked`."""


class _Expired(BaseException):
    """The deadline has passed. An environment cannot catch it by `except Exception`."""


def try_here(config: EnvironmentConfig, copies: int, notice_s: float, deadline_s: float) -> Result:
    """Makes `copies` of the environment in this process, takes a few steps and closes them; an Atari game is only made.

    Raises `ConfigError` if a copy raises, hangs or returns values that a run cannot use.
    """
    if config.is_atari:
        spec = environment_spec(config)
        return spec, (spec.describe(),)
    within = _within(config.id, notice_s, deadline_s)
    # standard output is for the program's results only
    with within, warnings.catch_warnings(), contextlib.redirect_stdout(sys.stderr), _state_kept():
        warnings.simplefilter("ignore")  # gymnasium warns of much that works
        vector = _make(config, copies)
        single = vector.envs[0].env if isinstance(vector, SyncVectorEnv) else vector  # type: ignore[attr-defined]
        try:
            return _try(vector, config, masks=bool(config.action_masks))
        except Fault as fault:
            place = fault.place or definitions(single, fault.method)
            at = f", at {place}" if place else ""
            raise ConfigError(f"environment.id: {config.id!r} fails: {fault}{at}{fault.hint}") from fault
        finally:
            with contextlib.suppress(Exception):
                vector.close()


def _make(config: EnvironmentConfig, copies: int) -> Any:
    made: list[Any] = []
    try:
        return make_vector(config, copies, made)
    except ConfigError as error:
        for env in made:
            with contextlib.suppress(Exception):
                env.close()
        if 0 < len(made) < copies:
            raise ConfigError(f"{error}; {ALONE}") from error
        raise


def _try(vector: Any, config: EnvironmentConfig, *, masks: bool) -> Result:
    """Resets, steps as a rollout does, and resets again.

    `masks`: whether to use the masks in `info`. If not, but there are some and no setting forbids them, it starts again.
    """
    environments = Environments(vector, config, masks=masks)
    seeks_masks = not masks and config.action_masks is None
    inspectors = inspect(vector)
    planes = attempt("reset", lambda: environments.reset(0))
    random_numbers = np.random.default_rng(0)
    for _ in range(STEPS):
        if seeks_masks and environments.info_has_masks:
            break
        action = random_action(environments.spec, random_numbers, planes)
        step = attempt("step", functools.partial(environments.step, action))
        planes = step.obs
        for name in ("reward", "terminated", "truncated"):
            if (shape := np.shape(getattr(step, name))) != (environments.num,):
                raise Fault("step", f"step gave {name} of shape {list(shape)} for {environments.num} environments")
    if seeks_masks and environments.info_has_masks:
        return _try(vector, config, masks=True)
    for each in inspectors or [vector]:
        attempt("reset", each.reset)  # as at an episode's end
    notes = environments.spec.describe(), *_notes(vector, environments, masks=masks)
    return environments.spec, notes


def _notes(vector: Any, environments: Environments, *, masks: bool) -> list[str]:
    legal = [f"info[{MASK!r}] says which actions are legal; no other is taken"] if masks else []
    ignored = environments.info_has_masks and not masks
    unheard = [f"info[{MASK!r}] is ignored: environment.action_masks is False"] if ignored else []
    return [*legal, *unheard, *oddities(vector.single_observation_space)]


@contextlib.contextmanager
def _state_kept() -> Iterator[None]:
    """Restores the current folder and the global random generators, which an environment may change."""
    folder, states = Path.cwd(), (random.getstate(), np.random.get_state())
    try:
        yield
    finally:
        os.chdir(folder)
        random.setstate(states[0])
        np.random.set_state(states[1])


@contextlib.contextmanager
def _within(name: str, notice_s: float, deadline_s: float) -> Iterator[None]:
    """Warns after `notice_s` and raises `ConfigError` after `deadline_s`, the latter only in the main thread."""
    thread = threading.get_ident()

    def warn() -> None:
        where = imports.running(sys._current_frames().get(thread))
        at = where and f", at {where}"
        log.warning("environment.id: %r has not answered for %g s%s; Ctrl-C ends this", name, notice_s, at)

    def expire(number: int, frame: FrameType | None) -> None:
        raise _Expired

    notice = threading.Timer(notice_s, warn)
    notice.daemon = True
    notice.start()
    gets_signals = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGALRM, expire) if gets_signals else None
    try:
        if gets_signals:
            signal.setitimer(signal.ITIMER_REAL, deadline_s)
        yield
    except _Expired:
        raise late(name, deadline_s) from None
    finally:
        notice.cancel()
        if gets_signals:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


class _Reporter(logging.Handler):
    """Reports to the other process, as JSON lines, and with them what is logged here."""

    def __init__(self, telling: int) -> None:
        super().__init__(logging.WARNING)
        self._telling = telling

    def emit(self, record: logging.LogRecord) -> None:
        self.report(warning=record.getMessage())

    def report(self, **values: Any) -> None:
        os.write(self._telling, json.dumps(values).encode() + b"\n")


def main(telling: int) -> None:
    """Tries the environment that standard input describes as JSON, and reports to the pipe `telling` of `check`."""
    die_with_the_parent()
    os.set_inheritable(telling, False)
    os.dup2(2, 1)
    start, reporter = json.load(sys.stdin), _Reporter(telling)
    sys.path[:] = start["path"]
    logger = logging.getLogger("apex_acer")
    logger.addHandler(reporter)
    logger.propagate = False
    config = from_dict({"environment": start["environment"]}).environment
    try:
        spec, notes = try_here(config, start["copies"], start["notice_s"], start["deadline_s"])
    except ConfigError as error:
        reporter.report(error=str(error))
    else:
        reporter.report(spec=dataclasses.asdict(spec), notes=notes)


if __name__ == "__main__":
    main(int(sys.argv[1]))
    os._exit(0)  # also if the environment has left threads
