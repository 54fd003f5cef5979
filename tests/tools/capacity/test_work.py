from __future__ import annotations

import dataclasses

import pytest

from apex_acer.algorithms.acer.settings import AcerConfig
from apex_acer.algorithms.dqn.settings import ApexDqnConfig
from apex_acer.config import RunConfig
from apex_acer.tools.capacity.work import make_work

RATES = {"acting": 1000.0, "sending": 4000.0, "intake": 10_000.0, "unroll_bytes": 50.0, "weights_bytes": 2e4}
CPU_RATES = RATES | {"update": 5000.0, "stepping": 50_000.0}
CONFIG = RunConfig(algorithm=AcerConfig(replay_ratio=4.0, unroll_length=20))


def test_rates_become_what_one_environment_step_takes() -> None:
    work = make_work(CPU_RATES, CONFIG, 100.0)
    assert work.acting_s == pytest.approx(1 / 1000 + 1 / 4000)
    assert work.intake_s == pytest.approx(1e-4)
    assert work.stepping_s == pytest.approx(5 / 50_000)  # a fresh sample and four replayed ones
    assert work.gradient_s == pytest.approx(5 / 5000 - 5 / 50_000)
    assert work.updates == pytest.approx(5 / (16 * 20))  # batch size, unroll length
    assert work.requests == pytest.approx(1 / (20 * 8))  # weights_every, environments


def test_a_gpu_does_whole_updates_and_its_rate_may_not_be_known() -> None:
    assert make_work(RATES | {"update": 5000.0}, CONFIG, 100.0).gradient_s == pytest.approx(5 / 5000)
    assert make_work(RATES, CONFIG, 100.0).gradient_s is None


def test_a_batch_of_single_steps_holds_as_many() -> None:
    config = dataclasses.replace(CONFIG, algorithm=ApexDqnConfig(replay_ratio=4.0))
    assert make_work(CPU_RATES, config, 100.0).updates == pytest.approx(4 / 16)
