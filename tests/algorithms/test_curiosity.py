"""Curiosity as actor-critic and PPO have it: what it pays, what it learns, and what it leaves alone."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from apex_acer.algorithms import algorithm_class
from apex_acer.algorithms.samples import prepared as prepared_obs
from apex_acer.algorithms.samples import without_last
from apex_acer.config import RunConfig
from apex_acer.functional import masked_mean
from apex_acer.learner.ranks import ALONE
from apex_acer.learner.trainer import Trainer
from apex_acer.networks.policies import hybrid_action
from apex_acer.protocol.actions import Box, Discrete
from apex_acer.protocol.composite import Composite
from apex_acer.protocol.specification import EnvironmentSpec
from apex_acer.protocol.unroll import Batch
from tests.algorithms.learning import batch_of, run_of, samples_of

T, B, WIDTH = 6, 4, 3
END = 4  # the step that ends an episode of the second column
BOX = Box((-1.0, 0.0), (3.0, 10.0), (2,), "float32")
ACTIONS = {"Discrete": Discrete(3, 0), "Box": BOX, "Hybrid": Composite(("0", "1"), (BOX, Discrete(3, 0)))}
CPU = torch.device("cpu")
ETA = 0.5


def spec_of(actions: str = "Discrete", plane: tuple[int, ...] = (WIDTH,), stack: int = 1) -> EnvironmentSpec:
    return EnvironmentSpec(plane, "float32", ACTIONS[actions], stack, False, 1, plane)


def curious_run(name: str = "ppo", **changes: Any) -> RunConfig:
    more = {"minibatches": 2} if name == "ppo" else {}
    return run_of(name, **{"curiosity": ETA, **more, **changes})


def build(name: str = "ppo", spec: EnvironmentSpec | None = None, **changes: Any) -> Any:
    torch.manual_seed(0)
    return algorithm_class(name).make(curious_run(name, **changes), spec or spec_of(), CPU)


def curious_batch(spec: EnvironmentSpec) -> Batch:
    """Segments without ends, but for one before a dummy step in the first column, and one without it in the second."""
    torch.manual_seed(1)
    choice, numbers = torch.randint(3, (T, B)), torch.rand(T, B, 2) * 2 - 1
    actions = {"Discrete": choice, "Box": numbers, "Hybrid": hybrid_action(choice, numbers)}
    terminated, mask = torch.zeros(T, B, dtype=torch.bool), torch.ones(T, B, dtype=torch.bool)
    terminated[2, 0], mask[3, 0], terminated[END, 1] = True, False, True
    episode_step = torch.arange(spec.stack + T).unsqueeze(-1).repeat(1, B) + 5
    episode_step[spec.stack + 3 :, 0] = torch.arange(T - 3)
    episode_step[spec.stack + END :, 1] = torch.arange(T - END)
    zeros = torch.zeros(T, B, 2)
    choices = {"log_probs": torch.randn(T, B, 3).log_softmax(-1)} if spec.num_choices else {}
    gaussian = {"mean": zeros, "log_std": zeros, "sample": numbers} if spec.action_dim else {}
    return batch_of(
        torch.randn(spec.stack + T, B, *spec.plane_shape),
        actions[spec.actions.kind],
        episode_step=episode_step,
        terminated=terminated,
        mask=mask,
        extras=choices | gaussian,
    )


def prepared(algorithm: Any, batch: Batch) -> Any:
    """What the algorithm learns from, with its targets."""
    return algorithm.prepare(samples_of(algorithm, batch), ALONE)


def errors_of(algorithm: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    samples = samples_of(algorithm, batch)
    forward, inverse = algorithm.curiosity(prepared_obs(algorithm.network, samples.obs), batch.action)
    goes_on = ~samples.first[1:]
    return forward * goes_on, inverse * goes_on


def slow_errors(curiosity: Any, batch: Batch, t: int, b: int) -> tuple[Tensor, Tensor]:
    """½ ‖φ̂ − φ′‖², and the inverse model's error, of one transition."""
    before, after = (curiosity.torso(batch.obs[row, b].unsqueeze(0)) for row in (t, t + 1))
    action = batch.action[t, b].ravel()
    choice, numbers = (action[:1].long(), action[1:].float()) if len(action) != 2 else (action[:0].long(), action)
    vector = torch.cat([torch.eye(3)[choice].flatten(), numbers])
    expected = curiosity.forward_model(torch.cat([before, vector.unsqueeze(0)], -1))
    guessed = curiosity.inverse_model(torch.cat([before, after], -1))[0]
    forward = 0.5 * (expected - after).square().sum()
    logits = guessed[: 3 * len(choice)]
    return forward, 0.5 * (guessed[len(logits) :] - numbers).square().sum() - logits.log_softmax(-1)[choice].sum()


