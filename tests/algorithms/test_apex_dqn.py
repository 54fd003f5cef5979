"""Ape-X DQN: its loss against a slow transcription, its target network, and how it explores."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from apex_acer.algorithms import make_agent
from apex_acer.algorithms.dqn.apex_dqn import ApexDqn
from apex_acer.functional import forbid, munchausen_bonus, soft_value
from apex_acer.networks.frames import stack_planes
from tests.algorithms.learning import PLANE, act, gradients_of, loss_of, run_of
from tests.algorithms.segments import CPU, flat
from tests.algorithms.windows import ACTIONS, STACK, as_arrays, build, random_windows, spec
from tests.functional import reference_q

NAMES = ("gamma", "double", "value_rescaling", "reward_clip", "terminal_penalty")
SETTINGS: dict[str, dict[str, Any]] = {
    "as published": {},
    "rescaled and plain": {"value_rescaling": True, "double": False, "dueling": False},
    "shaped rewards": {"reward_clip": 1.0, "terminal_penalty": 0.5, "dueling": False},
    "one step": {"n_steps": 1, "gamma": 1.0, "double": False},
}


@pytest.mark.parametrize("changes", SETTINGS.values(), ids=SETTINGS)
def test_loss_priorities_and_gradients_match_the_paper(changes: dict[str, Any]) -> None:
    algorithm = build("apex_dqn", 1, **changes)
    batch = random_windows(algorithm, 1)
    obs = stack_planes(batch.obs, batch.episode_step, STACK)
    q_values, target = (
        network(obs.flatten(0, 1)).q_values.view(*obs.shape[:2], ACTIONS)
        for network in (algorithm.network, algorithm.target_network)
    )
    settings = {name: getattr(algorithm.settings, name) for name in NAMES}
    heard = q_values.detach().numpy()
    expected = reference_q.loss(as_arrays(batch), heard, target.detach().numpy(), **settings)
    taken = q_values[0].gather(-1, batch.action[0].unsqueeze(-1)).squeeze(-1)
    parameters = list(algorithm.network.parameters())
    gradients = torch.autograd.grad(taken, parameters, torch.from_numpy(expected.d_q_taken))
    output, found = gradients_of(algorithm, batch)
    mask = batch.mask[0].numpy()
    assert output.loss.item() == pytest.approx(expected.total, rel=1e-12)
    assert output.num_samples == mask.sum()
    np.testing.assert_allclose(output.priorities.numpy(), expected.td_error, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found["network"], flat(gradients), rtol=1e-10, atol=1e-12)
    assert (q_values.argmax(-1) != target.argmax(-1)).any()  # so it shows which of them chooses
    assert expected.td_error[mask].min() < 1 < expected.td_error[mask].max()  # both sides of Huber's
    columns = {
        "td_error": expected.td_error,
        "q_taken": expected.q_taken,
        "q_target": expected.target,
        "importance": batch.importance.numpy(),
        "value": heard[0].max(-1),
    }
    means = {name: column[mask].mean() for name, column in columns.items()}
    metrics = {name: value.item() for name, value in output.metrics.items()}
    assert metrics == pytest.approx(means | {"loss": expected.total, "q_loss": expected.total}, rel=1e-12)


DISTRIBUTIONS: dict[str, dict[str, Any]] = {
    "quantiles": {"quantiles": 5},
    "one network chooses quantiles": {"quantiles": 4, "double": False, "dueling": False},
    "Munchausen": {"munchausen": 0.9, "reward_clip": 1.0},
    "Munchausen with quantiles": {"quantiles": 3, "munchausen": 0.5, "n_steps": 1},
}


@pytest.mark.parametrize("changes", DISTRIBUTIONS.values(), ids=DISTRIBUTIONS)
def test_the_loss_of_quantiles_and_munchausen_s_rewards_match_the_papers(changes: dict[str, Any]) -> None:
    algorithm = build("apex_dqn", 1, **changes)
    batch = random_windows(algorithm, 1)
    obs = stack_planes(batch.obs, batch.episode_step, STACK)
    quantiles, target = (
        network(obs.flatten(0, 1)).quantiles.unflatten(0, obs.shape[:2])
        for network in (algorithm.network, algorithm.target_network)
    )
    names = ("gamma", "double", "munchausen", "reward_clip", "terminal_penalty")
    settings = {name: getattr(algorithm.settings, name) for name in names}
    heard, judged = quantiles.detach().numpy(), target.detach().numpy()
    expected = reference_q.quantile_loss(as_arrays(batch), heard, judged, **settings)
    taken = quantiles[0][torch.arange(len(batch.importance)), batch.action[0]]  # [B, K]
    parameters = list(algorithm.network.parameters())
    gradients = torch.autograd.grad(taken, parameters, torch.from_numpy(expected.d_quantiles))
    output, found = gradients_of(algorithm, batch)
    assert output.loss.item() == pytest.approx(expected.total, rel=1e-11)
    np.testing.assert_allclose(output.priorities.numpy(), expected.td_error, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(found["network"], flat(gradients), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(algorithm.network(obs[0]).q_values, quantiles[0].mean(-1))


def test_munchausen_s_bonus_sees_observations_as_the_newest_statistics_have_them() -> None:
    """The target network's own are those of its copy: before the first one, there are none."""
    algorithm = build("apex_dqn", 1, munchausen=0.9, network__normalise=True)
    batch = random_windows(algorithm, 1)
    algorithm.network.observe(5.0 + 3.0 * batch.obs)
    found = loss_of(algorithm, batch).metrics["q_target"]
    newest = dict(algorithm.network.named_buffers())
    algorithm.target_network.load_state_dict(algorithm.target_network.state_dict() | newest)
    assert loss_of(algorithm, batch).metrics["q_target"] == found


