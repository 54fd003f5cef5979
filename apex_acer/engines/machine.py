"""What a run uses of this machine: cores, GPU, memory, open files and a folder in /tmp. Imports no torch."""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import resource
from pathlib import Path

import numpy as np
from rich.filesize import decimal

from apex_acer.config import ConfigError, RunConfig, require
from apex_acer.protocol.messages import Role
from apex_acer.protocol.specification import EnvironmentSpec
from apex_acer.system.private import PLACE, PrivateFolder
from apex_acer.system.process import available_cores

CORES_PER_ACTOR = 3  # without a GPU: a frame costs the learner twice the time that it costs the actor
GIVE_WAY = 10  # by which actors lower their priority; 19 is the most
DEVICES = Path("/dev")
NVIDIA_FILES = "nvidia[0-9]*"  # there; a container may have any of a machine's GPUs
# and of NVIDIA's Tegra, of WSL, of AMD; the last two are also where there is no GPU for torch
GPU_FILES = NVIDIA_FILES, "nvhost-*", "nvgpu", "dxg", "kfd"
VECTOR_ACTORS = 2, 4  # at least and at most, for small networks, because their learner keeps up with only a few
PROCESS_BYTES = 0.35e9  # that a process of a Pong run takes: docs/performance.md
# lower bounds: of an actor in its own process, without the libraries that processes share, of an actor of the serial
# engine, and of one of gymnasium's smallest environments
LEAST_ACTOR_BYTES, LEAST_SERIAL_ACTOR_BYTES, LEAST_ENVIRONMENT_BYTES = 2e7, 1e5, 5e3
WEIGHT_BYTES = 8  # at least, of a weight of the network and its gradient
STEP_BYTES = 15  # of a step in replay besides its observation, without an algorithm's own arrays
MOST_COMPRESSION = 255  # of LZ4, whose format allows no more
OPEN_FILES = 64, 4  # of the process that has most of them: without actors, and for each actor
CONTROL_GROUP = Path("/sys/fs/cgroup")  # a container's own limits


