"""How a run's processes share the cores of this machine, if the configuration does not say so. Torch-free."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from apex_acer.config import ConfigError, RunConfig
from apex_acer.protocol.messages import Role
from apex_acer.protocol.specification import EnvironmentSpec

CORES_PER_ACTOR = 3  # without a GPU: a frame costs the learner twice the time that it costs the actor
GIVE_WAY = 10  # by which actors lower their priority; 19 is the most
DEVICES = Path("/dev")
GPU_FILES = "nvidia[0-9]*", "nvhost-*", "nvgpu", "dxg", "kfd"  # there: of NVIDIA, of its Tegra, of WSL, of AMD
VECTOR_ACTORS = 2, 4  # at least and at most, for small networks, because their learner keeps up with only a few


def place(config: RunConfig, spec: EnvironmentSpec, cores: int | None = None) -> RunConfig:
    """`config` with a number in place of each count of actors and threads that is 0.

    Convolutions on a CPU gain from every core, because actors wait for the learner more than they run; other networks get
    slower, unless several losses can be computed side by side. With a GPU, all cores but two run environments. The serial
    engine always counts two cores, so that a run is the same on every machine.
    """
    cores = (2 if config.engine == "serial" else available_cores()) if cores is None else cores
    low, high = VECTOR_ACTORS
    if learns_on_every_core(config, spec):
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


def learns_on_every_core(config: RunConfig, spec: EnvironmentSpec) -> bool:
    """Whether the learner can use all cores: it computes convolutions, and no GPU does so for it."""
    return spec.has_images and not has_gpu(config.learner.device)


def niceness(config: RunConfig, spec: EnvironmentSpec, role: Role) -> int:
    """How much `role` lowers its priority: actors wait for the learner, so they give way if it uses every core.

    Actors of remote clients do not: they compute little, and the clients wait for them.
    """
    gives_way = role == "actor" and not config.environment.is_remote and learns_on_every_core(config, spec)
    return GIVE_WAY if gives_way else 0


def num_threads(config: RunConfig, role: Role) -> int:
    """Threads that torch, or the emulators of an actor, may use."""
    return config.learner.threads if role == "learner" else config.actors.threads


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def has_gpu(device: str) -> bool:
    """Whether the setting `device` leads to a GPU, as far as can be told without asking CUDA."""
    return device.startswith("cuda") or (device == "auto" and Path("/dev/nvidia0").exists())


def require_gpus(config: RunConfig) -> None:
    """Raises `ConfigError` if a device is asked for that cannot be here, as far as can be told without asking CUDA."""
    for key, name in (("learner.device", config.learner.device), ("actors.device", config.actors.device)):
        if name.startswith("cuda") and not any(path for pattern in GPU_FILES for path in DEVICES.glob(pattern)):
            raise ConfigError(f"{key}: {name!r} is not there; this machine has 0 CUDA devices; give cpu or auto")


def describe(config: RunConfig) -> str:
    """One line that tells the user what a placed run uses."""
    actors, learner = config.actors, config.learner
    each = f"{actors.environments} environments, {_threads(actors.threads)} each"
    device = learner.device if learner.device != "auto" else "cuda" if has_gpu("auto") else "cpu"
    several = learner.count > 1
    learners, of_each = (f"{learner.count} learners", " each") if several else ("learner", "")
    if config.environment.is_remote:
        acting = f"1 actor of up to {config.environment.remote.clients} remote clients, {_threads(actors.threads)}"
    else:
        acting = f"{actors.count} actors of {each}"
    uses = f"{acting}; {learners} on {device}, {_threads(learner.threads)}{of_each}"
    if not (config.has_schedule and config.schedule_steps):
        return uses
    return f"{uses}; schedules end at {config.schedule_steps:,} env steps (--schedule-steps)"


def _threads(count: int) -> str:
    return f"{count} thread{'s' if count > 1 else ''}"
