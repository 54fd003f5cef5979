"""Ape-X DQN's math (arXiv 1803.00933) written out slowly in float64, one window, one step, one action at a time.

An episode's end is told apart from a window's: `terminated` leaves no value behind, `truncated` that of the observation
after it, and a step that is masked belongs to no episode, or to the next one.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from apex_acer.protocol.specification import Array

EPSILON = 1e-3  # of the rescaling


class Return(NamedTuple):
    reward: float
    discount: float
    length: int


class Loss(NamedTuple):
    total: float
    d_q_taken: Array  # [B]
    q_taken: Array  # [B]
    target: Array  # [B]
    td_error: Array  # [B], 0 where masked


def dueling(value: float, advantages: Any) -> list[float]:
    """Of one state."""
    mean = sum(float(x) for x in advantages) / len(advantages)
    return [float(value) + float(x) - mean for x in advantages]


def shape_reward(reward: float, terminated: bool, clip: float, penalty: float) -> float:
    shaped = float(reward)
    if clip > 0:
        shaped = min(max(shaped, -clip), clip)
    if terminated:
        shaped -= penalty
    return shaped


def n_step(reward: Any, terminated: Any, truncated: Any, mask: Any, gamma: float) -> Return:
    """Of one window: lists as long as it."""
    total, discount = 0.0, 1.0
    for step in range(len(reward)):
        if not mask[step]:
            return Return(total, discount, step)
        total += discount * float(reward[step])
        discount *= gamma
        if terminated[step]:
            return Return(total, 0.0, step + 1)
        if truncated[step]:
            return Return(total, discount, step + 1)
    return Return(total, discount, len(reward))


def bootstrap(q_values: Any, target_q_values: Any) -> float:
    """Of one state: `target_q_values` of the first action with the highest of `q_values`."""
    best = 0
    for action in range(len(q_values)):
        if q_values[action] > q_values[best]:
            best = action
    return float(target_q_values[best])


def rescale(x: float) -> float:
    return math.copysign(math.sqrt(abs(x) + 1) - 1, x) + EPSILON * x


def unscale(y: float) -> float:
    """By bisection."""
    low, high = 0.0, 1.0
    while rescale(high) < abs(y):
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if rescale(middle) < abs(y) else (low, middle)
    return math.copysign(low, y)


def huber(error: float) -> float:
    return 0.5 * error**2 if abs(error) <= 1 else abs(error) - 0.5


def targets_of(
    batch: dict[str, Any],
    column: int,
    q_values: Any,
    target_q_values: Any,
    *,
    n_steps: int,
    gamma: float,
    double: bool,
    value_rescaling: bool,
    reward_clip: float,
    terminal_penalty: float,
) -> list[float]:
    """The target of each step of a column of `batch`, arrays by the names of a `Batch`; values are `[T + 1, B, A]`."""
    terminated, truncated, mask = (batch[name][:, column] for name in ("terminated", "truncated", "mask"))
    pairs = zip(batch["reward"][:, column], terminated, strict=True)
    reward = [shape_reward(paid, ended, reward_clip, terminal_penalty) for paid, ended in pairs]
    targets = []
    for step in range(len(reward)):
        window = slice(step, step + n_steps)
        found = n_step(reward[window], terminated[window], truncated[window], mask[window], gamma)
        judge = target_q_values[step + found.length, column]
        value = bootstrap(q_values[step + found.length, column] if double else judge, judge)
        if value_rescaling:
            targets.append(rescale(found.reward + found.discount * unscale(value)))
        else:
            targets.append(found.reward + found.discount * value)
    return targets


def loss(windows: dict[str, Any], q_values: Any, target_q_values: Any, **settings: Any) -> Loss:
    """The loss of the first steps of `windows`; settings are those of `targets_of`."""
    length, num = windows["mask"].shape
    count = max(1, int(windows["mask"][0].sum()))
    total, columns = 0.0, []
    for b in range(num):
        target = targets_of(windows, b, q_values, target_q_values, n_steps=length, **settings)[0]
        q_taken = float(q_values[0, b, windows["action"][0, b]])
        error = target - q_taken if windows["mask"][0, b] else 0.0
        weight = float(windows["importance"][b]) / count
        total += weight * huber(error)
        columns.append((-weight * min(max(error, -1.0), 1.0), q_taken, target, abs(error)))
    return Loss(total, *np.array(columns).T)


def log_softmax(values: Any, temperature: float) -> list[float]:
    """Of one state."""
    highest = max(float(value) for value in values)
    total = sum(math.exp((float(value) - highest) / temperature) for value in values)
    return [(float(value) - highest) / temperature - math.log(total) for value in values]


class QuantileLoss(NamedTuple):
    total: float
    d_quantiles: Array  # [B, K], of the actions taken
    td_error: Array  # [B], of means, 0 where masked


def quantile_loss(
    windows: dict[str, Any],
    quantiles: Any,
    target_quantiles: Any,
    *,
    gamma: float,
    double: bool,
    munchausen: float,
    reward_clip: float,
    terminal_penalty: float,
) -> QuantileLoss:
    """The loss of the first steps of `windows` (arXiv 1710.10044, 2007.14430); quantiles are `[T + 1, B, A, K]`.

    One quantile is the mean, whose loss is Huber's.
    """
    _length, num = windows["mask"].shape
    levels, temperature = quantiles.shape[-1], 0.03
    count, total, slopes, errors = max(1, int(windows["mask"][0].sum())), 0.0, [], []
    for b in range(num):
        terminated, truncated, mask = (windows[name][:, b] for name in ("terminated", "truncated", "mask"))
        pairs = zip(windows["reward"][:, b], terminated, strict=True)
        found = n_step(
            [shape_reward(paid, ended, reward_clip, terminal_penalty) for paid, ended in pairs],
            terminated,
            truncated,
            mask,
            gamma,
        )
        reward, judge, action = found.reward, target_quantiles[found.length, b], windows["action"][0, b]
        means = judge.mean(-1)
        if munchausen:
            log_prob = log_softmax(target_quantiles[0, b].mean(-1), temperature)[action]
            reward += munchausen * max(-1.0, temperature * log_prob)
            log_probs = log_softmax(means, temperature)
            ahead = [
                sum(math.exp(log) * (float(judge[a, j]) - temperature * log) for a, log in enumerate(log_probs))
                for j in range(levels)
            ]
        else:
            best = int(np.argmax(quantiles[found.length, b].mean(-1) if double else means))
            ahead = [float(value) for value in judge[best]]
        target, own = [reward + found.discount * value for value in ahead], quantiles[0, b, action]
        weight = float(windows["importance"][b]) / count if mask[0] else 0.0
        slope = [0.0] * levels
        for i in range(levels):
            for j in range(levels):
                error = target[j] - float(own[i])
                share = 1.0 if levels == 1 else abs((i + 0.5) / levels - (error < 0)) / levels
                total += weight * share * huber(error)
                slope[i] -= weight * share * min(max(error, -1.0), 1.0)
        slopes.append(slope)
        errors.append(abs(sum(target) / levels - float(own.mean())) if mask[0] else 0.0)
    return QuantileLoss(total, np.array(slopes), np.array(errors))


def q_lambda_targets(batch: dict[str, Array], q_values: Array, gamma: float, q_lambda: float) -> Array:
    """R_t = r_t + γ (λ R_{t+1} + (1 − λ) max Q_{t+1}) (arXiv 2407.04811), `[T, B]`, of `q_values` `[T+1, B, A]`."""
    length, columns = batch["reward"].shape
    targets = np.zeros((length, columns))
    for b in range(columns):
        for t in reversed(range(length)):
            best = max(float(q) for q in q_values[t + 1, b])
            known = t + 1 < length and batch["mask"][t + 1, b] and not batch["truncated"][t, b]
            ahead = q_lambda * float(targets[t + 1, b]) + (1 - q_lambda) * best if known else best
            if batch["terminated"][t, b]:
                ahead = 0.0
            targets[t, b] = float(batch["reward"][t, b]) + gamma * ahead
            if not batch["mask"][t, b]:
                targets[t, b] = max(float(q) for q in q_values[t, b])
    return targets


def falling_epsilon(first: float, last: float, steps: float, env_steps: int) -> float:
    """From `first` to `last` in `steps` environment steps."""
    return last if env_steps >= steps else first + (last - first) * env_steps / steps


def epsilon(base: float, alpha: float, index: int, count: int) -> float:
    """Of environment `index` of `count`."""
    return base if count == 1 else base ** (1 + index / (count - 1) * alpha)


class SequenceLoss(NamedTuple):
    total: float
    d_q_taken: Array  # [T, B]
    target: Array  # [T, B]
    priorities: Array  # [B]


def sequence_priority(errors: Any, mask: Any) -> float:
    """0.9 · max + 0.1 · mean of |error| (Kapturowski et al. 2019, section 2.3); 0 if all steps are masked."""
    known = [abs(float(error)) for error, counts in zip(errors, mask, strict=True) if counts]
    return 0.9 * max(known) + 0.1 * sum(known) / len(known) if known else 0.0


def sequence_loss(batch: dict[str, Any], q_values: Any, target_q_values: Any, **settings: Any) -> SequenceLoss:
    """The loss of all steps of sequences; settings are those of `targets_of`."""
    length, num = batch["mask"].shape
    count = max(1, int(batch["mask"].sum()))
    total, slopes, targets, priorities = 0.0, np.zeros((length, num)), np.zeros((length, num)), []
    for b in range(num):
        targets[:, b] = targets_of(batch, b, q_values, target_q_values, **settings)
        errors = [targets[t, b] - float(q_values[t, b, batch["action"][t, b]]) for t in range(length)]
        weight = float(batch["importance"][b]) / count
        for t in np.flatnonzero(batch["mask"][:, b]):
            total += weight * huber(errors[t])
            slopes[t, b] = -weight * min(max(errors[t], -1.0), 1.0)
        priorities.append(sequence_priority(errors, batch["mask"][:, b]))
    return SequenceLoss(total, slopes, targets, np.array(priorities))
