"""Priorities that an actor gives are those that a learner with the same weights would."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
import torch

from apex_acer.actor.policy import Policy
from apex_acer.actor.rollout import Rollout, evaluate
from apex_acer.algorithms import make_agent
from apex_acer.algorithms.dqn.apex_dqn import ApexDqn
from apex_acer.algorithms.dqn.settings import ApexDqnConfig
from apex_acer.config import (
    EnvironmentConfig,
    EvaluationConfig,
    LearnerConfig,
    NetworkConfig,
    ReplayConfig,
    RunConfig,
)
from apex_acer.learner.parts import make_storage
from apex_acer.protocol.unroll import PRIORITY, Unroll
from tests.algorithms.learning import loss_of
from tests.algorithms.segments import CPU
from tests.algorithms.windows import randomise
from tests.conftest import COUNTDOWN, joined, play

COUNT, K, N = 3, 10, 3
COUNTING = {"lengths": [4, 13, 6], "num_actions": 3}


def run(environment: EnvironmentConfig, sampling: str = "prioritized", **settings: Any) -> RunConfig:
    given: dict[str, Any] = {"unroll_length": K, "n_steps": N, "gamma": 0.9, "epsilon": 0.5, "epsilon_alpha": 1.0}
    return RunConfig(
        environment=environment,
        network=NetworkConfig(convolutions="a3c", hidden_sizes=(16,)),
        learner=LearnerConfig(precision="float32"),  # so that both compute alike
        replay=ReplayConfig(sampling=sampling),  # type: ignore[arg-type]
        algorithm=ApexDqnConfig(**given | settings),
    )


def counting(stack: int = 1, **kwargs: Any) -> EnvironmentConfig:
    return EnvironmentConfig(id=COUNTDOWN, stack=stack, kwargs=json.dumps(COUNTING | kwargs))


def pixels() -> EnvironmentConfig:
    """A game that is cut short, so that several end."""
    return EnvironmentConfig(id="ALE/Breakout-v5", stack=4, kwargs=json.dumps({"max_num_frames_per_episode": 120}))


def played(config: RunConfig, unrolls: int, actor: int | None = 0) -> tuple[Policy, list[Unroll], Rollout]:
    environments, policy = play(config, COUNT)
    randomise(policy.network, seed=1, std=0.05)
    rollout = Rollout(environments, policy, seed=2, actor=actor)
    made = [rollout.unroll(K) for _ in range(unrolls)]
    environments.close()
    return policy, made, rollout


ENVIRONMENTS: dict[str, tuple[EnvironmentConfig, dict[str, Any]]] = {
    "cartpole": (EnvironmentConfig(id="CartPole-v1"), {}),
    "cartpole, one step": (EnvironmentConfig(id="CartPole-v1"), {"n_steps": 1}),
    "cartpole, whole unrolls": (EnvironmentConfig(id="CartPole-v1"), {"n_steps": K}),
    "truncated": (counting(2, truncate=True), {}),
    "truncated, rescaled": (counting(2, truncate=True), {"value_rescaling": True, "dueling": False}),
    "terminated": (counting(2), {"terminal_penalty": 0.7, "reward_clip": 0.5, "double": False}),
    "atari": (pixels(), {"reward_clip": 1.0, "terminal_penalty": 1.0}),
}


@pytest.mark.parametrize(("environment", "settings"), ENVIRONMENTS.values(), ids=ENVIRONMENTS)
def test_an_actor_s_priorities_are_a_learner_s(environment: EnvironmentConfig, settings: dict[str, Any]) -> None:
    """Of every step, those at the end of an unroll included, which is what looking ahead is for."""
    config = run(environment, **settings)
    policy, unrolls, _ = played(config, 4)
    shapes = make_agent(config, policy.spec).layout
    assert all(shapes.check(unroll, COUNT) is None for unroll in unrolls)
    replay = make_storage(config, shapes, env_steps=4 * COUNT * K)
    for unroll in unrolls:
        replay.insert(unroll, 0)
    learner = ApexDqn.make(config, policy.spec, CPU)
    for network in (learner.network, learner.target_network):
        network.load_state_dict(policy.network.state_dict())
    with torch.no_grad():
        learned = loss_of(learner, replay.gather(torch.arange(4 * COUNT * K))).priorities
    priorities = np.stack([unroll.extras[PRIORITY] for unroll in unrolls])  # [unrolls, K, COUNT]
    mask = np.stack([unroll.mask for unroll in unrolls])
    np.testing.assert_allclose(learned.view(4, COUNT, K).transpose(1, 2).numpy(), priorities, rtol=1e-4, atol=1e-4)
    assert not priorities[~mask].any()
    assert (~mask).sum() >= 3
    assert (priorities[mask] > 1e-3).mean() > 0.9
    assert len(np.unique(priorities[:, -N:][mask[:, -N:]])) > 5


@pytest.mark.parametrize("environment", [counting(2, truncate=True), pixels()], ids=["counting", "atari"])
def test_looking_ahead_does_not_change_what_is_played(environment: EnvironmentConfig) -> None:
    """Of a policy whose weights stay as they are."""
    (_, one, first), (_, other, second) = (
        played(run(environment, sampling), 5) for sampling in ("prioritized", "uniform")
    )
    for name in ("obs", "episode_step", "action", "reward", "terminated", "truncated", "mask"):
        np.testing.assert_array_equal(joined(one, name), joined(other, name), err_msg=name)
    assert first.take_episodes() == second.take_episodes() != []
    assert [sorted(unroll.extras) for unroll in (one[0], other[0])] == [[PRIORITY], []]
    assert len(np.unique(joined(one, "action"))) == (3 if "Countdown" in environment.id else 4)


def test_an_unroll_that_is_not_shipped_keeps_its_values() -> None:
    policy, unrolls, _ = played(run(counting()), 2, actor=None)
    obs = torch.from_numpy(unrolls[1].obs[:-1]).flatten(0, 1)
    with torch.no_grad():
        q_values = policy.network(obs).q_values.view(K, COUNT, -1)
    torch.testing.assert_close(torch.from_numpy(unrolls[1].extras["q_values"]), q_values)


def test_actors_and_evaluations_explore_as_the_algorithm_says() -> None:
    config = run(counting(), evaluation_epsilon=0.25)
    policy, _, rollout = played(config, 0)
    assert torch.equal(rollout.exploration, make_agent(config, policy.spec).exploration(COUNT, 0))
    assert played(config, 0, actor=None)[2].exploration.tolist() == [0.25] * COUNT
    never, always = (
        chosen(dataclasses.replace(config, algorithm=dataclasses.replace(config.algorithm, evaluation_epsilon=epsilon)))
        for epsilon in (0.0, 1.0)
    )
    assert never == 1.0 > always > 0.2


def chosen(config: RunConfig) -> float:
    """The share of the best actions in an evaluation that is not greedy."""
    _, (unroll,), _ = played(dataclasses.replace(config, environment=counting(lengths=[1000])), 1, actor=None)
    return float((unroll.extras["q_values"].argmax(-1) == unroll.action).mean())


def test_a_policy_of_it_plays_whole_evaluations() -> None:
    environments, policy = play(run(counting(lengths=[7])), COUNT, training=False)
    episodes = evaluate(environments, policy, EvaluationConfig(episodes=5), seed=0)
    assert [episode.length for episode in episodes] == [7] * 5
