"""Shares of time and means, as rows of metrics have them."""

from __future__ import annotations

import contextlib

import torch

from apex_acer.protocol.metrics import Means, Timers


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


def test_a_phase_that_raises_is_counted_and_no_time_at_all_is_no_share() -> None:
    clock = Clock()
    timers = Timers(clock)
    with contextlib.suppress(KeyError), timers.phase("policy"):
        clock.now += 1.0
        raise KeyError
    clock.now += 1.0
    assert timers.shares() == {"time_policy": 0.5}
    assert timers.shares() == {"time_policy": 0.0}


def test_a_mean_is_of_the_updates_that_have_the_metric_and_is_emptied_when_read() -> None:
    means = Means()
    assert means.take() == {}
    for values in ({"q_loss": 1.0, "policy_loss": torch.tensor(4.0)}, {"q_loss": 3}, {"q_loss": 5.0, "policy_loss": 8}):
        means.add(values)
    taken = means.take()
    assert taken == {"q_loss": 3.0, "policy_loss": 6.0}
    assert {type(value) for value in taken.values()} == {float}
    assert means.take() == {}
    means.add({"q_loss": 7.0})
    assert means.take() == {"q_loss": 7.0}
