"""What the learner's batches are made of: fresh and replayed segments."""

from __future__ import annotations

import pytest

from apex_acer.protocol.trajectory import Batch
from tests.runs import MakeLearner, feed, speakers, tiny_run


@pytest.mark.parametrize(("ratio", "kinds"), [(3.0, "frrr" * 16), (0.25, "ffffr" * 4)])
def test_fixed_draws_replay_the_ratio_after_each_fresh_batch(
    make_learner: MakeLearner, trained_on: list[Batch], ratio: float, kinds: str
) -> None:
    config = tiny_run(algorithm__replay_draw="fixed", algorithm__replay_ratio=ratio, replay__start=0)
    learner = make_learner(config)
    feed(learner, speakers(learner)[0], config, 16)
    assert "".join("f" if batch.fresh.all() else "r" for batch in trained_on) == kinds
    assert sum(int(batch.fresh.sum()) for batch in trained_on) == 4 * 16
