"""What the settings of algorithms refuse, each in one line; `tests/config` has those of ACER and Ape-X DQN."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import pytest

from apex_acer.algorithms.ddpg.settings import DdpgConfig
from apex_acer.algorithms.dqn.settings import R2d2Config
from apex_acer.algorithms.evolution.settings import CemConfig
from apex_acer.algorithms.on_policy.settings import ActorCriticConfig, PpoConfig, PqnConfig, TrpoConfig
from apex_acer.algorithms.sac.settings import SacConfig
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
    ("ppo", "gae_lambda", NAN, "0 to 1"),
    ("ppo", "initial_std", 0.0, "above 0"),
    ("ppo", "value_cost", -0.5, "0 or more"),
    ("ppo", "entropy_cost", -0.1, "0 or more"),
    ("ppo", "curiosity", -1.0, "0 or more"),
    ("ppo", "epochs", 0, "1 or more"),
    ("ppo", "minibatches", 0, "1 or more"),
    ("ppo", "clip", 0.0, "above 0"),
    ("trpo", "max_kl", 0.0, "above 0"),
    ("trpo", "damping", -0.1, "0 or more"),
    ("trpo", "value_epochs", 0, "1 or more"),
    ("trpo", "value_minibatches", 0, "1 or more"),
    ("actor_critic", "targets", "retrace", "gae or vtrace"),
    ("actor_critic", "baseline", False, "give algorithm.gae_lambda 1 and targets gae"),
    ("unreal", "pixel_control", -0.1, "0 or more"),
    ("unreal", "reward_prediction", NAN, "0 or more"),
    ("unreal", "value_replay", -1.0, "0 or more"),
    ("pqn", "replay_ratio", 1.0, "pqn has no replay; give 0"),
    ("pqn", "q_lambda", 1.5, "0 to 1"),
    ("pqn", "epochs", 0, "1 or more"),
    ("pqn", "minibatches", 0, "1 or more"),
    ("pqn", "epsilon", 1.5, "0 to 1"),
    ("pqn", "epsilon_final", -0.1, "0 to 1"),
    ("pqn", "epsilon_fraction", 2.0, "0 to 1"),
    ("pqn", "evaluation_epsilon", NAN, "0 to 1"),
    ("cem", "replay_ratio", 1.0, "cem has no replay; give 0"),
    ("cem", "episodes_per_member", 0, "1 or more"),
    ("cem", "initial_std", 0.0, "above 0"),
    ("cem", "initial_std", 1e7, "0 to 1000000"),
    ("cem", "elite_fraction", 1.5, "0 to 1"),
    ("cem", "extra_std", -0.1, "0 to 1000000"),
    ("cem", "extra_generations", -1, "0 or more"),
    ("sac", "num_critics", 0, "1 or more"),
    ("sac", "policy_every", 0, "1 or more"),
    ("sac", "critic_hidden_sizes", (8, 0), "each 1 or more"),
    ("sac", "ema_decay", 1.5, "0 to 1"),
    ("sac", "initial_temperature", 0.0, "above 0"),
    ("sac", "n_steps", 21, "at most algorithm.unroll_length (20)"),
    ("sac", "replay_ratio", 0.0, "above 0"),
    ("sac", "image_shift", -1, "0 or more"),
    ("ddpg", "num_critics", 0, "1 or more"),
    ("ddpg", "policy_every", 0, "1 or more"),
    ("ddpg", "target_noise", -0.1, "0 or more"),
    ("ddpg", "target_noise_clip", -0.1, "0 or more"),
    ("ddpg", "ema_decay", 1.5, "0 to 1"),
    ("ddpg", "noise", "pink", "gaussian or ornstein_uhlenbeck"),
    ("ddpg", "noise_std", -0.1, "0 or more"),
    ("ddpg", "noise_alpha", -1.0, "0 or more"),
    ("ddpg", "noise_theta", 1.5, "0 to 1"),
    ("r2d2", "burn_in", -1, "0 or more"),
    ("r2d2", "burn_in", 21, "at most algorithm.unroll_length (20)"),
    ("r2d2", "epsilon", 1.5, "0 to 1"),
    ("r2d2", "epsilon_alpha", -1.0, "0 or more"),
    ("r2d2", "evaluation_epsilon", NAN, "0 to 1"),
    ("r2d2", "target_every", 0, "1 or more"),
    ("r2d2", "quantiles", 5, "r2d2 learns means only; give 1"),
    ("r2d2", "munchausen", 0.5, "r2d2 has no Munchausen reward; give 0"),
    ("apex_dqn", "quantiles", 0, "1 or more"),
    ("ddpg", "critic_decay", -0.1, "0 or more"),
    ("apex_dqn", "munchausen", 1.5, "0 to 1"),
]


@pytest.mark.parametrize(("algorithm", "key", "value", "allowed"), REFUSED, ids=lambda value: str(value))
def test_refused_values_name_the_key_and_what_is_allowed(algorithm: str, key: str, value: Any, allowed: str) -> None:
    message = config_error(lambda: from_dict({"algorithm": {"name": algorithm, key: value}}))
    assert f"algorithm.{key}: {value!r} is not allowed" in message
    assert allowed in message


def test_every_setting_that_can_be_wrong_has_a_case_above() -> None:
    known = {key for _, key, _, _ in REFUSED}
    switches = {"pipelined", "normalise_advantages", "normalise_rewards", "whole_episodes"}
    switches |= {"double", "dueling", "value_rescaling", "batch_norm"}
    on_policy = (ActorCriticConfig(), PpoConfig(), TrpoConfig(), PqnConfig())
    for settings in (*on_policy, CemConfig(), SacConfig(), DdpgConfig(), R2d2Config()):
        assert every_field(settings) <= known | switches | {"name"}


def run_of(algorithm: str, **settings: Any) -> dict[str, Any]:
    """A run that is allowed, with these of the algorithm's settings."""
    return {"algorithm": {"name": algorithm, **settings}, "learner": {"batch_size": 16}, "actors": {"environments": 8}}


