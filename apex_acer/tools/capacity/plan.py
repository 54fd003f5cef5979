"""What a run would do on other machines, from what its components cost on this one: arithmetic alone. Torch-free.

Every resource has so much to give each second, and an environment step takes its part of it; what is used up first limits
the run.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

USUAL = 0.92  # of the limit that runs reach, those of docs/performance.md with sending and intake counted
WORTH = 1.05  # times the rate, for advice


@dataclass(frozen=True)
class Work:
    """What one environment step takes, in seconds of one core and bytes."""

    acting_s: float
    """Of an actor's core: environments, policy, sending, and taking new weights."""
    intake_s: float
    """Of a learner's thread: receiving, checking and storing."""
    stepping_s: float
    """Of a learner's thread: what of updates no other thread can help with."""
    gradient_s: float | None
    """Of a learner's cores, or of a GPU: the rest of the updates; None: not known, which counts as nothing."""
    samples: float
    """Trained on."""
    updates: float
    """Of the network."""
    requests: float
    """For new weights."""
    unroll_bytes: float
    """To the learner."""
    weights_bytes: float
    """Of one version of the weights."""
    replay_bytes: float
    """Of replay memory."""
    in_turns: Work | None = None
    """The same where roles take turns on a core and leave each other its caches; None: where none do."""


@dataclass(frozen=True)
class Machines:
    """What there is to run on. Actors that fit one machine share it with the learners; more have machines of their own."""

    actors: int
    """Processes, one core each at most."""
    cores_per_node: int
    """Of each machine."""
    gpus: int = 0
    """Of the machine on which the learners are; 0: they learn on its cores."""
    learners: int = 1
    """Which share every update."""
    threads: int = 1
    """Of each learner, that a gradient is computed on."""
    network_gbit: float = 10.0
    """Per second, each way, of the learners' machine."""

    @property
    def nodes(self) -> int:
        """Machines that the actors need."""
        return math.ceil(self.actors / self.cores_per_node)

    @property
    def bytes_per_s(self) -> float:
        """Of the network, each way."""
        return self.network_gbit * 1e9 / 8


@dataclass(frozen=True)
class Plan:
    """What to expect of a run."""

    limits: dict[str, float]
    """Environment steps per second that each resource allows, the lowest first."""
    env_steps_per_s: float
    """Expected."""
    samples_per_s: float
    """Trained on."""
    updates_per_s: float
    """Of the network."""
    network_in: float
    """Bytes per second into the learners' machine."""
    network_out: float
    """Bytes per second out of it."""
    enough_actors: int
    """Which would do as well, where they are not what limits the run."""
    gpu_samples_per_s: float | None
    """What each GPU must reach not to be the limit; None: none could, for want of time beside taking unrolls in."""

    @property
    def limit(self) -> str:
        """The resource that is used up first."""
        return next(iter(self.limits))


def make_plan(work: Work, machines: Machines) -> Plan:
    """What `machines` make of `work`."""
    limits = dict(sorted(find_limits(work, machines).items(), key=lambda limit: limit[1]))
    rate = USUAL * next(iter(limits.values()))
    into, out = _traffic(work, machines)
    others = min(limit for name, limit in limits.items() if name != "learner")
    spare_s = machines.learners / others - work.intake_s  # a learner's, for the samples of one environment step
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
    """Environment steps per second that each resource allows by itself."""
    serial, parallel = _learner_s(work, machines)
    limits = {
        "actors": machines.actors / work.acting_s,
        "learner": 1 / (serial + parallel),
    }
    if machines.nodes == 1:
        return limits | {"cores": 1 / _shared_s(work.in_turns or work, machines)}
    return limits | {"network": machines.bytes_per_s / max(_traffic(work, machines))}


def advise(work: Work, machines: Machines, plan: Plan, *, compressed: bool) -> list[str]:
    """What would make the run faster, or do with fewer machines."""
    following = list(plan.limits.values())[1]
    match plan.limit:
        case "actors":
            return [f"--actors {math.ceil(following * work.acting_s)}, after which the next limit is reached"]
        case "network" if plan.network_in >= plan.network_out:
            return ["a faster network" if compressed else "--compress"]
        case "network":
            return ["a larger actors.weights_every, or a faster network"]
        case "cores":
            return [
                *_more_actors(work, machines, plan),
                "a GPU, or more actors than --cores-per-node on machines of their own",
            ]
    fewer = f"--actors {plan.enough_actors} do as well"
    return [*_more_learners(work, machines, plan), *([fewer] if plan.enough_actors < machines.actors else [])]


def _more_actors(work: Work, machines: Machines, plan: Plan) -> list[str]:
    """The least number of actors on the one machine that makes about the most of it."""
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
    return [f"--learners {double}{where} for about {rate:,.0f} env steps/s", *larger]


def _learner_s(work: Work, machines: Machines) -> tuple[float, float]:
    """Seconds that the learners need for one environment step, each its part: on one core each, and on all their threads."""
    serial, gradient = (work.intake_s + work.stepping_s) / machines.learners, work.gradient_s or 0.0
    if machines.gpus:
        return serial, gradient / min(machines.gpus, machines.learners)
    return serial, gradient / min(machines.threads * machines.learners, machines.cores_per_node)


def _shared_s(work: Work, machines: Machines) -> float:
    """Seconds of one environment step where learners, which go first, leave actors of the same machine the other cores."""
    serial, parallel = _learner_s(work, machines)
    cores, learners = machines.cores_per_node, machines.learners
    busy = learners if machines.gpus else learners * machines.threads

    def beside(taken: int) -> int:
        return min(machines.actors, max(0, cores - taken))

    left_s = work.acting_s - serial * beside(learners) - parallel * beside(busy)
    return serial + parallel + max(0.0, left_s) / beside(0)


def _traffic(work: Work, machines: Machines) -> tuple[float, float]:
    """Bytes of one environment step into the learners' machine and out of it; none where the actors are there, too.

    A machine of actors fetches a version of the weights once, however many of its actors ask for it.
    """
    if machines.nodes == 1:
        return 0.0, 0.0
    return work.unroll_bytes, work.weights_bytes * min(work.requests, machines.nodes * work.updates)
