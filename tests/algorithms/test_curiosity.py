"""Curiosity as actor-critic and PPO have it: what it pays, what it learns, and what it leaves alone."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from apex_acer.algorithms import algorithm_class
from apex_acer.algorithms.samples import prepared as prepared_obs
from apex_acer.algorithms.samples import split
from apex_acer.functional import masked_mean
from apex_acer.learner.trainer import Trainer
from apex_acer.networks.torsos import build_torso
from apex_acer.protocol.actions import Box, Discrete
from apex_acer.protocol.specification import EnvironmentSpec
from apex_acer.protocol.unroll import Batch
from tests.algorithms.learning import samples_of
from tests.runs import tiny_run

T, B, WIDTH = 6, 4, 3
ACTIONS = {"Discrete": Discrete(3, 0), "Box": Box((-1.0, 0.0), (3.0, 10.0), (2,), "float32")}
CPU = torch.device("cpu")
ETA = 0.5


class Alone:
    """A `Descent` that takes no steps."""

    def add(self, tensor):
        """The sum over one learner."""


def spec_of(actions="Discrete", plane=(WIDTH,), stack=1):
    return EnvironmentSpec(plane, "float32", ACTIONS[actions], stack, False, 1, plane)


def run_of(name="ppo", curiosity=ETA, **settings):
    more = {"algorithm__minibatches": 2} if name == "ppo" else {}
    return tiny_run(
        algorithm__name=name, algorithm__unroll_length=T, algorithm__curiosity=curiosity, **more, **settings
    )


def build(name="ppo", spec=None, **settings):
    torch.manual_seed(0)
    return algorithm_class(name).make(run_of(name, **settings), spec or spec_of(), CPU)


def batch_of(spec):
    """Segments without ends, but for a dummy step in the first column, before which its episode ended."""
    torch.manual_seed(1)
    discrete = isinstance(spec.actions, Discrete)
    action = torch.randint(3, (T, B)) if discrete else torch.rand(T, B, 2) * 2 - 1
    log_probs = torch.randn(T, B, 3).log_softmax(-1)
    zeros = torch.zeros(T, B, 2)
    terminated, mask = torch.zeros(T, B, dtype=torch.bool), torch.ones(T, B, dtype=torch.bool)
    terminated[2, 0], mask[3, 0] = True, False
    episode_step = torch.arange(spec.stack + T).unsqueeze(-1).repeat(1, B) + 5
    episode_step[spec.stack + 3 :, 0] = torch.arange(T - 3)
    return Batch(
        obs=torch.randn(spec.stack + T, B, *spec.plane_shape),
        episode_step=episode_step,
        action=action,
        reward=torch.randn(T, B),
        terminated=terminated,
        truncated=torch.zeros(T, B, dtype=torch.bool),
        mask=mask,
        extras={"log_probs": log_probs} if discrete else {"mean": zeros, "log_std": zeros, "sample": action},
        state={},
        weights_version=torch.zeros(B, dtype=torch.int64),
        fresh=torch.ones(B, dtype=torch.bool),
        importance=torch.ones(B),
    )


def slow_errors(curiosity, batch, t, b):
    """½ ‖φ̂ − φ′‖², and the inverse model's error, of one transition."""
    before, after = (curiosity.torso(batch.obs[row, b].unsqueeze(0)) for row in (t, t + 1))
    action = batch.action[t, b]
    vector = action if action.is_floating_point() else torch.eye(3)[action]
    expected = curiosity.forward_model(torch.cat([before, vector.unsqueeze(0)], -1))
    guessed = curiosity.inverse_model(torch.cat([before, after], -1))[0]
    forward = 0.5 * (expected - after).square().sum()
    if action.is_floating_point():
        return forward, 0.5 * (guessed - action).square().sum()
    return forward, -guessed.log_softmax(-1)[action]


@pytest.mark.parametrize("actions", ACTIONS)
def test_each_transition_has_its_errors(actions):
    batch, algorithm = batch_of(spec_of(actions)), build(spec=spec_of(actions))
    for parameter in algorithm.curiosity.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    forward, inverse = algorithm.curiosity(
        prepared_obs(algorithm.network, samples_of(algorithm, batch).obs), batch.action
    )
    for t, b in ((0, 0), (2, 0), (5, 3)):
        expected = slow_errors(algorithm.curiosity, batch, t, b)
        torch.testing.assert_close((forward[t, b], inverse[t, b]), expected)


V_TRACE = {"algorithm__targets": "vtrace"}


