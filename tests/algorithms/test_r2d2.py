"""R2D2's loss and priorities, against networks that are stepped through each sequence one observation at a time."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from apex_acer.actor.rollout import Rollout
from apex_acer.algorithms.dqn.r2d2 import R2d2
from apex_acer.algorithms.dqn.settings import R2d2Config
from apex_acer.config import ActorsConfig, EnvironmentConfig, LearnerConfig, NetworkConfig, ReplayConfig, RunConfig
from apex_acer.learner.parts import make_sampler, make_storage, unroll_layout
from apex_acer.networks.discrete import QNetwork
from apex_acer.networks.frames import stack_planes
from apex_acer.networks.memory import reset_state
from apex_acer.protocol.actions import Discrete
from apex_acer.protocol.specification import EnvironmentSpec
from apex_acer.protocol.unroll import PRIORITY, Batch
from tests.algorithms.learning import loss_of
from tests.algorithms.segments import CPU, PLANE, SIZES, flat, random_segments
from tests.algorithms.windows import as_arrays, randomise
from tests.conftest import COUNTDOWN, config_error, joined, play
from tests.functional import reference_q

LSTM, BURN_IN, STACK = 6, 3, 2
REFERENCE = ("n_steps", "gamma", "double", "value_rescaling", "reward_clip", "terminal_penalty")


def r2d2_config(lstm: int = LSTM, temperature: float = 1.0, **settings: Any) -> RunConfig:
    given: dict[str, Any] = {"unroll_length": SIZES.length - BURN_IN, "n_steps": 3, "gamma": 0.9, "burn_in": BURN_IN}
    return RunConfig(
        actors=ActorsConfig(temperature_high=temperature),
        network=NetworkConfig(hidden_sizes=(16,), lstm=lstm),
        learner=LearnerConfig(precision="float32"),
        replay=ReplayConfig(sampling="prioritized"),
        algorithm=R2d2Config(**given | settings),
    )


def built(seed: int = 0, **settings: Any) -> R2d2:
    """An `R2d2` as after some training; its networks differ."""
    spec = EnvironmentSpec((PLANE,), "float32", Discrete(SIZES.actions, 0), STACK, False, 1, (PLANE,))
    algorithm = R2d2.make(r2d2_config(**settings), spec, CPU)
    for number, network in enumerate((algorithm.network, algorithm.target_network)):
        randomise(network.to(torch.float64), 2 * seed + number)
    return algorithm


def sequences(seed: int = 0) -> Batch:
    """A batch in which episodes end and begin in every way; the first steps are masked, as a burn-in is."""
    batch, _ = random_segments(seed, stack=STACK, lstm=LSTM)
    batch.mask[:BURN_IN] = False
    batch.reward.mul_(2)
    return batch


def stepped(network: QNetwork, batch: Batch) -> Tensor:
    """Q `[T+1, B, A]`, one observation after the other; the state that the burn-in leaves is a constant."""
    obs = stack_planes(batch.obs, batch.episode_step, STACK)
    state, values = batch.state, []
    for t in range(len(obs)):
        if t == BURN_IN:
            state = {name: part.detach() for name, part in state.items()}
        output, state = network.step(obs[t], reset_state(state, batch.episode_step[t + STACK - 1] == 0))
        values.append(output.q_values)
    return torch.stack(values)


SETTINGS: dict[str, dict[str, Any]] = {
    "as published": {},
    "single": {"double": False},
    "not rescaled": {"value_rescaling": False},
    "clipped, not dueling": {"reward_clip": 1.0, "terminal_penalty": 0.5, "dueling": False},
    "to the end of the sequence": {"n_steps": 5, "gamma": 1.0},
}


@pytest.mark.parametrize("changes", SETTINGS.values(), ids=SETTINGS)
def test_loss_priorities_and_gradients_are_those_of_single_steps(changes: dict[str, Any]) -> None:
    algorithm, batch = built(1, **changes), sequences(1)
    q_values, judge = (stepped(network, batch) for network in (algorithm.network, algorithm.target_network))
    settings = {name: getattr(algorithm.settings, name) for name in REFERENCE}
    heard, judged = q_values.detach().numpy(), judge.detach().numpy()
    expected = reference_q.sequence_loss(as_arrays(batch), heard, judged, **settings)
    taken = q_values[:-1].gather(-1, batch.action.unsqueeze(-1)).squeeze(-1)
    parameters = list(algorithm.network.parameters())
    gradients = torch.autograd.grad(taken, parameters, torch.from_numpy(expected.d_q_taken))
    output = loss_of(algorithm, batch)
    assert output.loss.item() == pytest.approx(expected.total, rel=1e-9)
    assert output.num_samples == batch.mask.sum()
    np.testing.assert_allclose(output.priorities.numpy(), expected.priorities, rtol=1e-9)
    torch.testing.assert_close(flat(torch.autograd.grad(output.loss, parameters)), flat(gradients))
    mean = expected.target[batch.mask.numpy()].mean()
    assert output.metrics["q_target"].item() == pytest.approx(mean, rel=1e-9)
    begins = batch.episode_step[STACK - 1 :][1:-1] == 0
    assert (begins & batch.mask[1:]).sum() > 3
    assert (batch.terminated & batch.mask).sum() > 3


def test_a_batch_of_masked_steps_has_no_samples() -> None:
    batch = dataclasses.replace(sequences(), mask=torch.zeros(SIZES.length, SIZES.columns, dtype=torch.bool))
    output = loss_of(built(), batch)
    assert output.loss == output.num_samples == 0
    assert not output.priorities.any()


COUNT, K = 3, 6
ENVIRONMENTS: dict[str, dict[str, Any]] = {
    "cartpole": {"id": "CartPole-v1"},
    "truncated": {"id": COUNTDOWN, "stack": 2, "kwargs": '{"lengths": [4, 13, 6], "truncate": true}'},
    "terminated": {"id": COUNTDOWN, "kwargs": '{"lengths": [4, 13, 6]}'},
}


@pytest.mark.parametrize("burn_in", [0, 4, K])
@pytest.mark.parametrize("environment", ENVIRONMENTS.values(), ids=ENVIRONMENTS)
def test_an_actor_s_priorities_are_a_learner_s(environment: dict[str, Any], burn_in: int) -> None:
    """So the learner's burn-in leads from the stored state to the very states that the actor was in, also over resets."""
    config = dataclasses.replace(
        r2d2_config(unroll_length=K, burn_in=burn_in), environment=EnvironmentConfig(**environment)
    )
    environments, policy = play(config, COUNT)
    randomise(policy.network, seed=1, std=0.3)
    rollout = Rollout(environments, policy, seed=2, actor=0)
    unrolls = [rollout.unroll(K) for _ in range(6)]
    environments.close()
    shapes = unroll_layout(config, policy.spec)
    assert all(shapes.check(unroll, COUNT) is None for unroll in unrolls)
    replay = make_storage(config, shapes, env_steps=6 * COUNT * K)
    sampler = make_sampler(config, replay)
    for unroll in unrolls:
        sampler.insert(replay.insert(unroll, 0), unroll)
    assert replay.num_steps == sum(unroll.num_steps for unroll in unrolls)
    learner = R2d2.make(config, policy.spec, CPU)
    for network in (learner.network, learner.target_network):
        network.load_state_dict(policy.network.state_dict())
    with torch.no_grad():
        learned = loss_of(learner, replay.gather(torch.arange(6 * COUNT))).priorities.view(6, COUNT)
    given = np.stack([unroll.extras[PRIORITY].max(0) for unroll in unrolls])
    np.testing.assert_allclose(learned.numpy(), given, rtol=1e-4, atol=1e-4)
    assert (~joined(unrolls, "mask")).sum() > 6 * COUNT * burn_in  # dummy steps, too
    weights = (given.ravel() + 1e-6) ** config.replay.priority_exponent
    np.testing.assert_allclose(sampler.arrays()["weights"], weights, rtol=1e-6)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "lstm": ({"lstm": 0}, "network.lstm: 0 is not allowed; r2d2 needs an LSTM; give 1 or more"),
    "burn_in": ({"burn_in": 6}, "algorithm.burn_in: 6 is not allowed; give at most algorithm.unroll_length (5)"),
    "negative": ({"burn_in": -1}, "algorithm.burn_in: -1 is not allowed; give 0 or more"),
    "softmax": ({"temperature": 2.0}, "actors.temperature_high: 2.0 is not allowed; r2d2 has no softmax; give 1"),
}


@pytest.mark.parametrize(("settings", "message"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_suit_it_is_refused_in_one_line(settings: dict[str, Any], message: str) -> None:
    assert config_error(lambda: built(**settings)).startswith(message)
