"""MuJoCo's warnings as lines of the log; by itself MuJoCo appends them to `MUJOCO_LOG.TXT` in the current folder."""

from __future__ import annotations

import contextlib
import logging

from gymnasium.envs.registration import EnvSpec

log = logging.getLogger(__name__)


def log_warnings(spec: EnvSpec) -> None:
    """From now on logs what MuJoCo warns of in this process, if it simulates the environment of `spec` and is installed."""
    if "mujoco" in str(spec.entry_point):
        with contextlib.suppress(ImportError):  # gymnasium says so when the environment is made
            import mujoco

            mujoco.set_mju_user_warning(_log)


def _log(text: str) -> None:
    # the models are gymnasium's, so what is deprecated in them is nobody's concern here
    log.log(logging.DEBUG if "deprecated" in text else logging.WARNING, "MuJoCo: %s", text)
