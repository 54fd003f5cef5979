from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from apex_acer.algorithms.acer.settings import AcerConfig
from apex_acer.algorithms.dqn.settings import ApexDqnConfig
from apex_acer.config import RunConfig
from apex_acer.tools.capacity import components
from tests.processes import children

RATES = {"acting": 2000.0, "update": 5000.0}


def test_components_are_measured_in_processes_of_their_own() -> None:
    rates = components.measure("cartpole", ("environment", "acting", "update"), seconds=0.2)
    assert rates.keys() == {"environment", "acting", "update"}
    assert rates["environment"] > rates["acting"] > 100  # acting is an environment step and more
    assert rates["update"] > 100
    assert not children(os.getpid())


def test_a_piece_that_fails_is_named_by_its_last_line(tmp_path: Path) -> None:
    run = tmp_path / "run.toml"
    run.write_text('environment.id = "Nope-v1"')
    with pytest.raises(RuntimeError, match=r"'Nope-v1' is not registered") as raised:
        components.measure(str(run), ("environment",), seconds=0.2)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("while_it_measures", [False, True])
def test_measuring_has_a_deadline(while_it_measures: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(components, "DEADLINE_S", 0.1)
    if while_it_measures:
        monkeypatch.setattr(components, "_let_all_begin", lambda workers: None)
    with pytest.raises(RuntimeError, match=r"^killed after 0 s"):
        components.measure("cartpole", ("environment",), seconds=60)
    assert not children(os.getpid())


def replaying(ratio: float, config: Any = AcerConfig) -> RunConfig:
    return RunConfig(algorithm=config(replay_ratio=ratio))


def test_the_ceiling_is_that_of_the_busiest_resource() -> None:
    each = 1 / 2000 + 5 / 5000
    assert components.ceiling(RATES, replaying(4.0), 8, 8) == pytest.approx(8 / each)
    assert components.ceiling(RATES, replaying(4.0), 8, 1) == pytest.approx(1000)  # a learner with one thread
    assert components.ceiling(RATES, replaying(4.0), 8, 2, gpu=True) == pytest.approx(1000)
    assert components.ceiling(RATES, replaying(0.25), 1, 2, gpu=True) == pytest.approx(2000)  # the actors
    only_replay = replaying(5.0, ApexDqnConfig)  # nothing is trained on fresh
    assert components.ceiling(RATES, only_replay, 8, 8) == pytest.approx(8 / each)


def test_in_turns_each_is_called_as_often() -> None:
    calls: list[str] = []

    def work(name: str, spins: int) -> int:
        calls.append(name)
        sum(range(spins))
        return 10

    rates = components.in_turns({"much": lambda: work("much", 200_000), "little": lambda: work("little", 20_000)}, 0.02)
    assert calls == ["much", "little"] * (len(calls) // 2)
    assert rates["little"] > 3 * rates["much"] > 0
