"""Choices and numbers in one `Dict` action, whose best ones are seen: algorithms for both kinds learn them together."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import onnxruntime
import pytest

from apex_acer import load_policy, train
from apex_acer.config import RunConfig
from apex_acer.manager.manager import resume
from apex_acer.tools.export import export_onnx
from tests.conftest import Refused, assert_refused, config_error
from tests.engines.test_serial import assert_equal_files
from tests.learning.test_choices import QUICK
from tests.on_policy import ALGORITHMS
from tests.runs import tiny_run

THROW = "tests.environments_for_tests:Throw-v0"
FAST = {"optimizer__learning_rate": 1e-2, "algorithm__normalise_advantages": True}
CASES: dict[str, dict[str, Any]] = {
    **{name: settings | FAST for name, settings in ALGORITHMS.items() if name not in ("ppo", "ppo_lstm", "trpo")},
    "ppo_lstm": ALGORITHMS["ppo_lstm"],
    "trpo": ALGORITHMS["trpo"],
    "cem": {
        "algorithm__name": "cem",
        "algorithm__elite_fraction": 0.25,
        "algorithm__episodes_per_member": 4,
        "actors__environments": 32,
        "learner__batch_size": 128,
        "network__hidden_sizes": (),
    },
}
OTHERS: list[tuple[str, list[str], float]] = [
    ("acer", ["lane", "hand"], 7.5),
    ("apex_dqn", ["lane", "hand"], 7.5),
    ("trpo", ["lane"], 3.7),
    ("sac", ["strength"], 3.7),
    ("continuous_acer", ["strength"], 3.7),
    ("ppo", ["strength"], 3.7),
]
"""Algorithms of one kind, the parts of an action, and a return of four steps, of which each pays 1 at most for a part."""


def throw_run(out: Path, settings: dict[str, Any], **changes: Any) -> RunConfig:
    """A run that throws; random play has a return of 5.7, and the best play one of 12."""
    fixed = QUICK | {"environment__id": THROW, "stop__env_steps": 60_000, "stop__at_return": 10.5}
    return tiny_run(out, **(fixed | settings | changes))


def test_ppo_learns_both_and_its_file_acts_is_exported_and_is_not_served(tmp_path: Path, refused: Refused) -> None:
    """A closed lane raises, in training and evaluations; users get the environment's own dictionaries, also in ONNX."""
    masked = json.dumps({"masked": True})
    result = train(throw_run(tmp_path, ALGORITHMS["ppo"], environment__kwargs=masked))
    assert result.reason == "at_return", result
    policy, env = load_policy(result.weights), gymnasium.make(THROW, masked=True)
    obs, info = env.reset(seed=0)
    for step in range(20):
        action = policy.act(obs, greedy=step % 2 == 0, mask=info["action_mask"])
        assert type(action["lane"]) is int
        obs, _, _, truncated, info = env.step(action)
        if truncated:
            obs, info = env.reset()
    batch, masks = np.random.default_rng(0).uniform(-1, 1, (7, 6)).astype(np.float32), np.tile([0, 1, 1, 1, 1], (7, 1))
    actions = policy.act(batch, mask=masks)
    assert (actions["lane"] > 1).all()
    written = export_onnx(policy, tmp_path / "policy.onnx")
    names = ["scores", "log_std", "probabilities", "action.lane", "action.throw.0", "action.throw.1"]
    assert list(written.outputs) == names
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx")
    inputs = {"obs.observation": batch, "obs.action_mask": masks.astype(np.int8)}
    found = dict(zip(names, session.run(None, inputs), strict=True))
    strength, hand = actions["throw"]
    for name, expected in {"lane": actions["lane"], "throw.0": strength, "throw.1": hand}.items():
        assert found[f"action.{name}"].dtype == expected.dtype
        np.testing.assert_allclose(found[f"action.{name}"], expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found["probabilities"].sum(-1), 2, rtol=1e-5)
    assert not found["probabilities"][:, 0].any()
    assert_refused(refused, {f"serve {result.weights}": "remote clients cannot have Dict or Tuple actions"})


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_others_learn_both(tmp_path: Path, name: str) -> None:
    result = train(throw_run(tmp_path, CASES[name]))
    assert result.reason == "at_return", result


@pytest.mark.slow
@pytest.mark.parametrize(("name", "parts", "target"), OTHERS)
def test_a_dict_of_one_kind_is_for_every_algorithm_of_the_kind(
    tmp_path: Path, name: str, parts: list[str], target: float
) -> None:
    settings = {"algorithm__name": name, "environment__kwargs": json.dumps({"of": parts}), "stop__at_return": target}
    ratio = {} if name in ("ppo", "trpo") else {"algorithm__replay_ratio": 8.0, "learner__batch_size": 32}
    result = train(throw_run(tmp_path, settings | ratio))
    assert result.reason == "at_return", result


def test_a_run_is_resumed_to_the_bit(tmp_path: Path) -> None:
    """With curiosity, which predicts choices and numbers."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    changes = {"algorithm__curiosity": 0.1, "stop__at_return": None, "schedule_steps": 800, "evaluation__every": 200}
    settings = ALGORITHMS["ppo"] | changes | {"checkpoint__every": 200}
    expected = train(throw_run(whole, settings, stop__env_steps=800))
    train(throw_run(parts, settings, stop__env_steps=400))
    result = resume(parts, {"env_steps": 800})
    assert result.updates == expected.updates > 0
    assert expected.skipped_updates == 0
    assert_equal_files("weights.safetensors", whole, parts)


def test_an_algorithm_of_one_kind_is_told_which_take_both(tmp_path: Path) -> None:
    fitting = "actor_critic, cem, ppo, trpo"
    for name in ("acer", "sac"):
        config = throw_run(tmp_path, {"algorithm__name": name})
        message = config_error(functools.partial(train, config))
        assert message.endswith(f"not allowed; {THROW} has Hybrid actions, for which there are {fitting}")
