"""What of this machine each process of a run gets, where the configuration leaves it open. Torch-free."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from apex_acer.config import RunConfig
from apex_acer.protocol.messages import Role
from apex_acer.protocol.specification import EnvironmentSpec

CORES_PER_ACTOR = 3  # without a GPU: an actor's frames cost the learner twice the time they cost the actor
GIVE_WAY = 10  # of 19 by which a process may lower its priority
VECTOR_ACTORS = 2, 4  # at least and at most, where a learner of small networks keeps up with few


def place(config: RunConfig, spec: EnvironmentSpec, cores: int | None = None) -> RunConfig:
    """`config` with a number for each count of actors and threads that is 0.

    Convolutions on a CPU gain from every core, because actors wait for the learner more than they run; small networks lose.
    A GPU learns while every core but two runs environments. The serial engine gets what two cores would, so that a run
    is the same wherever it is repeated.
    """
    cores = (2 if config.engine == "serial" else available_cores()) if cores is None else cores
    low, high = VECTOR_ACTORS
    if learns_on_every_core(config, spec):
        count, learner_threads = max(low, cores // CORES_PER_ACTOR), cores
    elif spec.is_image:
        count, learner_threads = max(1, cores - 2), 2
    else:
        count, learner_threads = max(low, min(cores - 1, high)), 1
    actors, learner = config.actors, config.learner
    count = actors.count or count
    learner_threads = max(1, learner_threads // learner.count)
    threads = actors.threads or max(1, cores // (2 * count))
    return dataclasses.replace(
        config,
        actors=dataclasses.replace(actors, count=count, threads=threads),
        learner=dataclasses.replace(learner, threads=learner.threads or learner_threads),
    )


def learns_on_every_core(config: RunConfig, spec: EnvironmentSpec) -> bool:
    """Whether the learner has work for all cores: convolutions, and no GPU for them."""
    return spec.is_image and not has_gpu(config.learner.device)


def niceness(config: RunConfig, spec: EnvironmentSpec, role: Role) -> int:
    """Who shares the cores of a learner that wants all of them gives way; it is what everybody waits for."""
    return GIVE_WAY if role != "learner" and learns_on_every_core(config, spec) else 0


def num_threads(config: RunConfig, role: Role) -> int:
    """Threads that torch, or an actor's emulators, may use."""
    return config.learner.threads if role == "learner" else config.actors.threads


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def has_gpu(device: str) -> bool:
    """Whether `learner.device` is one, as far as can be seen without asking CUDA."""
    return device.startswith("cuda") or (device == "auto" and Path("/dev/nvidia0").exists())


def describe(config: RunConfig) -> str:
    """One line for the user on what a placed run uses."""
    actors, learner = config.actors, config.learner
    each = f"{actors.environments} environments, {_threads(actors.threads)} each"
    device = learner.device if learner.device != "auto" else "cuda" if has_gpu("auto") else "cpu"
    several = learner.count > 1
    learners, of_each = (f"{learner.count} learners", " each") if several else ("learner", "")
    uses = f"{actors.count} actors of {each}; {learners} on {device}, {_threads(learner.threads)}{of_each}"
    if not (config.has_schedule and config.schedule_steps):
        return uses
    return f"{uses}; schedules end at {config.schedule_steps:,} env steps (--schedule-steps)"


def _threads(count: int) -> str:
    return f"{count} thread{'s' if count > 1 else ''}"
