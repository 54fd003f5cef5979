from __future__ import annotations

import numpy as np

from apex_acer.replay.rate_limiter import RateLimiter


def drive(limiter: RateLimiter, fresh: list[int], batch: int) -> list[int]:
    """Counts `fresh` steps one after the other, and replays as long as batches are owed; the batches after each."""
    done = []
    for steps in fresh:
        limiter.count_fresh(np.array([steps]))
        number = 0
        while limiter.owes(batch):
            limiter.count_replayed(batch)
            number += 1
            assert number < 10_000, "replays without end"
        done.append(number)
    return done


def test_over_100_000_steps_the_ratio_is_within_two_percent() -> None:
    """Because each segment has its own draw, and what the draws gave too little is made up for."""
    deviations = []
    for seed in range(20):
        limiter = RateLimiter(4.0, seed)
        for _ in range(100_000 // (16 * 20)):
            limiter.count_fresh(np.full(16, 20))
            drive(limiter, [0], 320)
        assert limiter.ratio == limiter.replayed_steps / limiter.fresh_steps
        deviations.append(abs(limiter.ratio / 4.0 - 1))
    assert max(deviations) < 0.005
    assert len(set(deviations)) > 2  # drawn, not just counted


def test_draws_are_poisson_and_seeded() -> None:
    one, same, other = (drive(RateLimiter(4.0, seed), [160] * 5000, 160) for seed in (3, 3, 4))
    assert one == same
    assert one != other
    assert abs(np.mean(one) - 4) < 0.12
    assert abs(np.var(one) - 4) < 0.4
    assert min(one) == 0
    assert max(one) >= 10


def test_fixed_draws_are_the_ratio_itself() -> None:
    assert drive(RateLimiter(4.0, seed=3, draw="fixed"), [160] * 5, 160) == [4] * 5
    assert drive(RateLimiter(2.5, seed=4, draw="fixed"), [100, 60, 20], 50) == [5, 3, 1]
    limiter = RateLimiter(1.5, seed=0, draw="fixed")
    drive(limiter, [7] * 1000, 160)
    left = 1.5 * 7000 - limiter.replayed_steps
    assert 0 <= left < 160
    assert limiter.owes(left)
    assert not limiter.owes(left + 1)
