"""The measurements of pieces run, in sizes that tell nothing."""

from __future__ import annotations

import pytest

from apex_acer.config.runfile import load_run
from checks.benchmarks import critic_widths, growth, pictures, precision, priorities, tricks


def test_growth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "UPDATES", 3)
    found = growth.measure("cartpole", 1_000)
    assert 900 < found["steps"] <= 1_000
    assert found["update_ms"] > 0


def test_critic_widths() -> None:
    found = critic_widths.measure(critic_widths.variants((8, 16), (8,), 4), turns=2, obs=3, actions=1)
    assert found.keys() == {"sac", "crossq 8", "crossq 16"}
    assert min(found.values()) > 0


def test_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "AVERAGED", 2)
    config = load_run("cartpole")
    spec, unrolls = precision.play(config, 800)
    first, second = (precision.learn(config, spec, unrolls, updates=4, seed=seed) for seed in (0, 1))
    assert len(first["q_loss"]) == 2
    assert precision.distance(first["q_loss"], second["q_loss"]) > 0


def test_priorities(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(priorities, "ROUNDS", 2)
    monkeypatch.setattr(priorities, "REPEATS", 1)
    assert priorities.measure(10_000).keys() == {"draws", "puts", "rounds"}
    assert min(priorities.measure_replay(10_000).values()) > 0


def test_tricks() -> None:
    assert tricks.WITHOUT.keys() == tricks.MEASURED.keys()
    found, pairs = tricks.ratio("cartpole", "update", "without_compiler", seconds=0.0)
    assert pairs == 3
    assert found > 0


def test_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "STEPS", 3)
    monkeypatch.setattr(pictures, "WARM_UP", 1)
    found = pictures.measure("Pendulum-v1")
    assert found["frame"] == [500, 500, 3]
    assert found["step_with_pictures_ms"] > found["step_ms"] > 0