def test_an_algorithm_without_replay_has_none_to_set() -> None:
    others = {
        "capacity": 5000,
        "start": 10,
        "sampling": "prioritized",
        "priority_exponent": 0.5,
        "importance_exponent": 0.5,
        "importance_exponent_final": 1.0,
        "device": "cpu",
        "load": "runs/first",
        "compress": True,
    }
    assert others.keys() == {field.name for field in dataclasses.fields(ReplayConfig)}
    for key, value in others.items():
        run = run_of("trpo") | {"replay": {key: value}}
        message = config_error(functools.partial(from_dict, run))
        assert message == f"replay.{key}: {value!r} is not allowed; trpo has no replay; leave it out"
    assert from_dict(run_of("trpo") | {"replay": {"capacity": ReplayConfig().capacity}}).saves_replay


MEMORY = {"network": {"lstm": 8}}
EQUAL_STEPS = "give a divisor of learner.batch_size * algorithm.unroll_length (160)"
WAITING = "actors wait for each update, so give a multiple of actors.environments * learner.count"


def two_learners(batch_size: int = 16) -> dict[str, Any]:
    return {"engine": "ray", "learner": {"batch_size": batch_size, "count": 2}}


CROSSQ = run_of("sac", batch_norm=True)
CASES: list[tuple[dict[str, Any], str, str]] = [
    (run_of("ppo", minibatches=3, unroll_length=10), "algorithm.minibatches: 3", EQUAL_STEPS),
    (run_of("ppo", minibatches=5) | MEMORY, "algorithm.minibatches: 5", "give a divisor of learner.batch_size (16)"),
    (
        run_of("ppo", minibatches=16) | MEMORY | two_learners(),
        "algorithm.minibatches: 16",
        "give a divisor of learner.batch_size (8)",
    ),
    (run_of("trpo", value_minibatches=7, unroll_length=10), "algorithm.value_minibatches: 7", EQUAL_STEPS),
    (run_of("ppo") | {"learner": {"batch_size": 20}}, "learner.batch_size: 20", f"{WAITING} (8)"),
    (run_of("ppo") | two_learners(24), "learner.batch_size: 24", f"{WAITING} (16)"),
    (run_of("pqn", minibatches=3, unroll_length=10), "algorithm.minibatches: 3", EQUAL_STEPS),
    (run_of("pqn") | {"actors": {"temperature_low": 0.5}}, "actors.temperature_low: 0.5", "pqn has no softmax; give 1"),
    (run_of("trpo") | MEMORY, "network.lstm: 8", "trpo has no memory; give 0"),
    (run_of("trpo") | two_learners(), "learner.count: 2", "trpo has one learner; give 1"),
    (CROSSQ | two_learners(), "learner.count: 2", "algorithm.batch_norm needs the moments of the whole batch; give 1"),
    (CROSSQ | {"network": {"layer_norm": True}}, "network.layer_norm: True", "algorithm.batch_norm normalises"),
    (run_of("sac", batch_norm=True, ema_decay=0.9), "algorithm.ema_decay: 0.9", "batch_norm has no target critics"),
    (
        run_of("actor_critic", baseline=False, gae_lambda=1.0, targets="vtrace"),
        "algorithm.baseline: False",
        "without a baseline there is no value to bootstrap from; give algorithm.gae_lambda 1 and targets gae",
    ),
    *((run_of(name) | MEMORY, "network.lstm: 8", f"{name} learns from single steps") for name in ("sac", "apex_dqn")),
    (run_of("r2d2"), "network.lstm: 0", "r2d2 needs an LSTM; give 1 or more"),
    (
        run_of("r2d2") | MEMORY | {"actors": {"temperature_high": 2.0}},
        "actors.temperature_high: 2.0",
        "r2d2 has no softmax; give 1",
    ),
]


@pytest.mark.parametrize(("run", "key", "allowed"), CASES, ids=lambda value: value if isinstance(value, str) else "")
def test_what_does_not_fit_together(run: dict[str, Any], key: str, allowed: str) -> None:
    message = config_error(lambda: from_dict(run))
    assert message.startswith(f"{key} is not allowed; ")
    assert allowed in message


def test_what_fits_is_allowed() -> None:
    assert from_dict(run_of("ppo", minibatches=80, unroll_length=10)).max_unanswered == 1
    assert from_dict(run_of("ppo", minibatches=16) | MEMORY).network.lstm == 8
    reinforce: Any = from_dict(run_of("actor_critic", baseline=False, gae_lambda=1.0)).algorithm
    assert not reinforce.baseline
    assert from_dict(run_of("actor_critic", pipelined=True) | {"learner": {"batch_size": 20}}).max_unanswered > 1