@pytest.mark.parametrize(("name", "settings"), [("ppo", {}), ("actor_critic", {}), ("actor_critic", V_TRACE)])
def test_the_reward_is_that_of_the_environment_and_of_curiosity(name, settings):
    """The step that ends an episode leads somewhere, too; a dummy step does not."""
    batch, algorithm = batch_of(spec_of()), build(name, **settings)
    prepared = algorithm.prepare(samples_of(algorithm, batch), Alone())
    paid = prepared.targets["intrinsic_reward"]
    assert not paid.requires_grad
    assert paid[3, 0] == 0
    for t, b in ((0, 0), (2, 0), (5, 3)):
        torch.testing.assert_close(paid[t, b], ETA * slow_errors(algorithm.curiosity, batch, t, b)[0].detach())
    torch.testing.assert_close(prepared.reward, batch.reward + paid)
    plain = build(name, curiosity=0.0, **settings)
    plain.network.load_state_dict(algorithm.network.state_dict())
    plain.critic.load_state_dict(algorithm.critic.state_dict())
    expected = plain.prepare(samples_of(plain, dataclasses.replace(batch, reward=batch.reward + paid)), Alone())
    torch.testing.assert_close(prepared.targets, {**expected.targets, "intrinsic_reward": paid})


@pytest.mark.parametrize("actions", ACTIONS)
@pytest.mark.parametrize("name", ["actor_critic", "ppo"])
def test_the_models_learn_and_the_policy_does_not_notice(name, actions):
    spec = spec_of(actions)
    batch, algorithm = batch_of(spec), build(name, spec)
    prepared = algorithm.prepare(samples_of(algorithm, batch), Alone())
    output = algorithm.loss(prepared)
    groups = {group: own.parameters for group, own in algorithm.groups().items()}
    curious = torch.autograd.grad(output.loss, groups["curiosity"], retain_graph=True)
    forward, inverse = algorithm.curiosity(
        prepared_obs(algorithm.network, samples_of(algorithm, batch).obs), batch.action
    )
    expected = masked_mean(0.8 * inverse + 0.2 * forward, batch.mask)
    torch.testing.assert_close(curious, torch.autograd.grad(expected, groups["curiosity"]))
    metrics = output.metrics
    torch.testing.assert_close(metrics["forward_loss"], masked_mean(forward, batch.mask).detach())
    torch.testing.assert_close(metrics["inverse_loss"], masked_mean(inverse, batch.mask).detach())
    torch.testing.assert_close(metrics["intrinsic_reward"], ETA * metrics["forward_loss"])
    torch.testing.assert_close(metrics["loss"], output.loss.detach())

    plain = build(name, spec, curiosity=0.0)
    plain.load({name: tensor for name, tensor in algorithm.tensors().items() if not name.startswith("curiosity.")})
    (own,) = plain.groups().values()
    there = torch.autograd.grad(plain.loss(prepared).loss, own.parameters)
    torch.testing.assert_close(torch.autograd.grad(output.loss, groups["network"]), there)


def test_the_loss_of_parts_is_that_of_the_whole():
    batch, algorithm = batch_of(spec_of()), build()
    prepared = algorithm.prepare(samples_of(algorithm, batch), Alone())
    whole, parts = algorithm.loss(prepared), [algorithm.loss(part) for part in split(prepared, 2)]
    steps = sum(part.num_samples for part in parts)
    torch.testing.assert_close(whole.loss, sum(part.loss * part.num_samples for part in parts) / steps)
    single = [algorithm.loss(part) for part in algorithm.minibatches(prepared, int(steps))]
    torch.testing.assert_close(whole.loss, sum(part.loss for part in single) / steps)


@pytest.mark.parametrize(
    ("spec", "settings"),
    [
        (spec_of(stack=2), {"network__lstm": 8}),
        (spec_of(plane=(2, 9, 9)), {"network__normalise": True}),
        (spec_of("Box", (2, 9, 9), 2), {}),
    ],
)
def test_steps_are_taken_on_vectors_images_and_with_memory(spec, settings):
    config = run_of(**settings)
    trainer = Trainer(config, spec)
    state = {name: torch.zeros(B, *shape) for name, shape in trainer.algorithm.agent.state.items()}
    before = {name: tensor.clone() for name, tensor in trainer.algorithm.tensors().items()}
    update = trainer.update(dataclasses.replace(batch_of(spec), state=state), 0, 0)
    assert len(update.metrics) == 2 * config.algorithm.epochs
    assert not update.num_skipped
    after = trainer.algorithm.tensors()
    assert all(not after[name].equal(before[name]) for name in before if name.endswith(".weight"))
    trainer.close()


def test_the_features_are_of_a_torso_of_its_own_which_stays_with_the_learner():
    algorithm = build()
    assert sum(parameter.numel() for parameter in algorithm.curiosity.torso.parameters()) == sum(
        parameter.numel() for parameter in build_torso(run_of().network, spec_of(), (16,))[0].parameters()
    )
    own = {name for name in algorithm.tensors() if name.startswith("curiosity.")}
    assert own == {f"curiosity.{name}" for name in algorithm.curiosity.state_dict()}
    assert not {id(p) for p in algorithm.curiosity.parameters()} & {id(p) for p in algorithm.network.parameters()}


def test_without_curiosity_there_is_none():
    algorithm = build(curiosity=0.0)
    assert algorithm.modules.keys() == {"network", "critic"}
    assert algorithm.groups().keys() == {"network"}
    assert (
        "forward_loss"
        not in algorithm.loss(algorithm.prepare(samples_of(algorithm, batch_of(spec_of())), Alone())).metrics
    )
