"""The losses of `Sac` and `Ddpg` written out slowly: one window, one critic, one dimension at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from apex_acer.algorithms.ddpg.ddpg import Ddpg
from apex_acer.algorithms.sac.sac import Sac
from apex_acer.networks.frames import stack_planes
from tests.algorithms.learning import NoisyBatch, gradients, gradients_of
from tests.algorithms.windows import COLUMNS, DIM, STACK
from tests.functional import reference_q


class Window(NamedTuple):
    """What is learned from one sample."""

    first: Tensor  # [1, *obs]
    after: Tensor  # [1, *obs]
    action: Tensor  # [1, d]
    found: reference_q.Return
    weight: float  # in the critics' loss, before the mean
    column: int


class Losses(NamedTuple):
    """Means over samples, and `[B]` of each sample, 0 if masked."""

    critics: Any
    network: Any
    temperature: Any
    td_error: Tensor


def windows_of(algorithm: Sac | Ddpg, batch: NoisyBatch) -> Iterator[Window]:
    """The windows that are learned from; what follows a window's end plays no part in them."""
    given = algorithm.settings
    for b in range(COLUMNS):
        if not batch.mask[0, b]:
            continue
        terminated = batch.terminated[:, b]
        pairs = zip(batch.reward[:, b], terminated, strict=True)
        rewards = [reference_q.shape_reward(x, ended, given.reward_clip, given.terminal_penalty) for x, ended in pairs]
        found = reference_q.n_step(rewards, terminated, batch.truncated[:, b], batch.mask[:, b], given.gamma)
        obs = stack_planes(batch.obs[:, [b]], batch.episode_step[:, [b]], STACK)
        both = [obs[0], obs[found.length]]
        if given.image_shift:
            both = [slow_shift(image, *batch.noise["shift"][end, b].tolist()) for end, image in enumerate(both)]
        first, after = map(algorithm.network.prepare, both)
        yield Window(first, after, batch.action[0, [b]], found, float(batch.importance[b]), b)


def slow_shift(images: Tensor, down: int, right: int) -> Tensor:
    """`images` moved by so many pixels, one pixel after the other."""
    moved, (height, width) = torch.empty_like(images), images.shape[-2:]
    for y in range(height):
        for x in range(width):
            row, column = min(max(y - down, 0), height - 1), min(max(x - right, 0), width - 1)
            moved[..., y, x] = images[..., row, column]
    return moved


def q_values(critics: Any, inputs: Tensor, action: Tensor) -> list[Tensor]:
    """Q of each critic."""
    found = []
    for critic in range(len(critics.weights[0])):
        x = torch.cat([critics.torso(inputs), action], -1)  # of images the torso is the bottleneck
        layers = list(zip(critics.weights, critics.biases, strict=True))
        for number, (weight, bias) in enumerate(layers):
            x = x @ weight[critic] + bias[critic]
            x = x if number == len(layers) - 1 else x.clamp(min=0)
        found.append(x.squeeze())
    return found


def encoded(network: Any, inputs: Tensor) -> Tensor:
    """What critics see: of images an encoder's features."""
    found: Tensor = network.torso(inputs) if network.trunk else inputs
    return found


def squashed(output: Any, noise: Tensor) -> tuple[Tensor, Tensor]:
    """The action and its log-density."""
    action, log_prob = [], torch.zeros((), dtype=torch.float64)
    for mean, log_std, epsilon in zip(output.mean[0], output.log_std[0], noise, strict=True):
        pre_tanh = mean + log_std.exp() * epsilon
        density = -0.5 * ((pre_tanh - mean) / log_std.exp()) ** 2 - log_std - 0.5 * math.log(2 * math.pi)
        action.append(torch.tanh(pre_tanh))
        log_prob = log_prob + density + 2 * torch.log(torch.cosh(pre_tanh))  # the slope of tanh is 1 / cosh²
    return torch.stack(action).unsqueeze(0), log_prob


