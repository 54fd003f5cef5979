"""CPUs and GPUs of each role."""

from __future__ import annotations

import pytest

from apex_acer.config import ConfigError, LearnerConfig
from apex_acer.engines.ray.engine import cpu_share, fits, num_gpus


@pytest.mark.parametrize(
    ("cpus", "actors", "expected"),
    [
        ({"here": 2.0}, 2, 0.5),
        ({"here": 1.0}, 4, 0.1666),
        ({"here": 64.0}, 21, 1.0),
        ({"here": 2.0, "there": 1.0}, 3, 0.5),  # 0.6 would leave one without a place
        ({"here": 1.0, "there": 8.0}, 8, 0.5),  # two must be here
    ],
)
def test_everybody_has_the_most_with_which_all_fit(cpus: dict[str, float], actors: int, expected: float) -> None:
    share = cpu_share(0, cpus, "here", actors, 2, may_grow=False)
    assert share == pytest.approx(expected, abs=1e-9)
    assert fits(share, cpus, "here", actors, 2)
    assert share == 1 or not fits(share + 2e-4, cpus, "here", actors, 2)


def test_many_roles_on_little_still_have_some() -> None:
    assert cpu_share(0, {"here": 1.0}, "here", 5000, 2, may_grow=False) == pytest.approx(1e-4)


def test_what_is_given_is_taken() -> None:
    assert cpu_share(3.0, {"here": 2.0}, "here", 2, 2, may_grow=True) == 3.0


@pytest.mark.parametrize("cpus", [{"here": 0.0}, {"here": 0.0, "there": 64.0}])
def test_a_machine_without_cpus_is_refused(cpus: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=r"ray\.address: .* 0 CPUs"):
        cpu_share(0, cpus, "here", 2, 2, may_grow=False)


def test_more_roles_than_shares_are_refused_at_once() -> None:
    with pytest.raises(ConfigError, match=r"actors\.count: 200000000 .* 3 CPUs have room for 30,000 roles; give fewer"):
        cpu_share(0, {"here": 2.0, "there": 1.0}, "here", 200_000_000, 2, may_grow=True)


def test_what_can_never_fit_on_one_machine_is_refused() -> None:
    assert cpu_share(0.5, {"here": 2.0}, "here", 2, 2, may_grow=False) == 0.5
    with pytest.raises(ConfigError, match=r"ray\.actor_cpus: 1; 4 roles of 1 CPUs do not fit, there are 2; give less"):
        cpu_share(1.0, {"here": 2.0}, "here", 2, 2, may_grow=False)


@pytest.mark.parametrize(
    ("device", "gpus", "at_home", "each"), [("auto", 2, 1, 1), ("auto", 0, 0, 0), ("cpu", 1, 1, 0), ("cuda", 0, 0, 0)]
)
def test_gpus(device: str, gpus: int, at_home: int, each: int) -> None:
    assert num_gpus(LearnerConfig(2, device), gpus, at_home) == each


def test_too_few_gpus_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"learner\.count: 2 is not allowed; this cluster has 1 GPUs"):
        num_gpus(LearnerConfig(2), 1.0, 1.0)
