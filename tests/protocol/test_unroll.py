"""Parts of batches against reading them step by step."""

from __future__ import annotations

import pytest

from tests.runs import CARTPOLE, made_up_unroll, tiny_run


@pytest.mark.parametrize("name", ["reward", "obs"])
def test_absurd_numbers_are_refused(name: str) -> None:
    run = tiny_run()
    array = getattr(made_up_unroll(run), name).copy()
    array.flat[-1] = 1e15
    assert not made_up_unroll(run, **{name: array}).refusal(CARTPOLE)
    array.flat[-1] = -1e20
    refusal = f"{name}: up to 1e+20, allowed is a magnitude of 1e+15"
    assert made_up_unroll(run, **{name: array}).refusal(CARTPOLE) == refusal
