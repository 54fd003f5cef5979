"""What `/proc` says of the processes of a run."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path


def processes(manager: int) -> dict[str, int]:
    """Process ids of a run by name: `manager`, `launcher`, and what that has started (`actor_0`)."""
    found = {"manager": manager}
    for launcher in children(manager):
        found["launcher"] = launcher
        for pid in children(launcher):
            with contextlib.suppress(OSError):  # gone since
                found[Path(f"/proc/{pid}/comm").read_text().strip()] = pid
    return found


def children(pid: int) -> list[int]:
    """The children of each thread of a process."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except OSError:
        return []


def sockets_of(pids: Iterable[int]) -> set[str]:
    """Inodes of the sockets that processes have open; one that has ended, as each may at any moment, has none."""
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):  # closed since
                    found.add(str(descriptor.readlink()))
    return {target.removeprefix("socket:[").rstrip("]") for target in found if target.startswith("socket:[")}


def resident_mb(pid: int) -> float:
    """Megabytes that a process holds, what it shares with others included; raises OSError once it has ended."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) / 1000 for line in lines if line.startswith("VmRSS:")), 0.0)


def processor_s(pid: int) -> float:
    """Seconds of processor time that a process has taken; raises OSError once it is gone."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def idle_s() -> float:
    """Seconds that this machine's cores have had nothing to do, all cores together."""
    return int(Path("/proc/stat").read_text().split()[4]) / os.sysconf("SC_CLK_TCK")
