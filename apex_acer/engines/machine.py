"""The memory, open files and folder in /tmp that this machine has for a run; refuses what can never fit. Torch-free."""

from __future__ import annotations

import itertools
import math
import os
import resource
from pathlib import Path

import numpy as np
from rich.filesize import decimal

from apex_acer.config import ConfigError, RunConfig, require
from apex_acer.engines.placement import has_gpu
from apex_acer.protocol.specification import EnvironmentSpec
from apex_acer.system.private import PLACE, PrivateFolder

PROCESS_BYTES = 0.35e9  # that a process of a Pong run takes: docs/performance.md
# lower bounds: of an actor in its own process, without the libraries that processes share, of an actor of the serial
# engine, and of one of gymnasium's smallest environments
LEAST_ACTOR_BYTES, LEAST_SERIAL_ACTOR_BYTES, LEAST_ENVIRONMENT_BYTES = 2e7, 1e5, 5e3
WEIGHT_BYTES = 8  # at least, of a weight of the network and its gradient
OPEN_FILES = 64, 4  # of the process that has most of them: without actors, and for each actor
CONTROL_GROUP = Path("/sys/fs/cgroup")  # a container's own limits


def require_room(config: RunConfig, spec: EnvironmentSpec) -> None:
    """Raises `ConfigError` if this machine can never hold the placed run `config` with all of its roles."""
    memory, _ = memory_bytes()
    for key, (value, each) in _memory_takers(config, spec).items():
        why = f"each takes {decimal(int(each))} or more of this machine's {decimal(int(memory))} of memory"
        require(value * each <= memory, key, value, f"give at most {int(memory / each):,}: {why}")
    _require_room_for_network(config, spec, memory)
    count, limit = config.actors.count, open_files_limit()[0]
    if config.engine != "serial":
        most = int((limit - OPEN_FILES[0]) / OPEN_FILES[1]) if limit < math.inf else count
        why = f"each takes {OPEN_FILES[1]} of the {limit:,.0f} open files that a process may have here (ulimit -n)"
        to_do = f"give at most {most:,}" if most > 0 else f"run `ulimit -n {open_files(config)}` first"
        require(count <= most, "actors.count", count, f"{to_do}: {why}")


def _require_room_for_network(config: RunConfig, spec: EnvironmentSpec, memory: float) -> None:
    """Of the layers whose sizes the configuration tells; a user's own torso may take no notice of it."""
    network, critics = config.network, getattr(config.algorithm, "critics", 0)
    if ":" in network.torso:
        return
    first = [] if spec.has_images else [math.prod(spec.input_shape)]
    pairs = itertools.pairwise((*first, *network.hidden_sizes))
    hidden, lstm = sum(map(math.prod, pairs)), 4 * network.lstm * (network.hidden_sizes[-1] + network.lstm)
    takers = {
        "network.hidden_sizes": (network.hidden_sizes, hidden),
        "network.lstm": (network.lstm, lstm),
        "algorithm.critics": (critics, critics * hidden),
    }
    for key, (value, count) in takers.items():
        needed = count * WEIGHT_BYTES
        why = f"its {count:,} weights take {decimal(needed)} of this machine's {decimal(int(memory))} of memory"
        require(needed <= memory, key, value, f"give less: {why}")


def _memory_takers(config: RunConfig, spec: EnvironmentSpec) -> dict[str, tuple[int, float]]:
    """By key: its value, and the least bytes that each takes. A batch or an unroll is never larger than replay."""
    actors, evaluation, k = config.actors, config.evaluation, config.algorithm.unroll_length
    plane_bytes = math.prod(spec.plane_shape) * np.dtype(spec.dtype).itemsize
    segment_bytes = (spec.stack + k) * (
        plane_bytes + 4
    ) + k * 15  # as `layout` has it, without an algorithm's own arrays
    actor_bytes = LEAST_SERIAL_ACTOR_BYTES if config.engine == "serial" else LEAST_ACTOR_BYTES
    environment_bytes = LEAST_ENVIRONMENT_BYTES + segment_bytes
    here = config.replay.device == "cpu" or not has_gpu(config.learner.device)
    replays = here and config.algorithm.replay_ratio > 0
    takers: dict[str, tuple[int, float]] = {
        "environment.stack": (spec.stack, plane_bytes + 4),
        "algorithm.unroll_length": (k, plane_bytes + 4 + 15),
    }
    takers |= {"replay.capacity": (config.replay.capacity, segment_bytes / k)} if replays else {}
    return takers | {
        "actors.environments": (actors.environments, environment_bytes),
        "actors.max_unanswered": (config.max_unanswered, actors.environments * segment_bytes),
        "actors.count": (actors.count, actor_bytes + actors.environments * environment_bytes),
        "evaluation.environments": (min(evaluation.environments, evaluation.episodes), LEAST_ENVIRONMENT_BYTES),
    }


def private_folder(kind: str = "") -> PrivateFolder:
    """A new private folder with `kind` in its name; raises `ConfigError` if /tmp cannot hold it."""
    try:
        return PrivateFolder(kind)
    except OSError as error:
        mend = f"make {PLACE} writable and free some space, or give serial"
        raise ConfigError(f"engine: no folder can be made in {PLACE} ({error.strerror or error}); {mend}") from None


def usual_bytes(config: RunConfig, replay_bytes: float) -> float:
    """Memory that a placed run usually takes, `replay_bytes` of it for replay."""
    return replay_bytes + (config.actors.count + 2) * PROCESS_BYTES


def open_files(config: RunConfig) -> int:
    """Files that the process with most of them holds open."""
    return OPEN_FILES[0] + OPEN_FILES[1] * config.actors.count


def open_files_limit() -> tuple[float, float]:
    """The limits of one process's open files: the current one, and the one up to which a shell may raise it."""
    soft, hard = (math.inf if n == resource.RLIM_INFINITY else n for n in resource.getrlimit(resource.RLIMIT_NOFILE))
    return soft, hard


def memory_bytes() -> tuple[float, float]:
    """Bytes of memory that this process may use in all, and how many of them are unused."""
    total = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    unused = total
    if (meminfo := Path("/proc/meminfo")).exists():
        lines = dict(line.split(":") for line in meminfo.read_text().splitlines())
        unused = float(lines["MemAvailable"].split()[0]) * 1024
    limit = control("memory.max")
    if limit.isdigit():
        used = float(control("memory.current") or 0)
        total, unused = min(total, float(limit)), min(unused, float(limit) - used)
    return total, unused


def control(name: str) -> str:
    """The contents of the file `name` in this container's control group; empty if there is none."""
    try:
        return (CONTROL_GROUP / name).read_text().strip()
    except OSError:  # no control groups, or their old version
        return ""
