"""DDPG, TD3 and Ape-X DPG: losses, target networks and exploration."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import pytest
import torch

from apex_acer.actor.rollout import Rollout
from apex_acer.algorithms import make_agent
from apex_acer.algorithms.ddpg.ddpg import NOISE, Ddpg
from apex_acer.config import RunConfig
from apex_acer.learner.gradient import Gradient
from apex_acer.learner.optimizer import Optimizer
from tests.algorithms.continuous import assert_learns, ddpg_losses
from tests.algorithms.learning import PLANE, act, gradients, gradients_of, run_of, samples_of
from tests.algorithms.segments import CPU, flat
from tests.algorithms.windows import DIM, STACK, build, random_windows, spec_for
from tests.conftest import play
from tests.functional import reference_q

TD3: dict[str, Any] = {"num_critics": 2, "policy_every": 2, "target_noise": 0.4, "target_noise_clip": 0.3}
SETTINGS: dict[str, dict[str, Any]] = {
    "ddpg": {"n_steps": 1},
    "td3": TD3,
    "td3, shifted images": {**TD3, "images": True, "image_shift": 2},
    "prioritized, images": {"images": True, "replay__sampling": "prioritized"},
    "td3, prioritized": {**TD3, "replay__sampling": "prioritized"},
    "shaped rewards, normalised": {
        "reward_clip": 1.0,
        "terminal_penalty": 0.5,
        "network__normalise": True,
    },
}


@pytest.mark.parametrize("changes", SETTINGS.values(), ids=SETTINGS)
def test_policy_and_critics_get_the_gradient_of_their_own_loss(changes: dict[str, Any]) -> None:
    algorithm = build("ddpg", 1, **changes)
    batch = random_windows(algorithm, 1)
    expected = ddpg_losses(algorithm, batch)
    metrics = assert_learns(algorithm, batch, expected)
    torch.testing.assert_close(metrics["value"], -expected.network.detach())


def test_weights_of_critics_decay_and_nothing_else() -> None:
    decayed, plain = (build("ddpg", 1, critic_decay=decay, **TD3) for decay in (0.3, 0.0))
    batch = random_windows(plain, 1)
    (output, found), (other, expected) = (gradients_of(algorithm, batch) for algorithm in (decayed, plain))
    penalty = sum(0.15 * (weight**2).sum() for weight in decayed.critics.weights)
    torch.testing.assert_close(output.loss, other.loss + penalty)
    assert torch.equal(output.metrics["q_loss"], other.metrics["q_loss"])
    assert torch.equal(found["network"], expected["network"])
    torch.testing.assert_close(found["critics"], expected["critics"] + gradients(penalty, decayed)["critics"])


def due(algorithm: Ddpg, updates: int) -> Collection[str]:
    """The groups that take a step after so many updates."""
    return Optimizer(RunConfig(), algorithm.groups()).due(updates)


def test_a_policy_that_is_not_due_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = build("ddpg", 2, **TD3)
    batch = random_windows(algorithm, 2)
    expected = ddpg_losses(algorithm, batch)
    monkeypatch.setattr(algorithm.network, "decide", None)
    gradient = Gradient(algorithm, Optimizer(RunConfig(), algorithm.groups()), 1)
    output = gradient._loss(samples_of(algorithm, batch), due(algorithm, 5))
    torch.testing.assert_close(output.loss, expected.critics)
    assert not gradients(output.loss, algorithm)["network"].any()
    assert not {"policy_loss", "value"} & output.metrics.keys()
    assert {name: group.every for name, group in algorithm.groups().items()} == {"network": 2, "critics": 1}


@pytest.mark.parametrize("sampling", ["uniform", "prioritized"])
def test_targets_are_averages_that_move_with_the_policy(sampling: str) -> None:
    algorithm = build("ddpg", 3, ema_decay=0.9, replay__sampling=sampling, **TD3)
    pairs = ((algorithm.target_network, algorithm.network), (algorithm.target_critics, algorithm.critics))
    for updates in range(1, 5):
        before = [[flat(module.parameters()) for module in pair] for pair in pairs]
        expected = [0.9 * slow + 0.1 * fast if updates % 2 else slow for slow, fast in before]
        algorithm.after_step(updates, due(algorithm, updates - 1))
        for (slow, _), wanted in zip(pairs, expected, strict=True):
            torch.testing.assert_close(flat(slow.parameters()), wanted)


@pytest.mark.parametrize("sampling", ["uniform", "prioritized"])
def test_critics_travel_if_actors_compute_priorities(sampling: str) -> None:
    given = run_of("ddpg", replay__sampling=sampling, num_critics=2)
    algorithm = Ddpg.make(given, spec_for("ddpg"), CPU)
    travelling = make_agent(given, spec_for("ddpg")).network
    sent = {name for name in algorithm.tensors() if name.startswith("network.")}
    assert sent == {f"network.{name}" for name in travelling.state_dict()}
    assert any("critics" in name for name in sent) == (sampling == "prioritized")
    ids = [id(parameter) for group in algorithm.groups().values() for parameter in group.parameters]
    assert len(set(ids)) == len(ids) == 6 + 6


# how it explores


def test_noise_is_spread_over_all_environments_of_all_actors() -> None:
    agent = make_agent(run_of("ddpg", actors__count=3, noise_std=0.4, noise_alpha=3.0), spec_for("ddpg"))
    found = torch.cat([agent.exploration(4, actor) for actor in range(3)])
    assert found.tolist() == pytest.approx([reference_q.epsilon(0.4, 3.0, i, 12) for i in range(12)], rel=1e-6)
    assert agent.exploration(2).tolist() == pytest.approx([0.4, 0.4])


def test_actions_are_uniform_before_the_first_update_and_the_policy_s_with_noise_afterwards() -> None:
    algorithm = build("ddpg", 1, dtype=torch.float32)
    head: Any = algorithm.network.head
    head.weight.data.mul_(0.1)
    obs = torch.randn(1, STACK * PLANE).expand(20_000, -1)
    counts = torch.histc(act(algorithm, obs, 0.1, updates=0).action, 8, -1, 1) / (20_000 * DIM)
    torch.testing.assert_close(counts, torch.full((8,), 1 / 8), rtol=0, atol=0.01)
    best = algorithm.network(obs).action.detach()
    chosen = act(algorithm, obs, 0.1, greedy=True)
    assert (chosen.extras, chosen.state) == ({}, {})
    assert torch.equal(chosen.action, best)
    assert torch.equal(act(algorithm, obs, 0.0).action, best)
    assert act(algorithm, obs, 2.0).action.abs().max() == 1  # and no more
    std = torch.tensor([0.05, 0.1]).repeat(10_000)
    deviation = (act(algorithm, obs, std, seed=1).action - best).view(-1, 2, DIM)
    torch.testing.assert_close(deviation.std((0, 2)), torch.tensor([0.05, 0.1]), rtol=0.03, atol=0)
    torch.testing.assert_close(deviation.mean((0, 2)), torch.zeros(2), rtol=0, atol=0.005)


# in environments

K, COUNT, THETA = 10, 4, 0.25


def pendulum() -> RunConfig:
    """Pendulums that are truncated after 13 steps, with correlated noise."""
    environment = {"environment__id": "Pendulum-v1", "environment__kwargs": '{"max_episode_steps": 13}'}
    noise = {"noise": "ornstein_uhlenbeck", "noise_std": 0.05, "noise_theta": THETA}
    return run_of("ddpg", unroll_length=K, **environment, **noise)


def test_correlated_noise_is_a_state_that_ends_with_the_episode() -> None:
    environments, policy = play(pendulum(), COUNT)
    policy.version = 1
    network: Any = policy.network
    rollout = Rollout(environments, policy, seed=2, actor=0)
    unrolls = [rollout.unroll(K) for _ in range(4)]
    environments.close()
    noise, innovations = np.zeros((COUNT, 1), np.float32), []
    for unroll in unrolls:
        np.testing.assert_allclose(unroll.state[NOISE], noise, atol=1e-5)
        obs = torch.from_numpy(unroll.obs[:-1]).flatten(0, 1)
        with torch.no_grad():
            best = network(obs).action.view(K, COUNT, 1).numpy()
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
    environments, policy = play(pendulum(), 1)
    environments.close()
    policy.version = 1
    obs = np.zeros(3, np.float32)
    best = policy.act(obs)
    one, other = (float(policy.act(obs, greedy=False)[0] - best[0]) for _ in range(2))
    assert 0 < abs(one) != abs(other) > 0
    assert np.array_equal(policy.act(obs), best)
