"""CrossQ (arXiv 1902.05605, version 4), which is SAC with `batch_norm`, against a slow transcription."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from apex_acer.actor.policy import load_policy
from apex_acer.algorithms.sac.sac import Sac
from apex_acer.learner.trainer import Trainer
from apex_acer.manager.manager import train
from apex_acer.networks import weights
from apex_acer.networks.batch_norm import BatchRenorm, batch_renorms
from apex_acer.networks.critics import GaussianOutput
from apex_acer.tools.export import export_onnx
from tests.algorithms.continuous import Losses, Window, assert_learns, means, squashed, windows_of
from tests.algorithms.learning import NoisyBatch, gradients_of, run_of
from tests.algorithms.windows import DIM, build, random_windows, spec_for
from tests.continuous import continuous_run

WARM_UP, EPS, DECAY = 100_000, 1e-3, 0.99  # of the authors' program
SETTINGS: dict[str, dict[str, Any]] = {
    "as published": {"n_steps": 1},
    "three steps, wide critics": {"critic_hidden_sizes": (24, 20)},
    "one critic, three layers": {"num_critics": 1, "network__hidden_sizes": (9, 8, 7)},
}
Rows = list[Tensor]  # [F] each


def crossq(seed: int, *, is_warm: bool = False, **changes: Any) -> Any:
    """`Sac` with batch renormalisation, with different running moments in each layer."""
    algorithm = build("sac", seed, batch_norm=True, **changes)
    generator = torch.Generator().manual_seed(seed)
    for module in algorithm.modules.values():
        for norm in batch_renorms(module):
            norm.mean.normal_(std=0.5, generator=generator)
            norm.variance.uniform_(0.02, 2.0, generator=generator)  # of some the ratio is clipped
            norm.count.fill_(WARM_UP if is_warm else WARM_UP - 1)
    return algorithm


def normalised(rows: Rows, norm: BatchRenorm, critic: int | None, *, running: bool) -> Rows:
    """The rows, one feature after the other (Algorithm 1 of arXiv 1702.03275)."""
    parts = (norm.weight, norm.bias, norm.mean, norm.variance)
    weight, bias, running_mean, running_variance = ((part if critic is None else part[critic])[0] for part in parts)
    columns = []
    for feature, values in enumerate(torch.stack(rows).unbind(1)):
        mean, variance, ratio, offset = running_mean[feature], running_variance[feature], 1.0, 0.0
        running_std = (variance + EPS).sqrt()
        if not running:
            mean = values.sum() / len(values)
            variance = ((values - mean) ** 2).sum() / len(values)
            if norm.count >= WARM_UP:
                ratio = min(max(float((variance.detach() + EPS).sqrt() / running_std), 1 / 3), 3.0)
                offset = min(max(float((mean.detach() - running_mean[feature]) / running_std), -5.0), 5.0)
        scaled = (values - mean) / (variance + EPS).sqrt() * ratio + offset
        columns.append(weight[feature] * scaled + bias[feature])
    return [*torch.stack(columns, 1)]


def q_values(critics: Any, rows: Rows, *, running: bool) -> list[Rows]:
    """Q of each critic and row, of observations with actions."""
    found = []
    for critic in range(len(critics.weights[0])):
        x = rows
        layers = list(zip(critics.batch_norms, critics.weights, critics.biases, strict=True))
        for number, (norm, weight, bias) in enumerate(layers):
            x = [row @ weight[critic] + bias[critic, 0] for row in normalised(x, norm, critic, running=running)]
            x = x if number == len(layers) - 1 else [row.clamp(min=0) for row in x]
        found.append([row.squeeze() for row in x])
    return found


def outputs(network: Any, inputs: Rows, *, running: bool) -> list[Any]:
    """The policy's output for each observation."""
    x = inputs
    for number, norm in enumerate(network.hidden.norms):
        x = normalised(x, norm, None, running=running)
        if number < len(network.hidden.layers):
            linear = network.hidden.layers[number][0]
            x = [(linear.weight @ row + linear.bias).clamp(min=0) for row in x]
    heads = [network.head.weight @ row + network.head.bias for row in x]
    return [GaussianOutput(*(part.unsqueeze(0) for part in (h[:DIM].tanh(), h[:DIM], h[DIM:]))) for h in heads]