def test_illegal_actions_have_no_part_in_the_soft_value_however_high_their_quantiles() -> None:
    q_values = torch.tensor([[0.1, 5.0, 0.13]], dtype=torch.float64)
    legal = torch.tensor([[True, False, True]])
    quantiles = q_values.unsqueeze(-1) + torch.tensor([-1.0, 1.0])
    value = soft_value(forbid(q_values, legal), quantiles)
    torch.testing.assert_close(value, soft_value(q_values[:, ::2], quantiles[:, ::2]))
    assert munchausen_bonus(forbid(q_values, legal), torch.tensor([1])).item() == -1


def test_the_target_moves_every_so_many_updates_and_not_between() -> None:
    algorithm = ApexDqn.make(run_of("apex_dqn", target_every=3), spec(), CPU)
    for network, value in ((algorithm.network, 3.0), (algorithm.target_network, 0.0)):
        network.register_buffer("scale", torch.tensor(value))
    assert torch.equal(flat(algorithm.network.parameters()), flat(algorithm.target_network.parameters()))
    for update in range(1, 7):
        before = flat(algorithm.target_network.parameters())
        for parameter in algorithm.network.parameters():
            parameter.data += 1
        algorithm.after_step(update, algorithm.groups())
        newest, target = (flat(network.parameters()) for network in (algorithm.network, algorithm.target_network))
        assert torch.equal(target, newest if update % 3 == 0 else before)
        assert algorithm.target_network.scale == (3.0 if update >= 3 else 0.0)
    assert not any(parameter.requires_grad for parameter in algorithm.target_network.parameters())


# how it explores


@pytest.mark.parametrize(("actors", "environments", "alpha"), [(1, 1, 7.0), (1, 6, 0.0), (3, 4, 7.0)])
def test_epsilons_are_the_paper_s_over_all_environments_of_all_actors(
    actors: int, environments: int, alpha: float
) -> None:
    config = run_of("apex_dqn", actors__count=actors, epsilon=0.4, epsilon_alpha=alpha, evaluation_epsilon=0.25)
    agent, count = make_agent(config, spec()), actors * environments
    found = torch.cat([agent.exploration(environments, actor) for actor in range(actors)])
    expected = [reference_q.epsilon(0.4, alpha, index, count) for index in range(count)]
    assert found.dtype == torch.float32
    assert found.tolist() == pytest.approx(expected, rel=1e-6)
    assert count == 1 or found[-1].item() == pytest.approx(0.4 ** (1 + alpha))
    assert agent.exploration(3).tolist() == [0.25] * 3


def test_each_environment_has_its_own_share_of_random_actions_and_otherwise_takes_the_best() -> None:
    algorithm = build("apex_dqn", 13, dtype=torch.float32, network__hidden_sizes=(16,))
    obs = torch.randn(40_000, STACK * PLANE, generator=torch.Generator().manual_seed(0))
    q_values = algorithm.network(obs).q_values.detach()
    best = q_values.argmax(-1)
    shares = torch.tensor([0.0, 0.3, 1.0, 0.0])
    chosen = act(algorithm, obs, shares.repeat(10_000))
    for place, share in enumerate(shares):
        for likeliest in range(ACTIONS):
            taken = chosen.action[place::4][best[place::4] == likeliest]
            expected = (share / ACTIONS).repeat(ACTIONS)
            expected[likeliest] += 1 - share
            frequency = taken.bincount(minlength=ACTIONS) / len(taken)
            allowed = 4 * 0.5 / len(taken) ** 0.5 if share else 0.0
            torch.testing.assert_close(frequency, expected, rtol=0, atol=allowed)
    assert (chosen.action.dtype, chosen.state) == (torch.int64, {})
    assert torch.equal(chosen.extras["q_values"], q_values)
    assert torch.equal(act(algorithm, obs, 1.0, greedy=True).action, best)
    assert torch.equal(act(algorithm, obs, 0.5, seed=3).action, act(algorithm, obs, 0.5, seed=3).action)
    assert not torch.equal(act(algorithm, obs, 0.5, seed=3).action, act(algorithm, obs, 0.5, seed=4).action)
