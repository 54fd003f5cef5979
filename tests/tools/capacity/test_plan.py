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


def test_the_learner_is_the_limit() -> None:
    found = plan()
    assert found.limit == "learner"
    assert found.limits["learner"] == pytest.approx(1 / 3.5e-4)
    assert found.env_steps_per_s == pytest.approx(USUAL / 3.5e-4)
    assert found.samples_per_s == pytest.approx(5 * found.env_steps_per_s)
    assert found.updates_per_s == pytest.approx(found.samples_per_s / 320)
    assert found.enough_actors == 3  # of 100
    assert "--learners 2 --gpus 2 for at most 5,257 env steps/s" in advice(CLUSTER)
    assert "--actors 3 do as well" in advice(CLUSTER)


def test_the_actors_are_the_limit() -> None:
    machines = dataclasses.replace(CLUSTER, actors=33, learners=32, gpus=32)
    found = plan(machines, weights_bytes=0.0)
    assert found.limit == "actors"
    assert found.limits["actors"] == pytest.approx(33_000)
    assert machines.nodes == 2
    assert advice(machines, weights_bytes=0.0) == "--actors 92, after which the next limit is reached"


def test_one_machine_is_judged_by_what_takes_turns() -> None:
    machines = Machines(actors=2, cores_per_node=2)
    slower = dataclasses.replace(WORK, acting_s=2e-3)
    alone, in_turns = plan(machines), plan(machines, in_turns=slower)
    assert alone.limits.keys() == in_turns.limits.keys() == {"actors", "learner", "cores"}
    assert in_turns.limits["cores"] == pytest.approx(plan(machines, acting_s=2e-3).limits["cores"])
    assert {name for name, limit in alone.limits.items() if limit != in_turns.limits[name]} == {"cores"}


def test_unrolls_fill_the_network() -> None:
    machines = dataclasses.replace(CLUSTER, network_gbit=0.1)
    found = plan(machines, weights_bytes=0.0)
    assert found.limit == "network"
    assert found.limits["network"] == pytest.approx(12.5e6 / 8000)
    assert found.network_in == pytest.approx(USUAL * 12.5e6)
    assert found.network_out == 0
    assert advice(machines, weights_bytes=0.0) == "--compress"
    assert advice(machines, weights_bytes=0.0, compressed=True) == "a faster network"


def test_weights_fill_the_network_but_each_machine_fetches_a_version_once() -> None:
    found = plan(dataclasses.replace(CLUSTER, network_gbit=0.1))
    assert found.limit == "network"
    assert found.limits["network"] == pytest.approx(12.5e6 / (3e6 / 320))
    assert "actors.weights_every" in advice(dataclasses.replace(CLUSTER, network_gbit=0.1))
    seldom = plan(updates=1 / 32_000)  # four machines and so few versions that not every request gets one
    assert seldom.network_out == pytest.approx(seldom.env_steps_per_s * 4 * 3e6 / 32_000)


def test_actors_and_learner_share_the_cores_of_one_machine() -> None:
    machines = Machines(actors=2, cores_per_node=2, threads=2)
    found = plan(machines, gradient_s=1e-3, stepping_s=1e-4)
    assert found.limit == "cores"
    assert found.limits["cores"] == pytest.approx(2 / (1e-3 + 1e-4 + 1e-4 + 1e-3))  # nobody waits
    assert found.network_in == found.network_out == 0
    alone = plan(dataclasses.replace(machines, actors=1), gradient_s=1e-3, stepping_s=1e-4)
    assert alone.limits["cores"] < found.limits["cores"]  # one core is idle while the learner waits for one actor
    assert "--actors 2 for " in advice(dataclasses.replace(machines, actors=1), gradient_s=1e-3)
    assert "GPU" in advice(machines, gradient_s=1e-3)
    left_over = plan(Machines(actors=31, cores_per_node=32, threads=1))
    assert left_over.limit == "learner"
    assert left_over.limits["cores"] == left_over.limits["learner"]


def test_a_gpu_whose_rate_is_not_known_is_told_what_it_must_reach() -> None:
    found = plan(dataclasses.replace(CLUSTER, actors=5, cores_per_node=4), gradient_s=None)
    assert found.limit == "actors"
    assert found.limits["actors"] == pytest.approx(5000)
    assert found.gpu_samples_per_s == pytest.approx(5 / (1 / 5000 - 1e-4))  # samples, in the time left beside taking in
    assert plan(gradient_s=None).gpu_samples_per_s is None  # a hundred actors: no time is left
