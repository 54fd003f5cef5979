"""Predicts how fast a run would be on other machines from what its components cost on this one; without torch.

Each environment step costs some time of each resource; the resource that is used up first limits the run.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

USUAL = 0.92  # share of the limit that the runs in docs/performance.md reach
WORTH = 1.05  # factor in the rate from which advice is given


@dataclass(frozen=True)
class Work:
    """The cost of one environment step of a run; times are seconds of one core."""

    acting_s: float
    """An actor's time: environments, policy, sending, loading weights."""
    intake_s: float
    """A learner's time to receive, check and store."""
    stepping_s: float
    """A learner's time for the part of updates that runs on one thread."""
    gradient_s: float | None
    """Time of all learner cores, or of a GPU, for the rest of the updates; None: unknown, counted as 0."""
    samples: float
    """Samples trained on."""
    updates: float
    requests: float
    """Requests for weights."""
    unroll_bytes: float
    """Bytes sent to the learner."""
    weights_bytes: float
    """Size of one version of the weights."""
    replay_bytes: float
    in_turns: Work | None = None
    """The cost while roles take turns on a core and share its caches; None if they never do."""


@dataclass(frozen=True)
class Machines:
    """The machines of a run: actors share a machine with the learners if they fit, and otherwise have their own."""

    actors: int
    """Actor processes, each of which uses at most one core."""
    cores_per_node: int
    """Cores of each machine."""
    gpus: int = 0
    """GPUs of the learners' machine; 0: the learners use its cores."""
    learners: int = 1
    """Learners, which share every update."""
    threads: int = 1
    """Threads of each learner for a gradient."""
    network_gbit: float = 10.0
    """Network speed of the learners' machine in each direction, Gbit/s."""

    @property
    def nodes(self) -> int:
        """Machines that the actors need."""
        return math.ceil(self.actors / self.cores_per_node)

    @property
    def bytes_per_s(self) -> float:
        """Bytes per second of the network in each direction."""
        return self.network_gbit * 1e9 / 8


@dataclass(frozen=True)
class Plan:
    """The predicted speed of a run, per second."""

    limits: dict[str, float]
    """Environment steps that each resource allows, the lowest first."""
    env_steps_per_s: float
    samples_per_s: float
    updates_per_s: float
    network_in: float
    """Bytes into the learners' machine."""
    network_out: float
    """Bytes out of the learners' machine."""
    enough_actors: int
    """The least number of actors that reaches the limit."""
    gpu_samples_per_s: float | None
    """Samples that each GPU must reach not to be the limit; None if the learners have no time left beside intake."""

    @property
    def limit(self) -> str:
        """The resource that limits the run."""
        return next(iter(self.limits))


def make_plan(work: Work, machines: Machines) -> Plan:
    """The plan for `work` on `machines`."""
    limits = dict(sorted(find_limits(work, machines).items(), key=lambda limit: limit[1]))
    rate = USUAL * next(iter(limits.values()))
    into, out = _traffic(work, machines)
    others = min(limit for name, limit in limits.items() if name != "learner")
    spare_s = machines.learners / others - work.intake_s  # of a learner, for updates, per environment step
    return Plan(
        limits=limits,
        env_steps_per_s=rate,
        samples_per_s=rate * work.samples,
        updates_per_s=rate * work.updates,
        network_in=rate * into,
        network_out=rate * out,
        enough_actors=math.ceil(min(limits.values()) * work.acting_s),
        gpu_samples_per_s=work.samples / spare_s if spare_s > 0 else None,
    )


def find_limits(work: Work, machines: Machines) -> dict[str, float]:
    """Environment steps per second that each resource alone allows."""
    serial, parallel = _learner_s(work, machines)
    limits = {"actors": machines.actors / work.acting_s, "learner": 1 / (serial + parallel)}
    if machines.nodes == 1:
        return limits | {"cores": 1 / _shared_s(work.in_turns or work, machines)}
    return limits | {"network": machines.bytes_per_s / max(_traffic(work, machines))}


def advise(work: Work, machines: Machines, plan: Plan, *, compressed: bool) -> list[str]:
    """Advice that would make the run faster or save machines."""
    following = list(plan.limits.values())[1]
    match plan.limit:
        case "actors":
            return [f"--actors {math.ceil(following * work.acting_s)}, after which the next limit is reached"]
        case "network" if plan.network_in >= plan.network_out:
            return ["a faster network" if compressed else "--compress"]
        case "network":
            return ["a larger actors.weights_every, or a faster network"]
        case "cores":
            others = "a GPU, or more actors than --cores-per-node on machines of their own"
            return [*_more_actors(work, machines, plan), others]
    fewer = f"--actors {plan.enough_actors} do as well"
    return [*_more_learners(work, machines, plan), *([fewer] if plan.enough_actors < machines.actors else [])]


def _more_actors(work: Work, machines: Machines, plan: Plan) -> list[str]:
    """Advice on the least number of actors with which one machine comes close to its highest rate."""
    options = [dataclasses.replace(machines, actors=n) for n in range(machines.actors, machines.cores_per_node + 1)]
    rates = {option.actors: make_plan(work, option).env_steps_per_s for option in options}
    most = max(rates.values(), default=0.0)
    least = next((count for count, rate in rates.items() if rate * WORTH >= most), 0)
    return [f"--actors {least} for {rates[least]:,.0f} env steps/s"] if most > plan.env_steps_per_s * WORTH else []


def _more_learners(work: Work, machines: Machines, plan: Plan) -> list[str]:
    double = 2 * machines.learners
    gpus = max(machines.gpus, double) if machines.gpus else 0
    rate = make_plan(work, dataclasses.replace(machines, learners=double, gpus=gpus)).env_steps_per_s
    if rate < plan.env_steps_per_s * WORTH:
        return ["a lower algorithm.replay_ratio" if machines.gpus else "a GPU, or a lower algorithm.replay_ratio"]
    where = f" --gpus {gpus}" if gpus else ""
    larger = ["a larger learner.batch_size, which a GPU computes at a higher rate"] if gpus else []
    return [f"--learners {double}{where} for at most {rate:,.0f} env steps/s", *larger]


def _learner_s(work: Work, machines: Machines) -> tuple[float, float]:
    """Seconds that the learners need for an environment step: on one core each, and on all their threads."""
    serial, gradient = (work.intake_s + work.stepping_s) / machines.learners, work.gradient_s or 0.0
    if machines.gpus:
        return serial, gradient / min(machines.gpus, machines.learners)
    return serial, gradient / min(machines.threads * machines.learners, machines.cores_per_node)


def _shared_s(work: Work, machines: Machines) -> float:
    """Seconds of an environment step if learners come first and actors on the same machine have the other cores."""
    serial, parallel = _learner_s(work, machines)
    cores, learners = machines.cores_per_node, machines.learners
    busy = learners if machines.gpus else learners * machines.threads

    def beside(taken: int) -> int:
        return min(machines.actors, max(0, cores - taken))

    left_s = work.acting_s - serial * beside(learners) - parallel * beside(busy)
    return serial + parallel + max(0.0, left_s) / beside(0)


def _traffic(work: Work, machines: Machines) -> tuple[float, float]:
    """Bytes per environment step into and out of the learners' machine; 0 if the actors are there, too.

    A machine with actors fetches each version of the weights only once.
    """
    if machines.nodes == 1:
        return 0.0, 0.0
    return work.unroll_bytes, work.weights_bytes * min(work.requests, machines.nodes * work.updates)
