"""`Sac` and `Ddpg` as after some training, and their losses written out slowly: one window, one critic at a time."""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import torch

from apex_acer.algorithms.ddpg.ddpg import Ddpg
from apex_acer.algorithms.ddpg.settings import DdpgConfig
from apex_acer.algorithms.sac.sac import Sac
from apex_acer.algorithms.sac.settings import SacConfig
from apex_acer.config import ActorsConfig, NetworkConfig, ReplayConfig, RunConfig
from apex_acer.networks.frames import stack_planes
from apex_acer.protocol.actions import Box
from apex_acer.protocol.specification import EnvironmentSpec
from tests.algorithms.learning import NoisyBatch
from tests.algorithms.segments import CPU, PLANE
from tests.algorithms.windows import COLUMNS, STEPS, random_windows, randomise
from tests.functional import reference_q

DIM = 2
NETWORK = NetworkConfig(hidden_sizes=(16, 8))


class Window(NamedTuple):
    """What is learned from one sample."""

    first: torch.Tensor  # [1, *obs]
    after: torch.Tensor  # [1, *obs]
    action: torch.Tensor  # [1, d]
    found: reference_q.Return
    weight: float  # in the critics' loss, before the mean
    column: int


def spec(stack=1, dim=DIM):
    """What the algorithm is told of an environment of vectors."""
    actions = Box((-1.0,) * dim, (1.0,) * dim, (dim,), "float32")
    return EnvironmentSpec((PLANE,), "float32", actions, stack, False, 1, (PLANE,))


def config(kind, *, network=NETWORK, sampling="uniform", actors=1, **settings):
    """A run of the algorithm `kind` with these settings of it."""
    settings_class = {Sac: SacConfig, Ddpg: DdpgConfig}[kind]
    return RunConfig(
        network=network,
        actors=ActorsConfig(count=actors),
        replay=ReplayConfig(sampling=sampling),
        algorithm=settings_class(**{"unroll_length": 8, "n_steps": STEPS, "gamma": 0.9} | settings),
    )


def build(kind, seed=0, stack=1, dtype=torch.float64, **given):
    """The algorithm with different weights in each of its modules."""
    torch.manual_seed(seed)
    algorithm = kind.make(config(kind, **given), spec(stack), CPU)
    for number, module in enumerate(algorithm.modules.values()):
        randomise(module.to(dtype), 10 * seed + number)
    return algorithm


def windows(algorithm, seed=0, stack=1, steps=STEPS):
    """A batch with every kind of ending, and the noise that the loss needs."""
    batch = random_windows(seed, stack, steps)
    generator = torch.Generator().manual_seed(seed)
    action = 2 * torch.rand(steps, COLUMNS, DIM, generator=generator, dtype=torch.float64) - 1
    torch.manual_seed(seed)
    batch = dataclasses.replace(batch, action=action)
    noise = {n: x.double() for n, x in algorithm.noise(algorithm.samples.make(batch)).items()}
    return NoisyBatch(**vars(batch), noise=noise)


def samples(algorithm, batch, stack):
    """The windows that are learned from; what follows a window's end plays no part in them."""
    given = algorithm.settings
    for b in range(COLUMNS):
        if not batch.mask[0, b]:
            continue
        terminated = batch.terminated[:, b]
        pairs = zip(batch.reward[:, b], terminated, strict=True)
        rewards = [reference_q.shape_reward(x, ended, given.reward_clip, given.terminal_penalty) for x, ended in pairs]
        found = reference_q.n_step(rewards, terminated, batch.truncated[:, b], batch.mask[:, b], given.gamma)
        obs = stack_planes(batch.obs[:, [b]], batch.episode_step[:, [b]], stack)
        first, after = (algorithm.network.prepare(obs[t]) for t in (0, found.length))
        yield Window(first, after, batch.action[0, [b]], found, float(batch.importance[b]), b)


def q_values(critics, inputs, action):
    """Q of each critic, one layer and one critic at a time."""
    found = []
    for critic in range(len(critics.weights[0])):
        x = torch.cat([critics.torso(inputs), action], -1)
        layers = list(zip(critics.weights, critics.biases, strict=True))
        for number, (weight, bias) in enumerate(layers):
            x = x @ weight[critic] + bias[critic]
            x = x if number == len(layers) - 1 else x.clamp(min=0)
        found.append(x.squeeze())
    return found


