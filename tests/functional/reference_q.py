"""Ape-X DQN's math (arXiv 1803.00933) written out slowly in float64, one window, one step, one action at a time.

An episode's end is told apart from a window's: `terminated` leaves no value behind, `truncated` that of the observation
after it, and a step that is masked belongs to no episode, or to the next one.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

EPSILON = 1e-3  # of the rescaling


class Return(NamedTuple):
    reward: float
    discount: float
    length: int


class Loss(NamedTuple):
    total: float
    d_q_taken: np.ndarray  # [B]
    q_taken: np.ndarray  # [B]
    target: np.ndarray  # [B]
    td_error: np.ndarray  # [B], 0 where masked


def dueling(value, advantages):
    """Of one state."""
    mean = sum(float(x) for x in advantages) / len(advantages)
    return [float(value) + float(x) - mean for x in advantages]


def shape_reward(reward, terminated, clip, penalty):
    shaped = float(reward)
    if clip > 0:
        shaped = min(max(shaped, -clip), clip)
    if terminated:
        shaped -= penalty
    return shaped


def n_step(reward, terminated, truncated, mask, gamma):
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


def bootstrap(q_values, target_q_values):
    """Of one state: `target_q_values` of the first action with the highest of `q_values`."""
    best = 0
    for action in range(len(q_values)):
        if q_values[action] > q_values[best]:
            best = action
    return float(target_q_values[best])


def rescale(x):
    return math.copysign(math.sqrt(abs(x) + 1) - 1, x) + EPSILON * x


def unscale(y):
    """By bisection."""
    low, high = 0.0, 1.0
    while rescale(high) < abs(y):
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if rescale(middle) < abs(y) else (low, middle)
    return math.copysign(low, y)


def huber(error):
    return 0.5 * error**2 if abs(error) <= 1 else abs(error) - 0.5


def loss(windows, q_first, q_after, target_after, *, gamma, double, value_rescaling, reward_clip, terminal_penalty):
    """The loss of `windows`, arrays by the names of a `Batch`.

    `q_after` and `target_after` are `[n + 1, B, A]`, by steps ahead.
    """
    num = windows["mask"].shape[1]
    count = max(1, int(windows["mask"][0].sum()))
    total, columns = 0.0, []
    for b in range(num):
        terminated = windows["terminated"][:, b]
        pairs = zip(windows["reward"][:, b], terminated, strict=True)
        rewards = [shape_reward(reward, ended, reward_clip, terminal_penalty) for reward, ended in pairs]
        found = n_step(rewards, terminated, windows["truncated"][:, b], windows["mask"][:, b], gamma)
        judge = target_after[found.length, b]
        value = bootstrap(q_after[found.length, b] if double else judge, judge)
        if value_rescaling:
            target = rescale(found.reward + found.discount * unscale(value))
        else:
            target = found.reward + found.discount * value
        q_taken = float(q_first[b, windows["action"][0, b]])
        error = target - q_taken if windows["mask"][0, b] else 0.0
        weight = float(windows["importance"][b]) / count
        total += weight * huber(error)
        columns.append((-weight * min(max(error, -1.0), 1.0), q_taken, target, abs(error)))
    return Loss(total, *np.array(columns).T)


def epsilon(base, alpha, index, count):
    """Of environment `index` of `count`."""
    return base if count == 1 else base ** (1 + index / (count - 1) * alpha)


class SequenceLoss(NamedTuple):
    total: float
    d_q_taken: np.ndarray  # [T, B]
    target: np.ndarray  # [T, B]
    priorities: np.ndarray  # [B]


def sequence_target(sequence, values, n_steps, gamma, *, value_rescaling):
    """The target of each step of one sequence; `sequence` are lists as long as it, `values` has one more."""
    reward, terminated, truncated, mask = sequence
    targets = []
    for step in range(len(reward)):
        window = (part[step : step + n_steps] for part in (reward, terminated, truncated, mask))
        found = n_step(*window, gamma)
        value = float(values[step + found.length])
        if value_rescaling:
            targets.append(rescale(found.reward + found.discount * unscale(value)))
        else:
            targets.append(found.reward + found.discount * value)
    return targets


def sequence_priority(errors, mask):
    """0.9 · max + 0.1 · mean of |error| (Kapturowski et al. 2019, section 2.3); 0 if all steps are masked."""
    known = [abs(float(error)) for error, counts in zip(errors, mask, strict=True) if counts]
    return 0.9 * max(known) + 0.1 * sum(known) / len(known) if known else 0.0


def sequence_loss(
    batch, q_values, target_q_values, *, n_steps, gamma, double, value_rescaling, reward_clip, terminal_penalty
):
    """Of sequences, arrays by the names of a `Batch`; both networks' values are `[T + 1, B, A]`."""
    length, num = batch["mask"].shape
    count = max(1, int(batch["mask"].sum()))
    total, slopes, targets, priorities = 0.0, np.zeros((length, num)), np.zeros((length, num)), []
    for b in range(num):
        terminated, mask = batch["terminated"][:, b], batch["mask"][:, b]
        pairs = zip(batch["reward"][:, b], terminated, strict=True)
        rewards = [shape_reward(reward, ended, reward_clip, terminal_penalty) for reward, ended in pairs]
        judges = target_q_values[:, b]
        values = [bootstrap(q if double else judge, judge) for q, judge in zip(q_values[:, b], judges, strict=True)]
        sequence = rewards, terminated, batch["truncated"][:, b], mask
        targets[:, b] = sequence_target(sequence, values, n_steps, gamma, value_rescaling=value_rescaling)
        errors = [targets[t, b] - float(q_values[t, b, batch["action"][t, b]]) for t in range(length)]
        weight = float(batch["importance"][b]) / count
        for t in range(length):
            if mask[t]:
                total += weight * huber(errors[t])
                slopes[t, b] = -weight * min(max(errors[t], -1.0), 1.0)
        priorities.append(sequence_priority(errors, mask))
    return SequenceLoss(total, slopes, targets, np.array(priorities))
