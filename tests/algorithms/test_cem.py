"""CEM: members that actors draw and the learner makes again, the update on whole episodes, masks, and what is refused."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from apex_acer import load_policy, train
from apex_acer.actor.rollout import Rollout
from apex_acer.algorithms.algorithm import Action
from apex_acer.algorithms.evolution.cem import Cem
from apex_acer.algorithms.evolution.members import MEMBER, MemberAgent
from apex_acer.algorithms.samples import Sequences
from apex_acer.config.runfile import from_dict, over
from apex_acer.networks.network import State
from apex_acer.networks.policies import as_given
from apex_acer.networks.policies import greedy as best_action
from apex_acer.networks.weights import read
from apex_acer.protocol.actions import MultiDiscrete
from apex_acer.protocol.planes import pack
from apex_acer.protocol.specification import EnvironmentSpec
from tests.algorithms.learning import made, run_of
from tests.algorithms.windows import spec
from tests.conftest import config_error, play
from tests.continuous import AIM, rows_of
from tests.functional import reference_evolution
from tests.runs import BOX, CARTPOLE, PARTS, made_up_obs, tiny_run


class Counted:
    """A `Descent` that keeps the metrics that it counts."""

    def __init__(self) -> None:
        self.metrics: list[Mapping[str, Tensor]] = []

    def step(self, samples: Any) -> Mapping[str, Tensor]:
        raise AssertionError

    def count(self, metrics: Mapping[str, Tensor]) -> None:
        self.metrics.append(metrics)

    def add(self, tensor: Tensor) -> None:
        raise AssertionError


def build_cem(seed: int = 0, given: EnvironmentSpec = CARTPOLE, **changes: Any) -> Cem:
    cem = made("cem", given, seed, **{"gamma": 1.0} | changes)
    assert isinstance(cem, Cem)
    cem.network.std.copy_(torch.rand(len(cem.network.std), generator=torch.manual_seed(seed)) + 0.5)
    return cem


def weights(cem: Cem, number: int) -> list[Tensor]:
    """The parameters of a member, one at a time."""
    noise = torch.randn(len(cem.network.std), generator=torch.Generator().manual_seed(number))
    made, start = [], 0
    for parameter in cem.network.parameters():
        part = slice(start, start + parameter.numel())
        made.append(parameter.detach() + (cem.network.std[part] * noise[part]).view_as(parameter))
        start += parameter.numel()
    return made


def by_hand(cem: Cem, number: int, obs: Tensor) -> Tensor:
    """The output of a member for one observation."""
    *hidden, last = zip(*[iter(weights(cem, number))] * 2, strict=True)
    for weight, bias in hidden:
        obs = (weight @ obs + bias).relu()
    weight, bias = last
    output: Tensor = weight @ obs + bias
    return output


def act(
    agent: MemberAgent, obs: Tensor, state: State, seed: int = 0, *, greedy: bool = False, updates: int = 0
) -> Action:
    generator, exploration = torch.Generator().manual_seed(seed), agent.exploration(len(obs), 0)
    with torch.inference_mode():
        return agent.act(obs, state, greedy=greedy, exploration=exploration, generator=generator, updates=updates)


# members


@pytest.mark.parametrize("given", [CARTPOLE, BOX], ids=["choices", "box"])
@pytest.mark.parametrize("hidden", [(), (6,), (7, 5)], ids=str)
def test_each_column_acts_by_a_member_of_its_own(given: EnvironmentSpec, hidden: tuple[int, ...]) -> None:
    cem = build_cem(1, given, network__hidden_sizes=hidden)
    agent: Any = cem.agent
    obs = torch.randn(9, 4, generator=torch.manual_seed(0), dtype=torch.float64)
    chosen = act(agent, obs, {})
    numbers = chosen.extras[MEMBER]
    assert (numbers.shape, numbers.dtype) == ((9, 1), torch.float32)
    assert len(set(numbers.flatten().tolist())) == 9
    assert torch.equal(chosen.state[MEMBER], numbers)
    expected = [by_hand(cem, int(number), one) for number, one in zip(numbers, obs, strict=True)]
    members = cem.network.members(numbers.squeeze(-1))
    best = torch.stack([flat(weights(cem, int(number))) for number in numbers])
    torch.testing.assert_close(members, best, rtol=0, atol=0)  # to the bit: nothing but the number is sent
    outputs = cem.network.act(cem.network.stacked(members), obs)
    bound = torch.stack(expected).clamp(-1, 1) if given is BOX else torch.stack(expected)
    torch.testing.assert_close(outputs, bound, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(chosen.action, best_action(given.actions, outputs, is_joint=False), rtol=0, atol=0)
    mean = act(agent, obs, {}, greedy=True)
    torch.testing.assert_close(mean.action, best_action(given.actions, cem.network(obs)[0], is_joint=False))
    assert mean.extras == {}


def flat(parts: list[Tensor]) -> Tensor:
    return torch.cat([part.flatten() for part in parts])


def test_a_member_plays_its_episode_to_the_end() -> None:
    """Others begin beside it, and weights arrive."""
    cem = build_cem(2)
    agent: Any = cem.agent
    obs = torch.randn(3, 4, generator=torch.manual_seed(0), dtype=torch.float64)
    first = act(agent, obs, {})
    cem.network.move(cem.network.mean() + 1, cem.network.std)
    again = act(agent, obs, first.state, seed=1, updates=1)
    assert torch.equal(again.extras[MEMBER], first.extras[MEMBER])
    assert torch.equal(again.action, first.action)
    begun = act(agent, obs, {MEMBER: first.state[MEMBER] * torch.tensor([[1.0], [0.0], [1.0]])}, seed=1)
    assert (begun.extras[MEMBER] == first.extras[MEMBER]).flatten().tolist() == [True, False, True]
    assert begun.extras[MEMBER].min() >= 1


def test_environments_in_a_row_share_a_member_that_plays_several_episodes() -> None:
    agent: Any = build_cem(3, episodes_per_member=3, actors__environments=9, learner__batch_size=9).agent
    numbers = act(agent, torch.zeros(9, 4, dtype=torch.float64), {}).extras[MEMBER].view(3, 3)
    assert (numbers == numbers[:, :1]).all()
    assert len(set(numbers[:, 0].tolist())) == 3


def test_frozen_parameters_of_a_torso_are_the_same_in_all_members() -> None:
    run = run_of("cem", network__torso=f"{__name__}:Frozen")
    cem = Cem.make(run, CARTPOLE, torch.device("cpu"))
    assert len(cem.network.std) == 2 * 3 + 2
    cem.network.move(torch.arange(8.0), torch.ones(8))
    assert cem.network.head.weight.flatten().tolist() == list(range(6))
    torso: Any = cem.network.torso
    assert torso.layer.weight.tolist() == [[1.0] * 4] * 3


class Frozen(nn.Module):
    """A torso that is not searched."""

    def __init__(self, config: Any, given: EnvironmentSpec) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        nn.init.ones_(self.layer.weight)
        self.requires_grad_(False)

    def forward(self, inputs: Tensor) -> Tensor:
        features: Tensor = self.layer(inputs)
        return features


def test_no_member_takes_an_illegal_action() -> None:
    cem, random = build_cem(4, PARTS), np.random.default_rng(0)
    parts = {name: made_up_obs(random, box, 500) for name, box in PARTS.boxes.items()}
    legal = random.integers(0, 2, 500)
    parts["action_mask"] = np.eye(2, dtype=np.int8)[legal]
    obs = torch.from_numpy(pack(PARTS, parts, 500))
    agent: Any = cem.agent
    for is_greedy in (False, True):
        assert act(agent, obs, {}, greedy=is_greedy).action.tolist() == legal.tolist()


def test_images_are_seen_by_each_member_with_its_own_convolutions() -> None:
    given = EnvironmentSpec((2, 12, 12), "uint8", CARTPOLE.actions, 2, False, 1, (2, 12, 12))
    cem = build_cem(5, given, network__normalise=True, network__layer_norm=True)
    obs = torch.randint(0, 256, (3, 4, 12, 12), generator=torch.manual_seed(0), dtype=torch.uint8)
    members = cem.network.members(torch.tensor([5, 6, 5]))
    outputs = cem.network.act(cem.network.stacked(members), obs)
    for member, one, expected in zip(members, obs, outputs, strict=True):
        cem.network.move(member, cem.network.std)
        torch.testing.assert_close(cem.network(one.unsqueeze(0))[0][0], expected, rtol=1e-9, atol=1e-9)


# an update


def generation(cem: Cem, seed: int, each: int = 1, steps: int = 8, num: int = 12) -> Sequences:
    """Whole episodes `[steps, num]` of members, some of which never began."""
    generator = torch.manual_seed(seed)
    length = torch.randint(1, steps + 1, (num,), generator=generator)
    length[-2:] = 0
    mask = torch.arange(steps).unsqueeze(-1) < length
    numbers = torch.randint(1, 2**24, (num // each,), generator=generator).repeat_interleave(each)
    numbers = numbers[torch.randperm(num, generator=generator)]
    reward = torch.randn(steps, num, generator=generator, dtype=torch.float64)
    nothing = torch.zeros(steps, num)
    return Sequences(
        obs=torch.zeros(steps + 1, num, 4),
        first=torch.zeros(steps + 1, num, dtype=torch.bool),
        action=nothing.long(),
        reward=reward.masked_fill(~mask, torch.nan),
        discount=nothing,
        last=nothing.bool(),
        mask=mask,
        extras={MEMBER: (numbers * mask).unsqueeze(-1).float()},
        state={MEMBER: torch.zeros(num, 1)},
        importance=torch.ones(num),
        fresh=torch.ones(num, dtype=torch.bool),
    )


@pytest.mark.parametrize("each", [1, 3])
@pytest.mark.parametrize(("fraction", "gamma"), [(0.25, 1.0), (0.01, 0.9), (1.0, 0.5)])
def test_an_update_is_the_paper_s(each: int, fraction: float, gamma: float) -> None:
    settings: dict[str, Any] = {"extra_std": 0.4, "extra_generations": 3, "elite_fraction": fraction, "gamma": gamma}
    shared: dict[str, Any] = {"episodes_per_member": each, "actors__environments": 12, "learner__batch_size": 12}
    cem, counted = build_cem(6, **settings, **shared), Counted()
    for step in range(4):
        samples = generation(cem, step, each)
        played = [column for column in range(12) if samples.mask[0, column]]
        returns = [
            reference_evolution.episode_return([*samples.reward[:, i]], [*samples.mask[:, i]], gamma) for i in played
        ]
        fitness = reference_evolution.mean_returns([int(samples.extras[MEMBER][0, i]) for i in played], returns)
        members = [flat(weights(cem, number)).tolist() for number in fitness]
        num = max(1, round(fraction * len(fitness)))
        z = reference_evolution.noise_variance(0.4, step + 1, 3)
        mean, std = reference_evolution.refit(members, list(fitness.values()), num, z)
        cem.update(samples, counted)
        np.testing.assert_allclose(cem.network.mean(), mean, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(cem.network.std, std, rtol=1e-10, atol=1e-12)
        best = sorted(fitness.values())[-num:]
        expected = sum(fitness.values()) / len(fitness), sum(best) / num, float(np.mean(std))
        assert [float(value) for value in counted.metrics[-1].values()] == pytest.approx(expected)
        assert counted.metrics[-1].keys() == {"fitness", "elite_fitness", "member_std"}
    assert cem.network.generation == 4


def test_actions_and_the_order_of_episodes_change_nothing() -> None:
    cem, other = build_cem(7, elite_fraction=0.3), build_cem(7, elite_fraction=0.3)
    samples = generation(cem, 0)
    cem.update(samples, Counted())
    shuffled = dataclasses.replace(samples, action=samples.action + 1).select(torch.randperm(12))
    other.update(shuffled, Counted())
    torch.testing.assert_close(other.tensors(), cem.tensors(), rtol=0, atol=0)


def test_a_batch_in_which_nothing_was_played_changes_nothing() -> None:
    cem, counted = build_cem(9), Counted()
    before = {name: tensor.clone() for name, tensor in cem.tensors().items()}
    samples = generation(cem, 0)
    cem.update(dataclasses.replace(samples, mask=torch.zeros_like(samples.mask)), counted)
    torch.testing.assert_close(cem.tensors(), before, rtol=0, atol=0)
    assert not counted.metrics


def test_the_learner_makes_the_members_again_that_actors_played() -> None:
    """From the unroll of a real actor."""
    config = run_of("cem", environment__id="CartPole-v1", network__normalise=True, learner__batch_size=8)
    environments, policy = play(config, 4)
    rollout = Rollout(environments, policy, seed=0, actor=0)
    unrolls = [rollout.unroll(8) for _ in range(2)]
    numbers = np.concatenate([unroll.extras[MEMBER][0, :, 0] for unroll in unrolls])
    assert len(set(numbers.tolist())) == 8  # another member in each unroll
    network: Any = policy.network
    for unroll in unrolls:
        assert not unroll.state[MEMBER].any()
        member = network.stacked(network.members(torch.from_numpy(unroll.extras[MEMBER][0, :, 0])))
        for t in np.flatnonzero(unroll.mask.all(1)):
            assert (unroll.extras[MEMBER][t] == unroll.extras[MEMBER][0]).all()
            actions = network.act(member, torch.from_numpy(unroll.obs[t])).argmax(-1)
            assert actions.tolist() == unroll.action[t].tolist()


# whole runs


def test_a_linear_policy_learns_and_its_mean_is_saved(tmp_path: Path) -> None:
    """Random play has a return of −0.83, the best −0; the best policy is linear."""
    config = tiny_run(
        tmp_path,
        environment__id=AIM,
        algorithm__name="cem",
        algorithm__elite_fraction=0.25,
        algorithm__extra_generations=15,
        network__hidden_sizes=(),
        actors__environments=20,
        learner__batch_size=40,
        logging__every_seconds=1e-6,
        stop__env_steps=5000,
        evaluation__every=1000,
    )
    result = train(config)
    assert result.eval_return is not None
    assert -0.1 < result.eval_return < 0
    policy = load_policy(result.weights)
    obs = np.random.default_rng(0).uniform(-1, 1, (50, 2)).astype(np.float32)
    action = policy.network(torch.from_numpy(obs)).action.detach()
    expected = as_given(policy.spec.actions, action)["action"]
    torch.testing.assert_close(torch.from_numpy(policy.act(obs)), expected)
    rows = rows_of(tmp_path, "learner")
    names = {name for row in rows for name in row}
    assert not {"loss", "grad_norm", "learning_rate"} & names
    assert {"fitness", "elite_fitness", "member_std"} <= names
    assert all(row["policy_lag"] == 0 for row in rows if "policy_lag" in row)
    explored = [row["exploration"] for row in rows_of(tmp_path, "actor_0") if "exploration" in row]
    assert explored[0] == 1.0
    assert explored[-1] < 0.5
    assert read(result.weights)[0]["network.generation"] == result.updates


def test_no_forbidden_position_is_taken_in_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By members or by the mean; taking one is an error."""
    monkeypatch.setenv("DIALS_RAISE", "1")
    config = tiny_run(
        tmp_path,
        environment__id="tests.environments_for_tests:Dials-v0",
        environment__kwargs=json.dumps({"nvec": [3, 2, 4], "masked": True}),
        algorithm__name="cem",
        algorithm__episodes_per_member=2,
        learner__batch_size=8,
        evaluation__every=100,
        stop__env_steps=300,
    )
    result = train(config)
    assert result.env_steps // 32 == result.updates  # episodes of four steps
    assert result.updates >= 9


REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"optimizer.learning_rate": 0.1},
        "optimizer.learning_rate: 0.1 is not allowed; cem has no optimizer; leave it out",
    ),
    ({"replay.capacity": 5000}, "replay.capacity: 5000 is not allowed; cem has no replay; leave it out"),
    ({"network.lstm": 8}, "network.lstm: 8 is not allowed; cem has no memory; give 0"),
    ({"learner.count": 2, "engine": "ray"}, "learner.count: 2 is not allowed; cem has one learner; give 1"),
    ({"actors.temperature_low": 0.5}, "actors.temperature_low: 0.5 is not allowed; cem has no softmax; give 1"),
    (
        {"learner.batch_size": 10},
        "learner.batch_size: 10 is not allowed; actors wait for each update, so give a multiple",
    ),
    (
        {"algorithm.episodes_per_member": 3},
        "algorithm.episodes_per_member: 3 is not allowed; give a divisor of actors.environments (4)",
    ),
    (
        {
            "environment.id": "remote",
            "environment.remote": {"observation_shape": (4,), "num_choices": (2,)},
            "actors.environments": 1,
        },
        "environment.id: 'remote' is not allowed; remote clients do not wait for updates, as cem's actors do",
    ),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED, ids=[next(iter(changes)) for changes, _ in REFUSED])
