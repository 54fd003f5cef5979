"""How a deterministic policy explores, and the priorities that its actors compute."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from apex_acer.actor.policy import Policy
from apex_acer.actor.rollout import Rollout
from apex_acer.algorithms import make_agent
from apex_acer.algorithms.ddpg.ddpg import NOISE, Ddpg
from apex_acer.algorithms.ddpg.settings import DdpgConfig
from apex_acer.config import EnvironmentConfig, NetworkConfig, ReplayConfig, RunConfig
from apex_acer.learner.parts import make_storage
from apex_acer.protocol.unroll import PRIORITY, Unroll
from tests.algorithms.continuous import DIM, build, config, spec
from tests.algorithms.learning import loss_of
from tests.algorithms.segments import CPU, PLANE
from tests.algorithms.windows import randomise
from tests.conftest import joined, play
from tests.functional import reference_q

K, N, COUNT, THETA = 10, 3, 4, 0.25
OU = {"noise": "ornstein_uhlenbeck", "noise_theta": THETA}


@pytest.mark.parametrize(("actors", "environments"), [(1, 1), (1, 6), (3, 4)])
@pytest.mark.parametrize("alpha", [0.0, 3.0])
def test_noise_is_spread_over_all_environments_of_all_actors(actors: int, environments: int, alpha: float) -> None:
    given = config(Ddpg, actors=actors, noise_std=0.4, noise_alpha=alpha)
    found = torch.cat([make_agent(given, spec()).exploration(environments, actor) for actor in range(actors)])
    count = actors * environments
    assert found.tolist() == pytest.approx([reference_q.epsilon(0.4, alpha, i, count) for i in range(count)], rel=1e-6)
    assert make_agent(given, spec()).exploration(2).tolist() == pytest.approx([0.4, 0.4])


def act(
    algorithm: Ddpg, obs: torch.Tensor, std: Any, seed: int = 0, updates: int = 1, *, greedy: bool = False
) -> torch.Tensor:
    exploration = torch.as_tensor(std, dtype=torch.float32).expand(len(obs))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        chosen = algorithm.agent.act(
            obs, {}, greedy=greedy, exploration=exploration, generator=generator, updates=updates
        )
    assert (chosen.extras, chosen.state) == ({}, {})
    assert chosen.action.abs().max() <= 1
    return chosen.action


def test_actions_are_uniform_before_the_first_update_and_the_policy_s_with_noise_afterwards() -> None:
    algorithm = build(Ddpg, 1, dtype=torch.float32)
    with torch.no_grad():
        algorithm.network.head.weight.mul_(0.1)
    obs = torch.randn(1, PLANE).expand(20_000, PLANE)
    counts = torch.histc(act(algorithm, obs, 0.1, updates=0), 8, -1, 1) / (20_000 * DIM)
    torch.testing.assert_close(counts, torch.full((8,), 1 / 8), rtol=0, atol=0.01)
    best = algorithm.network(obs).action.detach()
    assert torch.equal(act(algorithm, obs, 0.1, greedy=True), best)
    assert torch.equal(act(algorithm, obs, 0.0), best)
    assert act(algorithm, obs, 2.0).abs().max() == 1  # and no more
    std = torch.tensor([0.05, 0.1]).repeat(10_000)
    deviation = (act(algorithm, obs, std, 1) - best).view(-1, 2, DIM)
    torch.testing.assert_close(deviation.std((0, 2)), torch.tensor([0.05, 0.1]), rtol=0.03, atol=0)
    torch.testing.assert_close(deviation.mean((0, 2)), torch.zeros(2), rtol=0, atol=0.005)


# in environments


def pendulum(sampling: str = "uniform", **settings: Any) -> RunConfig:
    """Pendulums that are truncated after 13 steps."""
    return RunConfig(
        environment=EnvironmentConfig(id="Pendulum-v1", kwargs='{"max_episode_steps": 13}'),
        network=NetworkConfig(hidden_sizes=(16,)),
        replay=ReplayConfig(sampling=sampling),  # type: ignore[arg-type]
        algorithm=DdpgConfig(**({"unroll_length": K, "n_steps": N, "noise_std": 0.05} | settings)),
    )


def played(given: RunConfig, unrolls: int = 4) -> tuple[Policy, list[Unroll]]:
    environments, policy = play(given, COUNT)
    randomise(policy.network, seed=1, std=0.1)
    policy.version = 1
    rollout = Rollout(environments, policy, seed=2, actor=0)
    made = [rollout.unroll(K) for _ in range(unrolls)]
    environments.close()
    return policy, made


@pytest.mark.parametrize("sampling", ["uniform", "prioritized"])
def test_correlated_noise_is_a_state_that_ends_with_the_episode(sampling: str) -> None:
    policy, unrolls = played(pendulum(sampling, **OU))
    shapes = make_agent(policy.config, policy.spec).layout
    assert all(shapes.check(unroll, COUNT) is None for unroll in unrolls)
    noise, innovations = np.zeros((COUNT, 1), np.float32), []
    for unroll in unrolls:
        np.testing.assert_allclose(unroll.state[NOISE], noise, atol=1e-5)
        obs = torch.from_numpy(unroll.obs[:-1]).flatten(0, 1)
        with torch.no_grad():
            best = policy.network(obs).action.view(K, COUNT, 1).numpy()
        for t in range(K):
            noise[unroll.episode_step[t] == 0] = 0
            newest = unroll.action[t] - best[t]
            innovations.append(newest - (1 - THETA) * noise)
            noise = newest
    drawn = np.stack(innovations)
    assert drawn.std() == pytest.approx(0.05, rel=0.15)
    assert abs(np.corrcoef(drawn[1:].ravel(), drawn[:-1].ravel())[0, 1]) < 0.2
    assert any((unroll.episode_step[1:] == 0).any() for unroll in unrolls)


def test_a_policy_explores_from_its_first_observation_on() -> None:
    environments, policy = play(pendulum(**OU), 1)
    environments.close()
    policy.version = 1
    obs = np.zeros(3, np.float32)
    best = policy.act(obs)
    one, other = (float(policy.act(obs, greedy=False)[0] - best[0]) for _ in range(2))
    assert 0 < abs(one) != abs(other) > 0
    assert np.array_equal(policy.act(obs), best)


@pytest.mark.parametrize("critics", [1, 2])
@pytest.mark.parametrize("n_steps", [1, N, K])
def test_an_actor_s_priorities_are_a_learner_s(n_steps: int, critics: int) -> None:
    """Of every step, those at the end of an unroll included, which is what looking ahead is for."""
    given = pendulum("prioritized", n_steps=n_steps, num_critics=critics)
    policy, unrolls = played(given)
    shapes = make_agent(given, policy.spec).layout
    replay = make_storage(given, shapes, env_steps=4 * COUNT * K)
    for unroll in unrolls:
        assert shapes.check(unroll, COUNT) is None
        replay.insert(unroll, 0)
    learner = Ddpg.make(given, policy.spec, CPU)
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


def test_looking_ahead_does_not_change_what_is_played() -> None:
    (_, one), (_, other) = (played(pendulum(sampling, **OU)) for sampling in ("prioritized", "uniform"))
    assert [sorted(unroll.extras) for unroll in (one[0], other[0])] == [[PRIORITY], []]
    for name in ("obs", "episode_step", "action", "reward", "truncated", "mask"):
        np.testing.assert_array_equal(joined(one, name), joined(other, name), err_msg=name)
