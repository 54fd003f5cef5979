"""Unrolls in which no two numbers are alike, for what stores them."""

from __future__ import annotations

import numpy as np

from apex_acer.protocol.actions import Discrete
from apex_acer.protocol.specification import Array, EnvironmentSpec
from apex_acer.protocol.unroll import PRIORITY, Layout, Unroll, layout
from apex_acer.replay.buffer import UniformReplay

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
        behaviour={PRIORITY: np.where(mask, rng.gamma(0.5, size=mask.shape), 0).astype(np.float32)}
        if prioritized
        else {},
        state={},
    )


def copy_into(replay: UniformReplay, another: UniformReplay) -> None:
    """`another` holds what `replay` does, by way of its arrays, and goes on as that one will."""
    held = {name: array.copy() for name, array in replay.arrays().items()}

    def fill(name: str, array: Array) -> None:
        assert (array.shape, array.dtype) == (held[name].shape, held[name].dtype)
        array[...] = held.pop(name)

    another.restore(replay.num_inserted, fill)
    another.restore_sampling(replay.sampling_state())
    assert held == {}
