"""PQN: its targets and loss against a slow transcription, its epochs, and how it explores."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from apex_acer import train
from apex_acer.algorithms import make_agent
from apex_acer.algorithms.on_policy.pqn import TARGET, Pqn
from apex_acer.algorithms.samples import Sequences
from apex_acer.networks.frames import stack_planes
from apex_acer.networks.memory import reset_state
from apex_acer.protocol.planes import pack
from tests.algorithms.learning import NoisyBatch, act, batch_of, gradients_of, made, run_of, samples_of
from tests.algorithms.segments import CHOICES, SIZES, Arrays, fields_of, flat, random_state
from tests.algorithms.windows import spec
from tests.continuous import rows_of
from tests.functional import reference, reference_q
from tests.runs import PARTS, made_up_obs, tiny_run

STACK = 2
SETTINGS: dict[str, dict[str, Any]] = {
    "as published": {},
    "with memory": {"network__lstm": 6},
    "shaped rewards, one step": {"reward_clip": 1.0, "terminal_penalty": 0.5, "q_lambda": 0.0},
    "without layer normalisation": {"network__layer_norm": False, "q_lambda": 1.0, "gamma": 1.0},
}


def build_pqn(seed: int = 0, **changes: Any) -> Pqn:
    pqn = made("pqn", spec(STACK, CHOICES), seed, **{"network__layer_norm": True} | changes)
    assert isinstance(pqn, Pqn)
    return pqn


def sequences(seed: int = 0, lstm: int = 0) -> tuple[NoisyBatch, Arrays]:
    """A batch for `build_pqn`, and the arrays of the same episodes that the reference takes."""
    arrays = reference.random_batch(seed, SIZES)
    generator = torch.Generator().manual_seed(seed)
    fields = fields_of(arrays, generator, STACK, torch.float64)
    return batch_of(**fields, state=random_state(generator, lstm)), arrays


def q_values_step_by_step(algorithm: Pqn, batch: NoisyBatch) -> Tensor:
    """Q `[T+1, B, A]`, as an actor computes it."""
    obs, state, outputs = stack_planes(batch.obs, batch.episode_step, STACK), batch.state, []
    for step_obs, begins in zip(obs, batch.episode_step[STACK - 1 :] == 0, strict=True):
        output, state = algorithm.network.step(step_obs, reset_state(state, begins))
        outputs.append(output.q_values)
    return torch.stack(outputs)


@pytest.mark.parametrize("changes", SETTINGS.values(), ids=SETTINGS)
def test_targets_loss_and_gradients_match_the_paper(changes: dict[str, Any]) -> None:
    algorithm, settings = build_pqn(1, **changes), build_pqn(1, **changes).settings
    batch, arrays = sequences(1, changes.get("network__lstm", 0))
    q_values = q_values_step_by_step(algorithm, batch)
    shaping = settings.reward_clip, settings.terminal_penalty
    pairs = zip(arrays["reward"].flat, arrays["terminated"].flat, strict=True)
    shaped = [reference_q.shape_reward(reward, ended, *shaping) for reward, ended in pairs]
    arrays = arrays | {"reward": np.array(shaped).reshape(arrays["reward"].shape)}
    target = reference_q.q_lambda_targets(arrays, q_values.detach().numpy(), settings.gamma, settings.q_lambda)
    np.testing.assert_allclose(samples_of(algorithm, batch).targets[TARGET].numpy(), target, rtol=1e-10, atol=1e-11)

    mask, taken = batch.mask.numpy(), q_values[:-1].gather(-1, batch.action.unsqueeze(-1)).squeeze(-1)
    error = np.where(mask, target - taken.detach().numpy(), 0.0)
    parameters = list(algorithm.network.parameters())
    expected = torch.autograd.grad(taken, parameters, torch.from_numpy(-error / mask.sum()))
    output, found = gradients_of(algorithm, batch)
    loss = 0.5 * (error**2).sum() / mask.sum()
    torch.testing.assert_close(found["network"], flat(expected), rtol=1e-9, atol=1e-12)
    columns = {
        "td_error": np.abs(error),
        "q_taken": taken.detach().numpy(),
        "q_target": target,
        "value": q_values[:-1].amax(-1).detach().numpy(),
    }
    means = {name: column[mask].mean() for name, column in columns.items()}
    metrics = {name: value.item() for name, value in output.metrics.items()}
    assert metrics == pytest.approx(means | {"loss": loss, "q_loss": loss}, rel=1e-10)
    assert output.num_samples == mask.sum()


class Moving:
    """A `Descent` that changes all weights on each step and keeps what it was given."""

    def __init__(self, algorithm: Pqn) -> None:
        self.algorithm, self.parts = algorithm, list[Sequences]()

    def step(self, samples: Sequences) -> Mapping[str, Tensor]:
        self.parts.append(samples)
        for parameter in self.algorithm.network.parameters():
            parameter.data += 0.1
        return {}

    def count(self, metrics: Mapping[str, Tensor]) -> None:
        raise AssertionError

    def add(self, tensor: Tensor) -> None:
        raise AssertionError


def test_each_epoch_learns_every_step_once_from_targets_of_the_weights_before() -> None:
    algorithm, (batch, _) = build_pqn(2, epochs=3, minibatches=4), sequences(2)
    samples = samples_of(algorithm, batch)
    expected = sorted(samples.targets[TARGET][batch.mask].tolist())
    moving = Moving(algorithm)
    made: Any = algorithm.samples.make(batch)
    algorithm.update(made, moving)
    assert len(moving.parts) == 12
    orders = []
    for parts in (moving.parts[:4], moving.parts[4:8], moving.parts[8:]):
        assert all(part.mask.all() for part in parts)
        orders.append([target for part in parts for target in part.targets[TARGET].flatten().tolist()])
        assert sorted(orders[-1]) == expected
    assert orders[0] != orders[1] != orders[2]


# how it explores


def test_epsilon_falls_linearly_in_a_fraction_of_the_run_and_is_another_in_evaluations() -> None:
    shares = {"epsilon": 0.9, "epsilon_final": 0.1, "epsilon_fraction": 0.5, "evaluation_epsilon": 0.25}
    for schedule_steps, end in ((0, 500.0), (2000, 1000.0)):
        agent = make_agent(dataclasses.replace(run_of("pqn", **shares), schedule_steps=schedule_steps), spec())
        for env_steps in (0, 1, 250, 499, 500, 501, 1000, 5000):
            expected = reference_q.falling_epsilon(0.9, 0.1, end, env_steps)
            for actor in (0, 1):
                assert agent.exploration(3, actor, env_steps).tolist() == pytest.approx([expected] * 3)
            assert agent.exploration(3, None, env_steps).tolist() == [0.25] * 3
    at_once = make_agent(run_of("pqn", **shares | {"epsilon_fraction": 0.0}), spec())
    assert at_once.exploration(2, 0).tolist() == pytest.approx([0.1] * 2)


def test_a_schedule_of_exploration_is_one_of_the_run() -> None:
    """So a run that is resumed with more steps keeps its length."""
    assert run_of("pqn").has_schedule
    for constant in ({"epsilon_fraction": 0.0}, {"epsilon": 0.05, "epsilon_final": 0.05}):
        assert not run_of("pqn", **constant).has_schedule
        assert run_of("pqn", optimizer__schedule="linear", **constant).has_schedule


def test_actors_explore_less_with_each_version_of_the_weights(tmp_path: Path) -> None:
    config = tiny_run(
        tmp_path,
        algorithm__name="pqn",
        algorithm__epsilon_fraction=0.5,
        algorithm__minibatches=1,
        learner__batch_size=8,
        logging__every_seconds=1e-6,
        stop__env_steps=800,
    )
    train(config)
    rows = [row for row in rows_of(tmp_path, "actor_0") if "exploration" in row]
    found = [row["exploration"] for row in rows]
    assert found == sorted(found, reverse=True)
    assert found[0] == 1
    assert found[-1] == pytest.approx(0.01)
    assert len(set(found)) > 5
    for row, epsilon in zip(rows, found, strict=True):  # the weights came at most two batches of 40 steps before
        least, most = (
            reference_q.falling_epsilon(1.0, 0.01, 400, max(0, row["env_steps"] - steps)) for steps in (0, 80)
        )
        assert least - 1e-6 <= epsilon <= most + 1e-6


def test_no_illegal_action_is_explored_taken_or_bootstrapped_from() -> None:
    algorithm, random = made("pqn", PARTS, 3, torch.float32, network__layer_norm=True), np.random.default_rng(0)
    parts = {name: made_up_obs(random, box, 2000) for name, box in PARTS.boxes.items()}
    legal = random.integers(0, 2, 2000)  # the only one
    parts["action_mask"] = np.eye(2, dtype=np.int8)[legal]
    obs = torch.from_numpy(pack(PARTS, parts, 2000))
    q_values = algorithm.network(obs).q_values
    assert q_values.argmax(-1).tolist() == legal.tolist()
    assert q_values.amax(-1).abs().max() < 100
    for exploration, greedy in ((1.0, False), (0.5, False), (0.0, False), (1.0, True)):
        chosen = act(algorithm, obs, exploration, greedy=greedy)
        assert chosen.action.tolist() == legal.tolist()
