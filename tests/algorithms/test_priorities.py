"""First priorities: those that an actor gives are those that a learner with the same weights would."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

from apex_acer.actor.policy import Policy
from apex_acer.actor.rollout import Rollout
from apex_acer.algorithms import algorithm_class, make_agent
from apex_acer.algorithms.ddpg.settings import DdpgConfig
from apex_acer.algorithms.dqn.settings import ApexDqnConfig, R2d2Config
from apex_acer.config import EnvironmentConfig, LearnerConfig, NetworkConfig, ReplayConfig, RunConfig
from apex_acer.learner.parts import make_sampler, make_storage
from apex_acer.protocol.unroll import PRIORITY, Unroll
from tests.algorithms.learning import loss_of, randomise
from tests.algorithms.segments import CPU
from tests.conftest import COUNTDOWN, joined, play

COUNT, K, UNROLLS = 3, 10, 4
CARTPOLE = EnvironmentConfig(id="CartPole-v1")
PENDULUM = EnvironmentConfig(id="Pendulum-v1", kwargs='{"max_episode_steps": 13}')
NOISE = {"noise": "ornstein_uhlenbeck", "noise_std": 0.05}


def countdown(stack: int = 2, **kwargs: Any) -> EnvironmentConfig:
    kwargs = {"lengths": [4, 13, 6], "num_actions": 3} | kwargs
    return EnvironmentConfig(id=COUNTDOWN, stack=stack, kwargs=json.dumps(kwargs))


def run(kind: type[Any], environment: EnvironmentConfig, sampling: Any = "prioritized", **settings: Any) -> RunConfig:
    given = {"unroll_length": K, "n_steps": 3, "gamma": 0.9}
    if kind is not DdpgConfig:
        given |= {"epsilon": 0.5, "epsilon_alpha": 1.0}
    return RunConfig(
        environment=environment,
        network=NetworkConfig(hidden_sizes=(16,), lstm=6 if kind is R2d2Config else 0),
        learner=LearnerConfig(precision="float32"),  # so that both compute alike
        replay=ReplayConfig(sampling=sampling),
        algorithm=kind(**given | settings),
    )


def played(config: RunConfig, actor: int | None = 0, num_unrolls: int = UNROLLS) -> tuple[Policy, list[Unroll], Any]:
    environments, policy = play(config, COUNT)
    randomise(policy.network, seed=1, std=0.3 if config.network.lstm else 0.05)
    policy.version = 1
    rollout = Rollout(environments, policy, seed=2, actor=actor)
    unrolls = [rollout.unroll(K) for _ in range(num_unrolls)]
    environments.close()
    return policy, unrolls, rollout


RUNS: dict[str, RunConfig] = {
    "apex_dqn, whole unrolls": run(ApexDqnConfig, CARTPOLE, n_steps=K),
    "apex_dqn, truncated": run(ApexDqnConfig, countdown(truncate=True), value_rescaling=True, dueling=False),
    "apex_dqn, terminated": run(ApexDqnConfig, countdown(), terminal_penalty=0.7, reward_clip=0.5, double=False),
    "ddpg, one step": run(DdpgConfig, PENDULUM, n_steps=1, **NOISE),
    "td3, whole unrolls": run(DdpgConfig, PENDULUM, n_steps=K, num_critics=2, **NOISE),
    "r2d2 without a burn-in": run(R2d2Config, CARTPOLE),
    "r2d2, truncated": run(R2d2Config, countdown(truncate=True), burn_in=4),
    "r2d2, terminated": run(R2d2Config, countdown(stack=1), burn_in=K),
}


@pytest.mark.parametrize("config", RUNS.values(), ids=RUNS)
def test_an_actor_s_priorities_are_a_learner_s(config: RunConfig) -> None:
    """Of every step, those at the end of an unroll included, which is what looking ahead is for.

    With memory a learner's burn-in leads from the stored state to the very states that the actor was in, also over resets.
    """
    policy, unrolls, rollout = played(config)
    agent = make_agent(config, policy.spec)
    assert torch.equal(rollout.exploration, agent.exploration(COUNT, 0))
    assert all(agent.layout.check(unroll, COUNT) is None for unroll in unrolls)
    replay = make_storage(config, agent.layout, env_steps=UNROLLS * COUNT * K)
    sampler = make_sampler(config, replay)
    for unroll in unrolls:
        sampler.insert(replay.insert(unroll, 0), unroll)
    assert replay.num_steps == sum(unroll.num_steps for unroll in unrolls)
    learner: Any = algorithm_class(config.algorithm.name).make(config, policy.spec, CPU)
    for network in (learner.network, learner.target_network):
        network.load_state_dict(policy.network.state_dict())
    given = np.stack([unroll.extras[PRIORITY].T for unroll in unrolls])  # [UNROLLS, COUNT, steps]
    mask = np.stack([unroll.mask.T for unroll in unrolls])
    assert (~mask).sum() >= UNROLLS * COUNT * config.algorithm.sampling.burn_in + 3
    assert (given[mask] > 1e-3).mean() > 0.9
    if config.network.lstm:
        given = given.max(-1)
    else:
        assert not given[~mask].any()
        assert len(np.unique(given[..., -3:][mask[..., -3:]])) > 5
    with torch.no_grad():
        learned = loss_of(learner, replay.gather(torch.arange(given.size))).priorities
    np.testing.assert_allclose(learned.numpy(), given.ravel(), rtol=1e-4, atol=1e-4)
    weights = np.where(given > 0, (given + 1e-6) ** config.replay.priority_exponent, 0)
    np.testing.assert_allclose(sampler.arrays()["weights"], weights.ravel(), rtol=1e-6)


@pytest.mark.parametrize(
    ("kind", "environment", "settings"),
    [(ApexDqnConfig, countdown(truncate=True), {}), (DdpgConfig, PENDULUM, NOISE)],
    ids=["apex_dqn", "ddpg"],
)
def test_looking_ahead_does_not_change_what_is_played(
    kind: type[Any], environment: EnvironmentConfig, settings: dict[str, Any]
) -> None:
    """Of a policy whose weights stay as they are."""
    (_, one, first), (_, other, second) = (
        played(run(kind, environment, sampling, **settings)) for sampling in ("prioritized", "uniform")
    )
    for name in ("obs", "episode_step", "action", "reward", "terminated", "truncated", "mask"):
        np.testing.assert_array_equal(joined(one, name), joined(other, name), err_msg=name)
    assert first.take_episodes() == second.take_episodes() != []
    assert [sorted(unroll.extras) for unroll in (one[0], other[0])] == [[PRIORITY], []]
    assert len(np.unique(joined(one, "action"))) >= 3