def joined(observations: Rows, actions: list[Tensor]) -> Rows:
    return [torch.cat([obs, action[0]]) for obs, action in zip(observations, actions, strict=True)]


def crossq_losses(algorithm: Sac, batch: NoisyBatch) -> Losses:
    """Figure 2 of the paper: one pass over both ends, targets from its second half."""
    log_alpha, windows = algorithm.temperature["log"], list(windows_of(algorithm, batch))
    alpha = log_alpha.exp().detach()
    now, later = ([batch.noise["action"][end, window.column] for window in windows] for end in (0, 1))
    first, after = [window.first[0] for window in windows], [window.after[0] for window in windows]
    next_actions, next_log_probs = sampled(outputs(algorithm.network, after, running=True), later)
    rows = joined(first, [window.action for window in windows]) + joined(after, next_actions)
    both_ends = q_values(algorithm.critics, rows, running=False)
    critics, errors = [], dict[int, Tensor]()
    for number, window in enumerate(windows):
        ends = [(q[number], q[len(windows) + number]) for q in both_ends]
        value = min(later_q for _, later_q in ends) - alpha * next_log_probs[number]
        loss, errors[window.column] = critics_loss(window, [q for q, _ in ends], value)
        critics.append(loss)
    actions, log_probs = sampled(outputs(algorithm.network, first, running=False), now)
    of_policy = q_values(algorithm.critics, joined(first, actions), running=True)
    policy = [alpha * log_prob - min(qs) for log_prob, *qs in zip(log_probs, *of_policy, strict=True)]
    temperature = [-log_alpha * (log_prob.detach() - DIM) for log_prob in log_probs]
    return means(batch, (critics, policy, temperature), errors)


