from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch

from apex_acer.config import ConfigError
from apex_acer.manager import RunFailed, TrainResult, train
from apex_acer.policy import load_policy
from apex_acer.weights import read
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


OPTIONS = {
    "normalising": {"network__normalise": True, "algorithm__normalise_rewards": True},
    "recurrent": {"network__lstm": 8, "algorithm__burn_in": 2},
    "much at once": {
        "network__normalise": True,
        "network__lstm": 8,
        "algorithm__burn_in": 2,
        "algorithm__mix": "joint",
        "algorithm__max_behaviour_kl": 0.5,
        "algorithm__terminal_penalty": 0.5,
        "algorithm__trust_region_kl": 0.01,
        "replay__max_lag": 50,
    },
}


@pytest.mark.parametrize("changes", OPTIONS.values(), ids=OPTIONS)
def test_a_run_trains_and_another_goes_on_from_its_weights(tmp_path: Path, changes: dict[str, Any]) -> None:
    first = run(tmp_path / "first", stop__env_steps=500, **changes)
    more = run(tmp_path / "more", stop__env_steps=500, load=first.weights, **changes)
    assert min(first.updates, more.updates) > 20
    before, after = (read(result.weights)[0] for result in (first, more))
    assert before.keys() == after.keys()
    unchanged = {name for name in before if bool((before[name] == after[name]).all())}
    assert unchanged == (set() if "algorithm__trust_region_kl" in changes else {"trust_region.delta"})
    for name in before:
        if name.endswith("count"):  # of what was seen: the second run sees about as much again
            assert 1.7 < after[name] / before[name] < 2.3
    policy = load_policy(more.weights)
    assert torch.isfinite(policy.network(torch.zeros(1, 4)).q_values).all()
