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