def squashed(output, noise):
    """The action and its log-density, one dimension at a time."""
    action, log_prob = [], torch.zeros((), dtype=torch.float64)
    for mean, log_std, epsilon in zip(output.mean[0], output.log_std[0], noise, strict=True):
        pre_tanh = mean + log_std.exp() * epsilon
        density = -0.5 * ((pre_tanh - mean) / log_std.exp()) ** 2 - log_std - 0.5 * math.log(2 * math.pi)
        action.append(torch.tanh(pre_tanh))
        log_prob = log_prob + density + 2 * torch.log(torch.cosh(pre_tanh))  # the slope of tanh is 1 / cosh²
    return torch.stack(action).unsqueeze(0), log_prob


class Losses(NamedTuple):
    """Means over samples, and `[B]` of each sample, 0 if masked."""

    critics: torch.Tensor
    network: torch.Tensor
    temperature: torch.Tensor
    td_error: torch.Tensor


def means(algorithm, batch, losses, td_error):
    count = max(1, int(batch.mask[0].sum()))
    errors = torch.zeros(COLUMNS, dtype=torch.float64)
    for column, error in td_error.items():
        errors[column] = error
    return Losses(*(sum(loss) / count for loss in losses), errors)


def sac_losses(algorithm, batch, stack=1):
    """Equations 5 to 7 and 18 of arXiv 1812.05905."""
    alpha = algorithm.temperature["log"].exp().detach()
    critics, network, temperature, errors = [], [], [], {}
    for window in samples(algorithm, batch, stack):
        now, later = batch.noise["action"][:, window.column]
        action, log_prob = squashed(algorithm.network.output(window.after), later)
        value = min(q_values(algorithm.target_critics, window.after, action)) - alpha * log_prob
        target = (window.found.reward + window.found.discount * value).detach()
        found = [target - q for q in q_values(algorithm.critics, window.first, window.action)]
        critics.append(window.weight * sum(0.5 * error**2 for error in found))
        errors[window.column] = sum(abs(error.detach()) for error in found) / len(found)
        action, log_prob = squashed(algorithm.network.output(window.first), now)
        network.append(alpha * log_prob - min(q_values(algorithm.critics, window.first, action)))
        temperature.append(-algorithm.temperature["log"] * (log_prob.detach() - DIM))
    return means(algorithm, batch, (critics, network, temperature), errors)


def ddpg_losses(algorithm, batch, stack=1):
    """Algorithm 1 of arXiv 1802.09477; with one critic and no noise that of arXiv 1509.02971."""
    clip, critics, network, errors = algorithm.settings.target_noise_clip, [], [], {}
    for window in samples(algorithm, batch, stack):
        action = algorithm.target_network.output(window.after).action[0]
        if "target" in batch.noise:
            smoothing = batch.noise["target"][0, window.column]
            pairs = zip(action, smoothing, strict=True)
            action = torch.stack([min(max(a + min(max(x, -clip), clip), -1.0), 1.0) * torch.ones(()) for a, x in pairs])
        value = min(q_values(algorithm.target_critics, window.after, action.double().unsqueeze(0)))
        target = (window.found.reward + window.found.discount * value).detach()
        found = [target - q for q in q_values(algorithm.critics, window.first, window.action)]
        critics.append(window.weight * sum(0.5 * error**2 for error in found))
        errors[window.column] = sum(abs(error.detach()) for error in found) / len(found)
        network.append(-q_values(algorithm.critics, window.first, algorithm.network.output(window.first).action)[0])
    return means(algorithm, batch, (critics, network, [torch.zeros(())]), errors)


def gradients(loss, algorithm):
    """The gradient of each group of the algorithm's parameters, in one vector by name; zeros if it has none."""
    found = {}
    for name, group in algorithm.groups().items():
        parts = torch.autograd.grad(
            loss, group.parameters, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        found[name] = torch.cat([part.flatten() for part in parts])
    return found
