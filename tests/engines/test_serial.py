from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import pytest

from apex_acer.config import ConfigError
from apex_acer.manager import RunFailed, TrainResult, train
from apex_acer.policy import load_policy
from tests.runs import tiny_run


def run(folder: Path, **changes: Any) -> TrainResult:
    return train(tiny_run(folder, engine="serial", **changes))


def test_one_seed_gives_the_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    files = []
    for number, seed in enumerate((3, 3, 4)):
        folder = tmp_path / str(number)
        result = run(folder, seed=seed, stop__env_steps=4000, evaluation__every=1000)
        assert result.eval_return is not None
        files.append([(folder / name).read_bytes() for name in ("weights.safetensors", "best.safetensors")])
    assert files[0] == files[1]
    assert files[0][0] != files[2][0]
    assert files[0][1] != files[2][1]


def test_result_says_what_happened(tmp_path: Path) -> None:
    result = run(tmp_path, stop__env_steps=600)
    assert result.reason == "env_steps"
    assert result.exit_code == 0
    assert 600 <= result.env_steps < 600 + 2 * 20
    assert result.updates > 20
    assert result.wall_s > 0
    assert 0 < result.startup_s < 60
    assert load_policy(result.weights).metadata["env_steps"] == result.env_steps


def test_ends_when_its_minutes_are_over(tmp_path: Path) -> None:
    result = run(tmp_path, stop__env_steps=10**9, stop__minutes=0.5 / 60)
    assert result.reason == "minutes"
    assert 0.5 <= result.wall_s < 3


def test_ends_at_the_return_asked_for(tmp_path: Path) -> None:
    result = run(tmp_path, stop__env_steps=10**9, evaluation__every=200, stop__at_return=5.0)
    assert result.reason == "at_return"
    assert result.eval_return is not None
    assert result.eval_return >= 5.0
    assert Path(result.weights).read_bytes() == (tmp_path / "best.safetensors").read_bytes()
    assert load_policy(result.weights).metadata["env_steps"] < 240


class Breaks(gymnasium.Wrapper[Any, Any, Any, Any]):
    def step(self, action: Any) -> Any:
        raise ZeroDivisionError("the environment broke")


def test_environment_that_raises_ends_the_run_with_its_traceback_and_the_actor_s_name(tmp_path: Path) -> None:
    with pytest.raises(RunFailed) as raised:
        run(tmp_path, environment__wrappers=(f"{__name__}:Breaks",))
    assert "ZeroDivisionError: the environment broke" in str(raised.value)
    assert "actor_0" in str(raised.value)


def test_weights_that_do_not_fit_are_a_configuration_error(tmp_path: Path) -> None:
    result = run(tmp_path / "a", stop__env_steps=100)
    with pytest.raises(ConfigError, match="tensor network"):
        run(tmp_path / "b", load=result.weights, network__hidden_sizes=(8,))