def critic_error(algorithm: Sac | Ddpg, window: Window, value: Tensor) -> tuple[Any, Tensor]:
    """The critics' weighted loss and their mean |target − Q|, given the value after the window."""
    target = (window.found.reward + window.found.discount * value).detach()
    first = encoded(algorithm.network, window.first)
    errors = [target - q for q in q_values(algorithm.critics, first, window.action)]
    loss = window.weight * sum(0.5 * error**2 for error in errors)
    return loss, torch.stack(errors).abs().mean().detach()


def means(batch: NoisyBatch, losses: tuple[list[Any], ...], td_error: dict[int, Tensor]) -> Losses:
    count = max(1, int(batch.mask[0].sum()))
    errors = torch.zeros(COLUMNS, dtype=torch.float64)
    for column, error in td_error.items():
        errors[column] = error
    critics, network, temperature = (sum(loss) / count for loss in losses)
    return Losses(critics, network, temperature, errors)


def sac_losses(algorithm: Sac, batch: NoisyBatch) -> Losses:
    """Equations 5 to 7 and 18 of arXiv 1812.05905."""
    log_alpha = algorithm.temperature["log"]
    alpha = log_alpha.exp().detach()
    losses: tuple[list[Any], ...] = ([], [], [])
    errors = {}
    for window in windows_of(algorithm, batch):
        now, later = batch.noise["action"][:, window.column]
        action, log_prob = squashed(algorithm.network.output(window.after), later)
        after = encoded(algorithm.network, window.after)
        value = min(q_values(algorithm.target_critics, after, action)) - alpha * log_prob
        critics, errors[window.column] = critic_error(algorithm, window, value)
        action, log_prob = squashed(algorithm.network.output(window.first), now)
        network = alpha * log_prob - min(q_values(algorithm.critics, encoded(algorithm.network, window.first), action))
        temperature = -log_alpha * (log_prob.detach() - DIM)
        for terms, term in zip(losses, (critics, network, temperature), strict=True):
            terms.append(term)
    return means(batch, losses, errors)


def ddpg_losses(algorithm: Ddpg, batch: NoisyBatch) -> Losses:
    """Algorithm 1 of arXiv 1802.09477; with one critic and no noise that of arXiv 1509.02971."""
    clip = algorithm.settings.target_noise_clip
    losses: tuple[list[Any], ...] = ([], [], [torch.zeros(())])
    errors = {}
    for window in windows_of(algorithm, batch):
        action = algorithm.target_network.output(window.after).action
        if "target" in batch.noise:
            smoothing = batch.noise["target"][0, window.column]
            pairs = zip(action[0].tolist(), smoothing.tolist(), strict=True)
            smoothed = [min(max(a + min(max(x, -clip), clip), -1.0), 1.0) for a, x in pairs]
            action = torch.tensor([smoothed], dtype=torch.float64)
        after = encoded(algorithm.target_network, window.after)
        value = min(q_values(algorithm.target_critics, after, action))
        critics, errors[window.column] = critic_error(algorithm, window, value)
        best = algorithm.network.output(window.first).action
        losses[0].append(critics)
        losses[1].append(-q_values(algorithm.critics, encoded(algorithm.network, window.first), best)[0])
    return means(batch, losses, errors)


def assert_learns(algorithm: Sac | Ddpg, batch: NoisyBatch, expected: Losses) -> dict[str, Tensor]:
    """Each group gets the gradient of its own loss, and metrics and priorities are those expected; the metrics."""
    output, found = gradients_of(algorithm, batch)
    torch.testing.assert_close(output.loss, expected.critics + expected.network + expected.temperature)
    torch.testing.assert_close(output.priorities, expected.td_error)
    assert output.num_samples == batch.mask[0].sum()
    assert found.keys() == algorithm.groups().keys()
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, gradients(getattr(expected, name), algorithm)[name], msg=name)
        assert gradient.abs().max() > 1e-3
    metrics = dict(output.metrics)
    torch.testing.assert_close(metrics["q_loss"], expected.critics.detach())
    torch.testing.assert_close(metrics["policy_loss"], expected.network.detach())
    torch.testing.assert_close(metrics["td_error"], expected.td_error[batch.mask[0]].mean())
    return metrics
