"""Checks the environment of a run before it starts, so that a mistake in a user's own gives one clear line at once."""

from __future__ import annotations

import sys

from apex_acer.config import ConfigError, EnvironmentConfig, RunConfig, require
from apex_acer.environments.apart import Checked, Limits, try_apart
from apex_acer.environments.fit import require_fit

NOTICE_S, DEADLINE_S = 5.0, 300.0


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
    return Checked(run.environment, spec, (spec.describe(),))


def _check(run: RunConfig, config: EnvironmentConfig) -> Checked:
    copies, limits = min(2, _fewest(run)), Limits(NOTICE_S, DEADLINE_S)
    if config.is_atari or run.engine == "serial":
        from apex_acer.environments.trial import try_here  # gymnasium takes time to import

        return try_here(config, copies, limits)
    try:
        return try_apart(config, copies, limits)
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
