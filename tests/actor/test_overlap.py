"""Overlapping unrolls: what is in front was there before, and counts nowhere."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from apex_acer.actor.policy import Policy
from apex_acer.actor.rollout import Rollout
from apex_acer.protocol.unroll import ARRAY_FIELDS, Unroll
from tests.conftest import COUNTDOWN, play
from tests.runs import tiny_run

K, COUNT, UNROLLS = 6, 3, 5


def made(burn_in: int, actor: int | None = 0, **changes: Any) -> tuple[Policy, list[Unroll]]:
    """Unrolls of a policy whose weights stay as they are."""
    kwargs = '{"lengths": [4, 13, 6]}'
    config = tiny_run(
        environment__id=COUNTDOWN,
        environment__kwargs=kwargs,
        environment__stack=2,
        algorithm__name="r2d2",
        algorithm__burn_in=burn_in,
        algorithm__unroll_length=K,
        network__lstm=5,
        **changes,
    )
    environments, policy = play(config, COUNT)
    rollout = Rollout(environments, policy, seed=2, actor=actor)
    unrolls = [rollout.unroll(K) for _ in range(UNROLLS)]
    environments.close()
    return policy, unrolls


def test_the_state_is_that_before_its_first_step() -> None:
    policy, unrolls = made(4, replay__sampling="prioritized")
    _, plain = made(0)
    for before, after in zip(plain, unrolls[1:], strict=False):
        state = {name: torch.from_numpy(part) for name, part in before.state.items()}
        for t in range(K - 4):
            planes, steps = before.obs[t : t + 2], before.episode_step[t : t + 2]
            exploration, generator = policy.exploration(COUNT, 0), torch.Generator()
            state = policy.step(planes, steps, state, greedy=False, exploration=exploration, generator=generator).state
        for name, part in after.state.items():
            np.testing.assert_allclose(part, state[name].numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("burn_in", [1, K])
def test_each_unroll_begins_with_the_last_steps_of_the_one_before(burn_in: int) -> None:
    (_, plain), (_, unrolls), (_, evaluation) = made(0), made(burn_in), made(burn_in, actor=None)
    for one, other in zip(plain, unrolls, strict=True):
        for name in ARRAY_FIELDS:
            whole = getattr(other, name)
            np.testing.assert_array_equal(whole[burn_in:], getattr(one, name), err_msg=name)
        assert not other.mask[:burn_in].any()  # so that no loss, count or priority sees these steps twice
    for before, after in itertools.pairwise(unrolls):
        for name in set(ARRAY_FIELDS) - {"mask"}:
            rows = getattr(before, name)
            np.testing.assert_array_equal(getattr(after, name)[:burn_in], rows[K : K + burn_in], err_msg=name)
    first = unrolls[0]  # before it nothing is known
    assert not any(part.any() for part in first.state.values())
    assert not any(getattr(first, name)[:burn_in].any() for name in set(ARRAY_FIELDS) - {"obs"})
    assert not first.obs[: burn_in + 1].any()
    assert {len(unroll.mask) for unroll in evaluation} == {K}
