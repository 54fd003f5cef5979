"""What a process of a run is started with, whichever engine starts it. Imports nothing that takes time."""

from __future__ import annotations

import ctypes
import signal
import sys
from pathlib import Path

WAIT_S = 1.0  # of every blocking call, after which a role's loop looks around
KEPT_BYTES = 2**32  # of freed memory that a process may keep for its next tensors
PR_SET_PDEATHSIG = 1  # of Linux's prctl


def environment_variables() -> dict[str, str]:
    """What every process of a run has in its environment.

    Memory limits keep glibc from giving large tensors back to the kernel at every update: mapping and clearing the same
    pages again cost a third of the learner's processor time. Huge pages for them gave another 4 %. Each role sets its own
    number of torch's threads.
    """
    limits = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    limits |= dict.fromkeys(("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"), str(KEPT_BYTES))
    limits["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=1"
    limits["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # more are processes that nobody here watches
    return {**limits, "OMP_WAIT_POLICY": "PASSIVE", "PYTHONUNBUFFERED": "1"}


def die_with_the_parent() -> None:
    """Has Linux end this process with its parent, even where it is frozen or native code never gives Python a turn."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def name_process(name: str) -> None:
    """As `top` shows it; 15 characters at most."""
    if sys.platform == "linux":
        Path("/proc/self/comm").write_text(name, encoding="ascii")
