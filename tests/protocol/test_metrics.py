from __future__ import annotations

import contextlib
import time

import torch

from apex_acer.protocol.metrics import METRICS, Means, Timers


class Clock:
    """Stands still unless told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_shares_are_of_the_time_since_they_were_last_read() -> None:
    clock = Clock()
    timers = Timers(clock)
    for seconds in (1.0, 2.0):
        with timers.phase("policy"):
            clock.now += seconds
    with timers.phase("environment"):
        clock.now += 2.0
    clock.now += 5.0
    assert timers.shares() == {"time_policy": 0.3, "time_environment": 0.2}
    with timers.phase("environment"):
        clock.now += 4.0
    assert timers.shares() == {"time_policy": 0.0, "time_environment": 1.0}


def test_a_phase_that_raises_is_counted() -> None:
    clock = Clock()
    timers = Timers(clock)
    with contextlib.suppress(KeyError), timers.phase("policy"):
        clock.now += 1.0
        raise KeyError
    clock.now += 1.0
    assert timers.shares() == {"time_policy": 0.5}


def test_no_time_at_all_divides_nothing_by_zero() -> None:
    timers = Timers(Clock())
    with timers.phase("policy"):
        pass
    assert timers.shares() == {"time_policy": 0.0}


def test_real_time() -> None:
    timers = Timers()
    with timers.phase("waiting"):
        time.sleep(0.05)
    assert 0.5 < timers.shares()["time_waiting"] <= 1.0


def test_means_are_emptied_when_read() -> None:
    means = Means()
    assert means.take() == {}
    for value in (1.0, 2.0, 6.0):
        means.add({"loss": value, "entropy": torch.tensor(2 * value)})
    assert means.take() == {"loss": 3.0, "entropy": 6.0}
    assert means.take() == {}
    means.add({"value": 5})
    means.add({"value": 7, "policy_loss": 3})  # as of an update on which the policy is due
    assert means.take() == {"value": 6.0, "policy_loss": 3.0}


def test_a_mean_is_of_the_updates_that_have_the_metric() -> None:
    means = Means()
    for values in ({"q_loss": 1.0, "policy_loss": 4.0}, {"q_loss": 3.0}, {"q_loss": 5.0, "policy_loss": 8.0}):
        means.add(values)
    assert means.take() == {"q_loss": 3.0, "policy_loss": 6.0}


def test_means_are_plain_numbers_and_keep_no_graph() -> None:
    means = Means()
    means.add({"loss": torch.tensor(1.5)})
    (value,) = means.take().values()
    assert type(value) is float


def test_every_metric_says_what_it_is() -> None:
    for name, metric in METRICS.items():
        assert name.isidentifier()
        assert name == name.lower()
        assert metric.unit, name
        assert metric.meaning, name
        assert "\n" not in metric.meaning, name
