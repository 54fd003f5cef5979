"""How Ape-X DQN explores, and what it does."""

import pytest
import torch

from apex_acer.algorithms import make_agent
from tests.algorithms.segments import PLANE
from tests.algorithms.windows import ACTIONS, build_dqn, dqn_config, spec
from tests.functional import reference_q


@pytest.mark.parametrize(("actors", "environments"), [(1, 1), (1, 6), (6, 1), (3, 4)])
@pytest.mark.parametrize("alpha", [0.0, 7.0])
def test_epsilons_are_the_paper_s_over_all_environments_of_all_actors(actors, environments, alpha):
    config = dqn_config(actors=actors, epsilon=0.4, epsilon_alpha=alpha)
    found = [make_agent(config, spec()).exploration(environments, actor) for actor in range(actors)]
    count = actors * environments
    expected = [reference_q.epsilon(0.4, alpha, index, count) for index in range(count)]
    assert {each.shape for each in found} == {(environments,)}
    assert {each.dtype for each in found} == {torch.float32}
    assert torch.cat(found).tolist() == pytest.approx(expected, rel=1e-6)
    assert count == 1 or torch.cat(found)[-1].item() == pytest.approx(0.4 ** (1 + alpha))


@pytest.mark.parametrize("epsilon", [0.0, 1.0])
def test_an_epsilon_of_none_or_all_is_everybody_s(epsilon):
    assert make_agent(dqn_config(epsilon=epsilon, actors=2), spec()).exploration(3, 1).tolist() == [epsilon] * 3


def test_an_evaluation_has_its_own_epsilon():
    assert make_agent(dqn_config(evaluation_epsilon=0.25), spec()).exploration(3).tolist() == [0.25] * 3


def act(algorithm, obs, epsilon, *, seed=0, greedy=False):
    with torch.no_grad():
        return algorithm.agent.act(
            obs,
            {},
            greedy=greedy,
            exploration=torch.as_tensor(epsilon).expand(len(obs)),
            generator=torch.Generator().manual_seed(seed),
            updates=1,
        )


@pytest.fixture(scope="module")
def acting():
    """A network, observations and their best actions, each of which is some observation's."""
    algorithm = build_dqn(13, dtype=torch.float32)
    obs = torch.randn(20_000, PLANE, generator=torch.Generator().manual_seed(0))
    best = algorithm.network(obs).q_values.argmax(-1)
    assert len(best.unique()) == ACTIONS
    return algorithm, obs, best


def test_greedy_and_an_epsilon_of_zero_take_the_best(acting):
    algorithm, obs, best = acting
    chosen = act(algorithm, obs, 1.0, greedy=True)
    assert torch.equal(chosen.action, best)
    assert torch.equal(act(algorithm, obs, 0.0).action, best)
    assert (chosen.action.dtype, chosen.state) == (torch.int64, {})
    assert torch.equal(chosen.extras["q_values"], algorithm.network(obs).q_values)


@pytest.mark.parametrize("epsilon", [0.3, 1.0])
def test_a_share_of_epsilon_is_uniform_whatever_is_best(acting, epsilon):
    algorithm, obs, best = acting
    action = act(algorithm, obs, epsilon, seed=1).action
    for likeliest in range(ACTIONS):
        taken = action[best == likeliest]
        expected = torch.full((ACTIONS,), epsilon / ACTIONS)
        expected[likeliest] += 1 - epsilon
        frequency = taken.bincount(minlength=ACTIONS) / len(taken)
        torch.testing.assert_close(frequency, expected, rtol=0, atol=4 * 0.5 / len(taken) ** 0.5)


def test_each_environment_has_its_own_epsilon(acting):
    algorithm, obs, best = acting
    epsilon = torch.tensor([0.0, 1.0, 0.25, 0.0]).repeat(len(obs) // 4)
    deviates = (act(algorithm, obs, epsilon, seed=2).action != best).view(-1, 4).float().mean(0)
    expected = torch.tensor([0.0, 1.0, 0.25, 0.0]) * (1 - 1 / ACTIONS)
    assert deviates[[0, 3]].tolist() == [0, 0]
    torch.testing.assert_close(deviates, expected, rtol=0, atol=0.03)


def test_actions_follow_their_generator(acting):
    algorithm, obs, _ = acting
    one, again, other = (act(algorithm, obs, 0.5, seed=seed).action for seed in (3, 3, 4))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
