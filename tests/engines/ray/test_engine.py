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
    assert cpu_share(0.5, {"here": 2.0}, "here", 2, 2, may_grow=False) == 0.5  # what is given is taken
    assert cpu_share(3.0, {"here": 2.0}, "here", 2, 2, may_grow=True) == 3.0


@pytest.mark.parametrize(
    ("given", "cpus", "actors", "said"),
    [
        (0, {"here": 0.0}, 2, r"ray\.address: .* 0 CPUs"),
        (0, {"here": 0.0, "there": 64.0}, 2, r"ray\.address: .* 0 CPUs"),
        (
            0,
            {"here": 2.0, "there": 1.0},
            10**8,
            r"actors\.count: 100000000 .* 3 CPUs have room for 30,000 roles; give fewer",
        ),
        (1.0, {"here": 2.0}, 2, r"ray\.actor_cpus: 1; 4 roles of 1 CPUs do not fit, there are 2; give less"),
    ],
)
def test_what_can_never_fit_is_refused(given: float, cpus: dict[str, float], actors: int, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        cpu_share(given, cpus, "here", actors, 2, may_grow=False)


def test_gpus() -> None:
    assert num_gpus(LearnerConfig(2, "auto"), 2, 1) == 1
    assert num_gpus(LearnerConfig(2, "auto"), 0, 0) == 0
    assert num_gpus(LearnerConfig(2, "cpu"), 1, 1) == 0
    assert num_gpus(LearnerConfig(2, "cuda"), 0, 0) == 0
    with pytest.raises(ConfigError, match=r"learner\.count: 2 is not allowed; this cluster has 1 GPUs"):
        num_gpus(LearnerConfig(2), 1.0, 1.0)
