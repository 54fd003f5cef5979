from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest

from apex_acer.algorithms.acer.settings import AcerConfig
from apex_acer.algorithms.dqn.settings import ApexDqnConfig
from apex_acer.config import RunConfig
from apex_acer.tools.capacity import measure
from tests.processes import children

RATES = {"acting": 2000.0, "update": 5000.0}


def test_components_are_measured_in_processes_of_their_own() -> None:
    rates = measure.measure("cartpole", ("environment", "acting", "update"), seconds=0.2)
    assert rates.keys() == {"environment", "acting", "update"}
    assert rates["environment"] > rates["acting"] > 100  # acting is an environment step and more
    assert rates["update"] > 100
    assert not children(os.getpid())


def test_a_piece_that_fails_is_named_by_its_last_line(tmp_path: Path) -> None:
    run = tmp_path / "run.toml"
    run.write_text('environment.id = "Nope-v1"')
    with pytest.raises(RuntimeError, match=r"'Nope-v1' is not registered") as raised:
        measure.measure(str(run), ("environment",), seconds=0.2)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("while_it_measures", [False, True])
def test_measuring_has_a_deadline(while_it_measures: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "DEADLINE_S", 0.1)
    if while_it_measures:
        monkeypatch.setattr(measure, "_let_all_begin", lambda workers: None)
    with pytest.raises(RuntimeError, match=r"^killed after 0 s"):
        measure.measure("cartpole", ("environment",), seconds=60)
    assert not children(os.getpid())


def replaying(ratio: float, config: Any = AcerConfig) -> RunConfig:
    return RunConfig(algorithm=config(replay_ratio=ratio))


def test_the_ceiling_is_that_of_the_busiest_resource() -> None:
    each = 1 / 2000 + 5 / 5000
    assert measure.ceiling(RATES, replaying(4.0), 8, 8) == pytest.approx(8 / each)
    assert measure.ceiling(RATES, replaying(4.0), 8, 1) == pytest.approx(1000)  # a learner with one thread
    assert measure.ceiling(RATES, replaying(4.0), 8, 2, gpu=True) == pytest.approx(1000)
    assert measure.ceiling(RATES, replaying(0.25), 1, 2, gpu=True) == pytest.approx(2000)  # the actors
    only_replay = replaying(5.0, ApexDqnConfig)  # nothing is trained on fresh
    assert measure.ceiling(RATES, only_replay, 8, 8) == pytest.approx(8 / each)


def test_in_turns_each_is_called_as_often() -> None:
    calls: list[str] = []

    def work(name: str, spins: int) -> int:
        calls.append(name)
        sum(range(spins))
        return 10

    rates = measure.in_turns({"much": lambda: work("much", 200_000), "little": lambda: work("little", 20_000)}, 0.02)
    assert calls == ["much", "little"] * (len(calls) // 2)
    assert rates["little"] > 3 * rates["much"] > 0


COMPONENTS = {"acting": 1000.0, "sending": 4000.0, "intake": 10_000.0, "unroll_bytes": 50.0, "weights_bytes": 2e4}
ON_CORES = COMPONENTS | {"update": 5000.0, "stepping": 50_000.0}
CONFIG = RunConfig(algorithm=AcerConfig(replay_ratio=4.0, unroll_length=20))


def test_rates_become_what_one_environment_step_takes() -> None:
    work = measure.make_work(ON_CORES, CONFIG, 100.0)
    assert work.acting_s == pytest.approx(1 / 1000 + 1 / 4000)
    assert work.intake_s == pytest.approx(1e-4)
    assert work.stepping_s == pytest.approx(5 / 50_000)  # a fresh sample and four replayed ones
    assert work.gradient_s == pytest.approx(5 / 5000 - 5 / 50_000)
    assert work.updates == pytest.approx(5 / (16 * 20))  # batch size, unroll length
    assert work.requests == pytest.approx(1 / (20 * 8))  # weights_every, environments


def test_a_gpu_does_whole_updates_and_its_rate_may_not_be_known() -> None:
    assert measure.make_work(COMPONENTS | {"update": 5000.0}, CONFIG, 100.0).gradient_s == pytest.approx(5 / 5000)
    assert measure.make_work(COMPONENTS, CONFIG, 100.0).gradient_s is None


def test_a_batch_of_single_steps_holds_as_many() -> None:
    config = dataclasses.replace(CONFIG, algorithm=ApexDqnConfig(replay_ratio=4.0))
    assert measure.make_work(ON_CORES, config, 100.0).updates == pytest.approx(4 / 16)