def sampled(found: list[Any], noise: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    pairs = [squashed(output, epsilon) for output, epsilon in zip(found, noise, strict=True)]
    return [action for action, _ in pairs], [log_prob for _, log_prob in pairs]


def critics_loss(window: Window, taken: list[Tensor], value: Tensor) -> tuple[Any, Tensor]:
    target = (window.found.reward + window.found.discount * value).detach()
    errors = [target - q for q in taken]
    return window.weight * sum(0.5 * error**2 for error in errors), torch.stack(errors).abs().mean().detach()


@pytest.mark.parametrize("is_warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("changes", SETTINGS.values(), ids=SETTINGS)
def test_each_group_gets_the_gradient_of_its_own_loss(changes: dict[str, Any], is_warm: bool) -> None:
    algorithm = crossq(1, is_warm=is_warm, **changes)
    batch = random_windows(algorithm, 1)
    assert_learns(algorithm, batch, crossq_losses(algorithm, batch))


def moments(module: Any) -> list[Tensor]:
    return [moment.clone() for norm in batch_renorms(module) for moment in (norm.mean, norm.variance)]


def test_the_moments_move_after_the_step_and_only_those_of_who_took_it() -> None:
    algorithm = crossq(2, n_steps=1)
    batch = random_windows(algorithm, 2)
    before = {name: moments(module) for name, module in algorithm.modules.items()}
    gradients_of(algorithm, batch)
    for name, module in algorithm.modules.items():
        assert all(map(torch.equal, moments(module), before[name]))  # the step may be skipped
    algorithm.after_step(1, {"critics"})
    assert all(map(torch.equal, moments(algorithm.network), before["network"]))
    windows = list(windows_of(algorithm, batch))
    later = [batch.noise["action"][1, window.column] for window in windows]
    next_actions, _ = sampled(outputs(algorithm.network, [window.after[0] for window in windows], running=True), later)
    taken = joined([window.first[0] for window in windows], [window.action for window in windows])
    rows = torch.stack(taken + joined([window.after[0] for window in windows], next_actions))
    for critic in range(2):
        expected = DECAY * before["critics"][0][critic, 0] + (1 - DECAY) * rows.mean(0)
        torch.testing.assert_close(algorithm.critics.batch_norms[0].mean[critic, 0], expected)
    algorithm.after_step(1, {"network", "critics", "temperature"})
    first = torch.stack([window.first[0] for window in windows])
    expected = DECAY * before["network"][1][0] + (1 - DECAY) * first.var(0, correction=0)
    torch.testing.assert_close(algorithm.network.hidden.norms[0].variance[0], expected)


def test_the_policy_and_the_temperature_are_delayed_and_there_are_no_target_critics() -> None:
    algorithm = crossq(3, policy_every=3)
    every = {name: group.every for name, group in algorithm.groups().items()}
    assert every == {"network": 3, "critics": 1, "temperature": 3}
    assert algorithm.modules.keys() == {"network", "critics", "temperature"}
    assert {group.every for group in build("sac", 3).groups().values()} == {1}


def test_the_layers_of_critics_may_be_wider_than_the_policy_s() -> None:
    for batch_norm in (False, True):
        algorithm = build("sac", 4, batch_norm=batch_norm, critic_hidden_sizes=(24, 20))
        assert [tuple(weight.shape[1:]) for weight in algorithm.critics.weights[1:]] == [(24, 20), (20, 1)]
        assert algorithm.network.head.weight.shape == (2 * DIM, 8)


def test_a_skipped_update_leaves_the_statistics_and_actors_see_the_learner_s_policy() -> None:
    config = run_of("sac", batch_norm=True, n_steps=1)
    trainer = Trainer(config, spec_for("sac"))
    batch = random_windows(trainer.algorithm, 5)
    batch = dataclasses.replace(batch, **{name: getattr(batch, name).float() for name in ("obs", "action", "reward")})
    batch = dataclasses.replace(batch, importance=batch.importance.float())
    before = moments(trainer.algorithm.network)
    broken = dataclasses.replace(batch, reward=torch.full_like(batch.reward, torch.nan))
    assert trainer.update(broken, 0, 0).num_skipped == 1
    assert all(map(torch.equal, moments(trainer.algorithm.network), before))
    assert trainer.update(batch, 0, 0).num_skipped == 0
    assert not torch.equal(moments(trainer.algorithm.network)[0], before[0])
    actor = Sac.agent_class(config, spec_for("sac")).network
    weights.load_tensors(actor, "network", weights.unpack(trainer.policy(1)))
    obs = batch.obs[:2].movedim(0, 1).flatten(1)
    for one, other in zip(actor(obs), trainer.algorithm.network(obs), strict=True):
        assert torch.equal(one, other)


def test_the_weights_file_and_the_exported_policy_have_the_statistics(tmp_path: Path) -> None:
    result = train(continuous_run(tmp_path / "run", "crossq", stop__env_steps=400))
    tensors, _ = weights.read(result.weights)
    for part in ("network.hidden.norms", "critics.batch_norms"):
        assert tensors[f"{part}.0.count"] == (result.updates if "critics" in part else -(-result.updates // 3))
        assert tensors[f"{part}.0.mean"].any()
    policy = load_policy(result.weights)
    obs = np.random.default_rng(0).uniform(-1, 1, (5, *policy.spec.given_shape)).astype(np.float32)
    acted = policy.act(obs)
    assert export_onnx(policy, tmp_path / "policy.onnx").difference < 1e-4
    policy.network.get_buffer("hidden.norms.0.mean").add_(0.5)
    assert not np.allclose(policy.act(obs), acted)
