"""Process settings and signals that all engines use. Imports nothing slow."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from pathlib import Path

WAIT_S = 1.0  # the longest that a call may block before a role's loop continues
KEPT_BYTES = 2**32  # freed memory that a process may keep for its next tensors
PR_SET_PDEATHSIG = 1  # of Linux's prctl


def environment_variables() -> dict[str, str]:
    """The environment variables of every process of a run.

    The memory limits keep glibc from returning large tensors to the kernel at every update: mapping and clearing the same
    pages again cost a third of the learner's processor time. Huge pages gained another 4 %. Each role sets the
    number of torch's threads itself.
    """
    limits = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    limits |= dict.fromkeys(("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"), str(KEPT_BYTES))
    limits["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=1"
    limits["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # more would be processes that nothing here watches
    return {**limits, "OMP_WAIT_POLICY": "PASSIVE", "PYTHONUNBUFFERED": "1"}


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def die_with_the_parent() -> None:
    """Has Linux kill this process when its parent dies, even if it is frozen or native code never returns to Python."""
    _set_death_signal(signal.SIGKILL)


def outlive_the_parent() -> None:
    """Undoes `die_with_the_parent`."""
    _set_death_signal(0)


def _set_death_signal(number: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)


def kill_group(leader: int) -> None:
    """Kills the process group that `leader` leads or led, if there is one."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # the latter on macOS, if only zombies are left
        os.killpg(leader, signal.SIGKILL)


def name_process(name: str) -> None:
    """Sets the process's name, as `top` shows it; at most 15 characters."""
    if sys.platform == "linux":
        Path("/proc/self/comm").write_text(name, encoding="ascii")
