"""Unrolls in which no two numbers are alike, for what stores them."""

from __future__ import annotations

import numpy as np
import torch

from apex_acer.protocol.actions import Discrete
from apex_acer.protocol.specification import EnvironmentSpec
from apex_acer.protocol.unroll import PRIORITY, Layout, Unroll, layout
from apex_acer.replay.sampler import Sampler
from apex_acer.replay.storage import Storage

K, COUNT, PLANE = 5, 3, 2


def plain_layout(stack: int = 1, *, prioritized: bool = False) -> Layout:
    spec = EnvironmentSpec((PLANE,), "float32", Discrete(4, 0), stack, False, 1, (PLANE,))
    return layout(spec, K, {PRIORITY: ()} if prioritized else {})


def plain_unroll(number: int, stack: int = 1, *, prioritized: bool = False, dummies: float = 0.2) -> Unroll:
    """`COUNT` columns of `K` steps, a share of `dummies` among them."""
    rng = np.random.default_rng(number)
    mask = rng.random((K, COUNT)) >= dummies
    return Unroll(
        obs=rng.normal(size=(K + stack, COUNT, PLANE)).astype(np.float32),
        episode_step=rng.integers(0, 1000, (K + stack, COUNT), np.int32),
        action=rng.integers(0, 4, (K, COUNT)),
        reward=rng.normal(size=(K, COUNT)).astype(np.float32),
        terminated=rng.random((K, COUNT)) < 0.3,
        truncated=rng.random((K, COUNT)) < 0.3,
        mask=mask,
        extras={PRIORITY: np.where(mask, rng.gamma(0.5, size=mask.shape), 0).astype(np.float32)} if prioritized else {},
        state={},
    )


Replay = tuple[Storage, Sampler]


def insert(replay: Replay, unroll: Unroll, weights_version: int) -> torch.Tensor:
    """Puts `unroll` into storage and tells the sampler; returns the slots."""
    storage, sampler = replay
    slots = storage.insert(unroll, weights_version)
    sampler.insert(slots, unroll)
    return slots
