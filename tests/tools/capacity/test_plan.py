"""The arithmetic, on rates made up so that each resource in turn is the one used up first."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from apex_acer.tools.capacity.plan import USUAL, Machines, Plan, Work, advise, make_plan

WORK = Work(  # 1,000 steps/s an actor; a learner that takes in 10,000 and learns from 20,000 samples a second
    acting_s=1e-3,
    intake_s=1e-4,
    stepping_s=0.0,
    gradient_s=2.5e-4,
    samples=5.0,
    updates=5 / 320,
    requests=1 / 320,
    unroll_bytes=8000.0,
    weights_bytes=3e6,
    replay_bytes=8500.0,
)
CLUSTER = Machines(actors=100, cores_per_node=32, gpus=1)


def plan(machines: Machines = CLUSTER, **work: Any) -> Plan:
    return make_plan(dataclasses.replace(WORK, **work), machines)


def advice(machines: Machines, *, compressed: bool = False, **work: Any) -> str:
    changed = dataclasses.replace(WORK, **work)
    return "; ".join(advise(changed, machines, make_plan(changed, machines), compressed=compressed))


NARROW = dataclasses.replace(CLUSTER, network_gbit=0.1)
MANY_LEARNERS = dataclasses.replace(CLUSTER, actors=33, learners=32, gpus=32)
ALONE = Machines(actors=2, cores_per_node=2, threads=2)
ON_CORES = {"gradient_s": 1e-3, "stepping_s": 1e-4}
CASES: dict[str, tuple[Machines, dict[str, Any], float, str]] = {  # the limit: on which machines, its rate, the advice
    "learner": (CLUSTER, {}, 1 / 3.5e-4, "--learners 2 --gpus 2 for at most 5,257 env steps/s … --actors 3 do as well"),
    "actors": (MANY_LEARNERS, {"weights_bytes": 0.0}, 33_000, "--actors 92, after which the next limit is reached"),
    "network, by unrolls": (NARROW, {"weights_bytes": 0.0}, 12.5e6 / 8000, "--compress"),
    # each machine fetches a version once
    "network, by weights": (NARROW, {}, 12.5e6 / (3e6 / 320), "actors.weights_every"),
    "cores": (ALONE, ON_CORES, 2 / (1e-3 + 1e-4 + 1e-4 + 1e-3), "GPU"),  # nobody waits
}


@pytest.mark.parametrize("case", CASES)
def test_the_first_limit_has_its_rate_and_its_advice(case: str) -> None:
    machines, work, rate, text = CASES[case]
    found, limit = plan(machines, **work), case.partition(",")[0]
    assert found.limit == limit
    assert found.limits[limit] == pytest.approx(rate)
    assert found.env_steps_per_s == pytest.approx(USUAL * rate)
    assert all(part in advice(machines, **work) for part in text.split(" … "))


def test_samples_updates_and_bytes_follow_from_the_environment_steps() -> None:
    found = plan()
    assert found.samples_per_s == pytest.approx(5 * found.env_steps_per_s)
    assert found.updates_per_s == pytest.approx(found.samples_per_s / 320)
    assert found.enough_actors == 3  # of 100
    unrolls = plan(NARROW, weights_bytes=0.0)
    assert unrolls.network_in == pytest.approx(USUAL * 12.5e6)
    assert unrolls.network_out == 0
    assert advice(NARROW, weights_bytes=0.0, compressed=True) == "a faster network"
    seldom = plan(updates=1 / 32_000)  # four machines and so few versions that not every request gets one
    assert seldom.network_out == pytest.approx(seldom.env_steps_per_s * 4 * 3e6 / 32_000)
    assert MANY_LEARNERS.nodes == 2


def test_actors_and_learner_share_the_cores_of_one_machine() -> None:
    slower = dataclasses.replace(WORK, acting_s=2e-3)
    found, in_turns = plan(ALONE), plan(ALONE, in_turns=slower)  # judged by what takes turns
    assert found.limits.keys() == in_turns.limits.keys() == {"actors", "learner", "cores"}
    assert in_turns.limits["cores"] == pytest.approx(plan(ALONE, acting_s=2e-3).limits["cores"])
    assert {name for name, limit in found.limits.items() if limit != in_turns.limits[name]} == {"cores"}
    assert found.network_in == found.network_out == 0
    one_thread = plan(dataclasses.replace(ALONE, threads=1))  # beside it an actor acts
    assert one_thread.limits["cores"] == pytest.approx(1 / (3.5e-4 + (1e-3 - 3.5e-4) / 2))
    one_actor = dataclasses.replace(ALONE, actors=1)
    # one core is idle while the learner waits for one actor
    assert plan(one_actor, **ON_CORES).limits["cores"] < plan(ALONE, **ON_CORES).limits["cores"]
    assert "--actors 2 for " in advice(one_actor, gradient_s=1e-3)
    left_over = plan(Machines(actors=31, cores_per_node=32, threads=1))
    assert left_over.limit == "learner"
    assert left_over.limits["cores"] == left_over.limits["learner"]


def test_a_gpu_whose_rate_is_not_known_is_told_what_it_must_reach() -> None:
    found = plan(dataclasses.replace(CLUSTER, actors=5, cores_per_node=4), gradient_s=None)
    assert found.limit == "actors"
    assert found.limits["actors"] == pytest.approx(5000)
    assert found.gpu_samples_per_s == pytest.approx(5 / (1 / 5000 - 1e-4))  # samples, in the time left beside taking in
    assert plan(gradient_s=None).gpu_samples_per_s is None  # a hundred actors: no time is left
