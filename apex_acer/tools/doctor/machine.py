"""Compares cores, memory, open files and disk with what a placed run needs; without torch."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from rich.filesize import decimal

from apex_acer.config import RunConfig
from apex_acer.engines.machine import available_cores, control, memory_bytes, open_files, open_files_limit, usual_bytes
from apex_acer.tools.doctor.finding import Finding, judge

SPARE_DISK_BYTES = 1e9  # for weights, logs and curves
SOCKETS = Path("/tmp")  # parent of a run's private folder


def check_cores() -> Finding:
    """The cores that a run may use, and whether a quota limits their time."""
    cores, quota = available_cores(), _cpu_quota()
    text = f"{cores} available of {os.cpu_count()}"
    if quota and quota < cores:
        advice = f"processes are placed for {cores} cores; give --actors, or pin the container to cores instead"
        return Finding("cores", "warning", f"{text}, limited to the time of {quota:g}", advice)
    return judge("cores", text, "actors and the learner take turns; two cores or more are better", well=cores > 1)


def check_machine(config: RunConfig, replay_bytes: float) -> Iterator[Finding]:
    """What a run of the placed `config` needs, if replay takes `replay_bytes` of the machine's memory."""
    yield check_memory(config, replay_bytes)
    yield check_open_files(config)
    writable = os.access(SOCKETS, os.W_OK | os.X_OK)
    yield judge("sockets", f"they are in {SOCKETS}", f"make {SOCKETS} writable", works=writable)
    yield check_disk(config, replay_bytes)


def check_memory(config: RunConfig, replay_bytes: float) -> Finding:
    """Total and unused memory, and what replay and the processes take."""
    total, unused = memory_bytes()
    need = usual_bytes(config.actors.count, replay_bytes)
    text = f"{decimal(int(unused))} unused of {decimal(int(total))}; about {decimal(int(need))} needed"
    advice = f"give --replay.capacity below {config.replay.capacity} or --actors below {config.actors.count}"
    return judge("memory", text, advice, works=need < total, well=need < unused)


def check_open_files(config: RunConfig) -> Finding:
    """The shell's limit on the open files of a process."""
    limit, most = open_files_limit()
    need = open_files(config.actors.count)
    advice = f"ulimit -n {need}" if most >= need else "give fewer --actors"
    return judge("open files", f"{limit:,.0f} allowed, about {need:,} needed", advice, works=limit >= need)


def check_disk(config: RunConfig, replay_bytes: float) -> Finding:
    """Free disk where the run's folder would be made."""
    folder = Path(config.out or "runs").absolute()
    there = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(there).free
    need = (
        2 * replay_bytes if config.checkpoint.replay or config.replay.load else 0
    )  # a new checkpoint is whole before the old one goes
    works = os.access(there, os.W_OK | os.X_OK) and there.is_dir() and free > need
    text = f"{decimal(int(free))} free for {folder}" + (f", {decimal(int(need))} needed" if need else "")
    return judge(
        "disk", text, "give --out a writable folder with room", works=works, well=free > need + SPARE_DISK_BYTES
    )


def _cpu_quota() -> float | None:
    """Processor seconds per second that a container may use; None: no limit."""
    quota, _, period = control("cpu.max").partition(" ")
    return float(quota) / float(period) if quota.isdigit() else None