def test_what_it_cannot_do_is_refused_in_one_line(changes: dict[str, Any], message: str) -> None:
    run: dict[str, Any] = {}
    for key, value in ({"actors.environments": 4, "algorithm.name": "cem"} | changes).items():
        section, _, name = key.rpartition(".")
        (run.setdefault(section, {}) if section else run)[name] = value
    assert config_error(lambda: from_dict(run)).startswith(message)


def test_a_run_of_another_algorithm_becomes_one_of_cem_without_its_optimizer() -> None:
    base = {"algorithm": {"name": "ppo"}, "optimizer": {"name": "adam"}, "network": {"normalise": True}}
    changed = over(base, {"algorithm": {"name": "cem"}})
    assert changed == {"algorithm": {"name": "cem"}, "network": {"normalise": True}}
    assert from_dict(changed).algorithm.name == "cem"


def test_only_it_may_lack_hidden_layers() -> None:
    assert from_dict({"algorithm": {"name": "cem"}, "network": {"hidden_sizes": []}}).network.hidden_sizes == ()
    message = config_error(lambda: from_dict({"algorithm": {"name": "ppo"}, "network": {"hidden_sizes": []}}))
    assert message == (
        "network.hidden_sizes: () is not allowed; ppo needs a hidden layer; give one width or more, each 1 or more"
    )


def test_specs_of_several_choices_have_a_logit_for_each() -> None:
    several = spec(actions=MultiDiscrete((3, 2), (0, 0), (2,), "int64"))
    cem = build_cem(8, several)
    agent: Any = cem.agent
    assert cem.network(torch.zeros(1, 4)).pi_logits.shape == (1, 5)
    chosen = act(agent, torch.randn(64, 4, generator=torch.manual_seed(0), dtype=torch.float64), {})
    assert set(chosen.action.tolist()) == set(range(6))