def place(config: RunConfig, spec: EnvironmentSpec, cores: int | None = None) -> RunConfig:
    """`config` with a number in place of each count of actors and threads that is 0.

    Convolutions on a CPU gain from every core, because actors wait for the learner more than they run; other networks get
    slower, unless several losses can be computed side by side. With a GPU, all cores but two run environments. The serial
    engine always counts two cores, so that a run is the same on every machine.
    """
    cores = (2 if config.engine == "serial" else available_cores()) if cores is None else cores
    low, high = VECTOR_ACTORS
    if learns_on_every_core(config.learner.device, spec):
        count, learner_threads = max(low, cores // CORES_PER_ACTOR), cores
    elif spec.has_images:
        count, learner_threads = max(1, cores - 2), 2
    else:
        count, learner_threads = max(low, min(cores - 1, high)), min(cores, config.algorithm.num_losses)
    actors, learner = config.actors, config.learner
    count = actors.count or (1 if config.environment.is_remote else count)
    learner_threads = max(1, learner_threads // learner.count)
    threads = actors.threads or max(1, cores // (2 * count))
    return dataclasses.replace(
        config,
        actors=dataclasses.replace(actors, count=count, threads=threads),
        learner=dataclasses.replace(learner, threads=learner.threads or learner_threads),
    )


def learns_on_every_core(device: str, spec: EnvironmentSpec) -> bool:
    """Whether a learner on `device` can use all cores: it computes convolutions, and no GPU does so for it."""
    return spec.has_images and not has_gpu(device)


def niceness(config: RunConfig, spec: EnvironmentSpec, role: Role) -> int:
    """How much `role` lowers its priority: actors wait for the learner, so they give way if it uses every core.

    Actors of remote clients do not: they compute little, and the clients wait for them.
    """
    gives_way = role == "actor" and not config.environment.is_remote
    return GIVE_WAY if gives_way and learns_on_every_core(config.learner.device, spec) else 0


def has_gpu(device: str) -> bool:
    """Whether the setting `device` leads to a GPU, as far as can be told without asking CUDA."""
    return device.startswith("cuda") or (device == "auto" and _is_there(NVIDIA_FILES))


def require_gpus(config: RunConfig) -> None:
    """Raises `ConfigError` if a device is asked for that cannot be here, as far as can be told without asking CUDA."""
    for key, name in (("learner.device", config.learner.device), ("actors.device", config.actors.device)):
        if name.startswith("cuda") and not _is_there(*GPU_FILES):
            raise ConfigError(f"{key}: {name!r} is not there; this machine has 0 CUDA devices; give cpu or auto")


def _is_there(*patterns: str) -> bool:
    return any(path for pattern in patterns for path in DEVICES.glob(pattern))


def describe(config: RunConfig) -> str:
    """One line that tells the user what a placed run uses."""
    actors, learner, remote = config.actors, config.learner, config.environment.remote
    device = learner.device if learner.device != "auto" else "cuda" if has_gpu("auto") else "cpu"
    learners, of_each = ("learner", "") if learner.count == 1 else (f"{learner.count} learners", " each")
    threads, learner_threads = (f"{n} thread{'s' if n > 1 else ''}" for n in (actors.threads, learner.threads))
    who = f"{actors.count} actor{'s' if actors.count > 1 else ''}"
    acting = f"{who} of {actors.environments} environments, {threads} each"
    if config.environment.is_remote:
        acting = f"1 actor of up to {remote.clients} remote clients, {threads}"
    uses = f"{acting}; {learners} on {device}, {learner_threads}{of_each}"
    if not (config.has_schedule and config.schedule_steps):
        return uses
    return f"{uses}; schedules end at {config.schedule_steps:,} env steps (--schedule-steps)"


def require_room(config: RunConfig, spec: EnvironmentSpec) -> None:
    """Raises `ConfigError` if this machine can never hold the placed run `config` with all of its roles."""
    memory = memory_bytes()[0]
    of_memory = f"of this machine's {decimal(int(memory))} of memory"
    for key, (value, each) in _memory_takers(config, spec).items():
        allowed = f"give at most {int(memory / each):,}: each takes {decimal(int(each))} or more {of_memory}"
        require(value * each <= memory, key, value, allowed)
    for key, (size, count) in _weights(config, spec).items():
        needed = count * WEIGHT_BYTES
        allowed = f"give less: its {count:,} weights take {decimal(needed)} {of_memory}"
        require(needed <= memory, key, size, allowed)
    count, limit = config.actors.count, open_files_limit()[0]
    if config.engine != "serial" and open_files(count) > limit:
        most = int((limit - OPEN_FILES[0]) / OPEN_FILES[1])
        to_do = f"give at most {most:,}" if most > 0 else f"run `ulimit -n {open_files(count)}` first"
        why = f"each takes {OPEN_FILES[1]} of the {limit:,.0f} open files that a process may have here (ulimit -n)"
        require(False, "actors.count", count, f"{to_do}: {why}")


def _weights(config: RunConfig, spec: EnvironmentSpec) -> dict[str, tuple[object, int]]:
    """By key, its value and the weights that it makes; a user's own torso may take no notice of any."""
    network, num_critics = config.network, getattr(config.algorithm, "num_critics", 0)
    if ":" in network.torso:
        return {}
    of_critics: tuple[int, ...] = getattr(config.algorithm, "critic_hidden_sizes", ())
    inputs = [] if spec.has_images else [math.prod(spec.input_shape)]

    def count(sizes: tuple[int, ...]) -> int:
        return sum(map(math.prod, itertools.pairwise([*inputs, *sizes])))

    hidden = count(network.hidden_sizes)
    return {
        "network.hidden_sizes": (network.hidden_sizes, hidden),
        "network.lstm": (network.lstm, 4 * network.lstm * (sum(network.hidden_sizes[-1:]) + network.lstm)),
        "algorithm.critic_hidden_sizes": (of_critics, count(of_critics)),
        "algorithm.num_critics": (num_critics, num_critics * count(of_critics or network.hidden_sizes)),
    }


def _memory_takers(config: RunConfig, spec: EnvironmentSpec) -> dict[str, tuple[int, float]]:
    """By key, its value and the least bytes that each takes. A batch or an unroll is never larger than replay."""
    actors, evaluation, k = config.actors, config.evaluation, config.algorithm.unroll_length
    plane_bytes = math.prod(spec.plane_shape) * np.dtype(spec.dtype).itemsize + 4  # with its step in the episode
    sequence_bytes = (spec.stack + k) * plane_bytes + k * STEP_BYTES
    actor_bytes = LEAST_SERIAL_ACTOR_BYTES if config.engine == "serial" else LEAST_ACTOR_BYTES
    environment_bytes = LEAST_ENVIRONMENT_BYTES + sequence_bytes
    held_bytes = sequence_bytes / MOST_COMPRESSION if config.replay.compress else sequence_bytes
    here = config.replay.device == "cpu" or not has_gpu(config.learner.device)
    replays = here and config.algorithm.replay_ratio > 0
    return {
        "environment.stack": (spec.stack, plane_bytes),
        "algorithm.unroll_length": (k, plane_bytes + STEP_BYTES),
        "replay.capacity": (config.replay.capacity if replays else 0, held_bytes / k),
        "actors.environments": (actors.environments, environment_bytes),
        "actors.max_unanswered": (config.max_unanswered, actors.environments * sequence_bytes),
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


def usual_bytes(num_actors: int, replay_bytes: float) -> float:
    """Bytes of memory that a run usually takes, of which `replay_bytes` are for replay."""
    return replay_bytes + (num_actors + 2) * PROCESS_BYTES


def open_files(num_actors: int) -> int:
    """Files that the process with most of them holds open."""
    return OPEN_FILES[0] + OPEN_FILES[1] * num_actors


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
