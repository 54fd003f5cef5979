"""What `/proc` says of the processes of a run."""

from __future__ import annotations

import contextlib
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