@pytest.mark.parametrize("actions", ACTIONS)
def test_each_transition_has_its_errors_of_which_the_models_and_the_features_learn(actions: str) -> None:
    batch, algorithm = curious_batch(spec_of(actions)), build(spec=spec_of(actions))
    for parameter in algorithm.curiosity.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    forward, inverse = errors_of(algorithm, batch)
    for t, b in ((0, 0), (2, 0), (5, 3)):
        expected = slow_errors(algorithm.curiosity, batch, t, b)
        torch.testing.assert_close((forward[t, b], inverse[t, b]), expected)
        parameters = list(algorithm.curiosity.parameters())
        gradients = [
            torch.autograd.grad(error, parameters, retain_graph=True, materialize_grads=True)
            for error in (forward[t, b], expected[0], inverse[t, b], expected[1])
        ]
        torch.testing.assert_close(gradients[::2], gradients[1::2], rtol=1e-4, atol=1e-4)


V_TRACE = {"targets": "vtrace"}


@pytest.mark.parametrize(("name", "settings"), [("ppo", {}), ("actor_critic", {}), ("actor_critic", V_TRACE)])
def test_the_reward_is_that_of_the_environment_and_of_curiosity(name: str, settings: dict[str, Any]) -> None:
    """The step that ends an episode leads somewhere, too, if its last observation is there; a dummy step does not."""
    batch, algorithm = curious_batch(spec_of()), build(name, **settings)
    samples = prepared(algorithm, batch)
    paid = samples.targets["intrinsic_reward"]
    assert not paid.requires_grad
    assert paid[3, 0] == paid[END, 1] == 0
    for t, b in ((0, 0), (2, 0), (5, 3)):
        torch.testing.assert_close(paid[t, b], ETA * slow_errors(algorithm.curiosity, batch, t, b)[0].detach())
    torch.testing.assert_close(samples.reward, batch.reward + paid)
    plain = build(name, curiosity=0.0, **settings)
    plain.network.load_state_dict(algorithm.network.state_dict())
    plain.critic.load_state_dict(algorithm.critic.state_dict())
    expected = prepared(plain, dataclasses.replace(batch, reward=batch.reward + paid))
    torch.testing.assert_close(samples.targets, {**expected.targets, "intrinsic_reward": paid})


@pytest.mark.parametrize("actions", ACTIONS)
@pytest.mark.parametrize("name", ["actor_critic", "ppo"])
def test_the_models_learn_and_the_policy_does_not_notice(name: str, actions: str) -> None:
    spec = spec_of(actions)
    batch, algorithm = curious_batch(spec), build(name, spec)
    samples = prepared(algorithm, batch)
    output = algorithm.loss(samples)
    groups = {group: own.parameters for group, own in algorithm.groups().items()}
    curious = torch.autograd.grad(output.loss, groups["curiosity"], retain_graph=True)
    forward, inverse = errors_of(algorithm, batch)
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
    there = torch.autograd.grad(plain.loss(without_last(samples)).loss, own.parameters)
    torch.testing.assert_close(torch.autograd.grad(output.loss, groups["network"]), there)


@pytest.mark.parametrize(
    ("spec", "settings"),
    [
        (spec_of(stack=2), {"network__lstm": 8}),
        (spec_of(plane=(2, 9, 9)), {"network__normalise": True}),
        (spec_of("Box", (2, 9, 9), 2), {}),
    ],
)
def test_steps_are_taken_on_vectors_images_and_with_memory(spec: EnvironmentSpec, settings: dict[str, Any]) -> None:
    config: Any = curious_run(**settings)
    trainer = Trainer(config, spec)
    state = {name: torch.zeros(B, *shape) for name, shape in trainer.algorithm.agent.state.items()}
    before = {name: tensor.clone() for name, tensor in trainer.algorithm.tensors().items()}
    update = trainer.update(dataclasses.replace(curious_batch(spec), state=state), 0, 0)
    assert len(update.metrics) == 2 * config.algorithm.epochs
    assert not update.num_skipped
    after = trainer.algorithm.tensors()
    assert all(not after[name].equal(before[name]) for name in before if name.endswith(".weight"))
    trainer.close()


def test_the_features_are_of_a_torso_of_its_own_which_stays_with_the_learner() -> None:
    algorithm, plain = build(), build(curiosity=0.0)
    own = {name for name in algorithm.tensors() if name.startswith("curiosity.")}
    assert own == {f"curiosity.{name}" for name in algorithm.curiosity.state_dict()}
    assert plain.tensors().keys() == algorithm.tensors().keys() - own
    assert plain.groups().keys() == {"network"}
    torsos = [[p.shape for p in module.torso.parameters()] for module in (algorithm.curiosity, algorithm.network)]
    assert torsos[0] == torsos[1]
    assert not {id(p) for p in algorithm.curiosity.parameters()} & {id(p) for p in algorithm.network.parameters()}


def test_a_minibatch_without_steps_has_no_errors() -> None:
    algorithm = build()
    curiosity, action = algorithm.modules["curiosity"], torch.zeros(1, 0, dtype=torch.int64)
    assert [error.shape for error in curiosity(torch.zeros(0, WIDTH), action)] == [(1, 0), (1, 0)]
