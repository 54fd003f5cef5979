"""What the learner's batches are made of: fresh and replayed segments, and which of them are too old."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from apex_acer.config import RunConfig
from apex_acer.learner.learner import Learner
from apex_acer.protocol.trajectory import Batch
from tests.runs import MakeLearner, feed, numbered_unroll, segment_numbers, speakers, tiny_run, work_off

UNROLLS = 40  # of 4 segments with 5 steps each


def joint_run(batch_size: int, ratio: float, **changes: Any) -> RunConfig:
    changes = {"replay__start": 0, "stop__env_steps": 10_000} | changes
    return tiny_run(learner__batch_size=batch_size, algorithm__replay_ratio=ratio, algorithm__mix="joint", **changes)


def feed_with_dummies(learner: Learner, config: RunConfig, count: int) -> None:
    """Sends numbered unrolls with dummy steps here and there."""
    (actor, _) = speakers(learner)
    for number in range(count):
        mask = np.random.default_rng(number).random((5, 4)) < 0.8
        actor.say(unroll=numbered_unroll(config, number, mask=mask))
        work_off(learner)


@pytest.mark.parametrize(
    ("batch_size", "ratio", "share"),
    [(5, 4.0, 1), (5, 1.5, 2), (8, 3.0, 2), (4, 6.0, 1), (3, 0.0, 3), (4, 0.5, 3)],
)
def test_joint_batches_have_their_fresh_share_and_keep_the_replay_ratio(
    make_learner: MakeLearner, trained_on: list[Batch], batch_size: int, ratio: float, share: int
) -> None:
    config = joint_run(batch_size, ratio)
    learner = make_learner(config)
    feed_with_dummies(learner, config, UNROLLS)
    assert {len(batch.fresh) for batch in trained_on} == {batch_size}
    assert {int(batch.fresh.sum()) for batch in trained_on} <= {share, 0}
    each = [list(zip(segment_numbers(batch), batch.fresh.tolist(), strict=True)) for batch in trained_on]
    fresh, replayed = ([n for batch in each for n, first in batch if first is kind] for kind in (True, False))
    assert fresh == list(range(4 * UNROLLS - 4 * UNROLLS % share))  # each once, in order
    assert (len(set(replayed)) > 40) == (ratio > 0)

    steps = {kind: sum(int(batch.mask[:, batch.fresh == kind].sum()) for batch in trained_on) for kind in (True, False)}
    assert steps[False] == pytest.approx(ratio * steps[True], rel=0.05)
    learner.finish()
    assert learner.status()["rows"]["learner"]["replay_ratio"] == pytest.approx(steps[False] / steps[True])


def test_joint_batches_are_fresh_only_until_replay_starts(make_learner: MakeLearner, trained_on: list[Batch]) -> None:
    config = joint_run(4, 1.0, replay__start=200)
    learner = make_learner(config)
    feed(learner, speakers(learner)[0], config, 20)
    sizes = [(int(batch.fresh.sum()), len(batch.fresh)) for batch in trained_on]
    before = sizes.index((2, 4))
    assert 9 * 2 <= before <= 10 * 2  # an unroll makes two updates
    assert set(sizes[:before]) == {(2, 2)}
    assert set(sizes[before:]) == {(2, 4)}


@pytest.mark.parametrize(("ratio", "kinds"), [(3.0, "frrr" * 16), (0.25, "ffffr" * 4)])
def test_fixed_draws_replay_the_ratio_after_each_fresh_batch(
    make_learner: MakeLearner, trained_on: list[Batch], ratio: float, kinds: str
) -> None:
    config = tiny_run(algorithm__replay_draw="fixed", algorithm__replay_ratio=ratio, replay__start=0)
    learner = make_learner(config)
    feed(learner, speakers(learner)[0], config, 16)
    assert "".join("f" if batch.fresh.all() else "r" for batch in trained_on) == kinds
    assert sum(int(batch.fresh.sum()) for batch in trained_on) == 4 * 16
