"""What the settings of algorithms without replay refuse, each in one line."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from apex_acer.algorithms.on_policy.settings import ActorCriticConfig, PpoConfig, TrpoConfig
from apex_acer.config import ReplayConfig
from apex_acer.config.runfile import from_dict
from tests.config.test_config import every_field
from tests.conftest import config_error

NAN = float("nan")
REFUSED: list[tuple[str, str, Any, str]] = [
    ("ppo", "replay_ratio", 1.0, "ppo has no replay; give 0"),
    ("ppo", "gamma", 1.5, "0 to 1"),
    ("ppo", "unroll_length", 0, "1 or more"),
    ("ppo", "reward_clip", -1.0, "0 or more"),
    ("ppo", "terminal_penalty", -1.0, "0 or more"),
    ("ppo", "gae_lambda", 1.5, "0 to 1"),
    ("ppo", "gae_lambda", NAN, "0 to 1"),
    ("ppo", "initial_std", 0.0, "above 0"),
    ("ppo", "value_cost", -0.5, "0 or more"),
    ("ppo", "entropy_cost", -0.1, "0 or more"),
    ("ppo", "curiosity", -1.0, "0 or more"),
    ("ppo", "epochs", 0, "1 or more"),
    ("ppo", "minibatches", 0, "1 or more"),
    ("ppo", "clip", 0.0, "above 0"),
    ("ppo", "value_clip", -0.2, "0 or more"),
    ("ppo", "target_kl", -0.01, "0 or more"),
    ("trpo", "max_kl", 0.0, "above 0"),
    ("trpo", "damping", -0.1, "0 or more"),
    ("trpo", "value_epochs", 0, "1 or more"),
    ("trpo", "value_minibatches", 0, "1 or more"),
    ("actor_critic", "targets", "retrace", "gae or vtrace"),
    ("actor_critic", "baseline", False, "give algorithm.gae_lambda 1 and targets gae"),
]


@pytest.mark.parametrize(("algorithm", "key", "value", "allowed"), REFUSED, ids=lambda value: str(value))
def test_refused_values_name_the_key_and_what_is_allowed(algorithm: str, key: str, value: Any, allowed: str) -> None:
    message = config_error(lambda: from_dict({"algorithm": {"name": algorithm, key: value}}))
    assert f"algorithm.{key}: {value!r} is not allowed" in message
    assert allowed in message


def test_every_setting_that_can_be_wrong_has_a_case_above() -> None:
    known = {key for _, key, _, _ in REFUSED}
    anything_goes = {"name", "pipelined", "normalise_advantages", "normalise_rewards", "whole_episodes"}
    for settings in (ActorCriticConfig(), PpoConfig(), TrpoConfig()):
        assert every_field(settings) <= known | anything_goes


@pytest.mark.parametrize("algorithm", ["actor_critic", "ppo", "trpo"])
def test_there_is_no_replay_to_set(algorithm: str) -> None:
    others = {
        "capacity": 5000,
        "start": 10,
        "sampling": "prioritized",
        "priority_exponent": 0.5,
        "importance_exponent": 0.5,
        "importance_exponent_final": 1.0,
        "device": "cpu",
        "load": "runs/first",
    }
    assert others.keys() == {field.name for field in dataclasses.fields(ReplayConfig)}
    for key, value in others.items():
        message = config_error(lambda key=key, value=value: from_dict(run_of(algorithm) | {"replay": {key: value}}))
        assert message == f"replay.{key}: {value!r} is not allowed; {algorithm} has no replay; leave it out"


def run_of(algorithm: str, **settings: Any) -> dict[str, Any]:
    """A run that is allowed, with these of the algorithm's settings."""
    return {"algorithm": {"name": algorithm, **settings}, "learner": {"batch_size": 16}, "actors": {"environments": 8}}


CASES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "steps": (
        run_of("ppo", minibatches=3, unroll_length=10),
        {},
        "algorithm.minibatches: 3 is not allowed; give a divisor of learner.batch_size * algorithm.unroll_length (160)",
    ),
    "segments": (
        run_of("ppo", minibatches=5, unroll_length=10),
        {"network": {"lstm": 8}},
        "algorithm.minibatches: 5 is not allowed; give a divisor of learner.batch_size (16)",
    ),
    "segments of each learner": (
        run_of("ppo", minibatches=16),
        {"network": {"lstm": 8}, "engine": "ray", "learner": {"batch_size": 16, "count": 2}},
        "algorithm.minibatches: 16 is not allowed; give a divisor of learner.batch_size (8)",
    ),
    "the critic's": (
        run_of("trpo", value_minibatches=7, unroll_length=10),
        {},
        "algorithm.value_minibatches: 7 is not allowed; give a divisor of "
        "learner.batch_size * algorithm.unroll_length (160)",
    ),
    "unrolls": (
        run_of("ppo"),
        {"learner": {"batch_size": 20}},
        "learner.batch_size: 20 is not allowed; actors wait for each update, so give a multiple of "
        "actors.environments * learner.count (8)",
    ),
    "unrolls of each learner": (
        run_of("ppo"),
        {"engine": "ray", "learner": {"batch_size": 24, "count": 2}},
        "learner.batch_size: 24 is not allowed; actors wait for each update, so give a multiple of "
        "actors.environments * learner.count (16)",
    ),
    "memory": (run_of("trpo"), {"network": {"lstm": 8}}, "network.lstm: 8 is not allowed; trpo has no memory; give 0"),
    "learners": (
        run_of("trpo"),
        {"engine": "ray", "learner": {"batch_size": 16, "count": 2}},
        "learner.count: 2 is not allowed; trpo has one learner; give 1",
    ),
    "v-trace without a value": (
        run_of("actor_critic", baseline=False, gae_lambda=1.0, targets="vtrace"),
        {},
        "algorithm.baseline: False is not allowed; without a baseline there is no value to bootstrap from; "
        "give algorithm.gae_lambda 1 and targets gae",
    ),
}


@pytest.mark.parametrize(("run", "changes", "message"), CASES.values(), ids=CASES)
def test_what_does_not_fit_together(run: dict[str, Any], changes: dict[str, Any], message: str) -> None:
    assert config_error(lambda: from_dict(run | changes)) == message


def test_what_fits_is_allowed() -> None:
    assert from_dict(run_of("ppo", minibatches=80, unroll_length=10)).max_unanswered == 1
    assert from_dict(run_of("ppo", minibatches=16) | {"network": {"lstm": 8}}).network.lstm == 8
    assert not from_dict(run_of("actor_critic", baseline=False, gae_lambda=1.0)).algorithm.baseline
    assert from_dict(run_of("actor_critic", pipelined=True) | {"learner": {"batch_size": 20}}).max_unanswered > 1
    assert from_dict(run_of("trpo") | {"replay": {"capacity": ReplayConfig().capacity}}).saves_replay


@pytest.mark.parametrize("key", ["curiosity", "clip", "entropy_cost"])
def test_a_setting_of_another_algorithm_is_unknown(key: str) -> None:
    message = config_error(lambda: from_dict(run_of("trpo", **{key: 1.0})))
    assert message.startswith(f"unknown key algorithm.{key}; allowed: name, gamma, ")
    assert "max_kl" in message
