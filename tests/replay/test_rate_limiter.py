from __future__ import annotations

import json

import numpy as np
import pytest

from apex_acer.replay.rate_limiter import RateLimiter


def drive(limiter: RateLimiter, fresh: list[int], batches: list[int]) -> list[int]:
    """Counts `fresh` steps one after the other; after each, replays as long as owed. Batches after each."""
    done, number = [], 0
    for steps in fresh:
        limiter.count_fresh(np.array([steps]))
        start = number
        while limiter.owes(batches[number % len(batches)]):
            limiter.count_replayed(batches[number % len(batches)])
            number += 1
            assert number - start < 10_000, "replays without end"
        done.append(number - start)
    return done


def credit(limiter: RateLimiter, limit: int) -> int:
    """The whole steps still owed, found from outside."""
    return max(steps for steps in range(limit + 1) if limiter.owes(steps))


@pytest.mark.parametrize("ratio", [0.0, 0.5, 4.0])
@pytest.mark.parametrize(("fresh", "batches"), [([7], [160]), ([155, 80, 160], [149, 160, 3])])
def test_the_ratio_of_steps_holds_in_the_long_run(ratio: float, fresh: list[int], batches: list[int]) -> None:
    limiter = RateLimiter(ratio, seed=1)
    assert not limiter.owes(1)
    counts = 20_000
    drive(limiter, fresh * (counts // len(fresh)), batches)
    deviation = (ratio / counts) ** 0.5 * 1.2  # Poisson's; a little more where the sizes vary
    assert abs(limiter.ratio - ratio) <= 4 * deviation
    assert limiter.ratio == limiter.replayed_steps / limiter.fresh_steps
    if ratio == 0:
        assert limiter.replayed_steps == 0


def test_over_100_000_steps_the_ratio_is_within_two_percent() -> None:
    """Because each segment has its own draw, and what the draws gave too little is made up for."""
    deviations = []
    for seed in range(20):
        limiter = RateLimiter(4.0, seed)
        for _ in range(100_000 // (16 * 20)):
            limiter.count_fresh(np.full(16, 20))
            while limiter.owes(320):
                limiter.count_replayed(320)
        deviations.append(abs(limiter.ratio / 4.0 - 1))
    assert max(deviations) < 0.005
    assert len(set(deviations)) > 2  # drawn, not just counted


def test_what_is_left_over_stays_as_credit() -> None:
    limiter = RateLimiter(1.0, seed=2)
    for _ in range(200):
        drive(limiter, [7], [160])
        left = credit(limiter, 160)
        assert left < 160
        assert (limiter.replayed_steps + left) % 7 == 0  # draws are whole multiples of the fresh steps
    assert limiter.replayed_steps > 0


def test_draws_are_poisson_and_seeded() -> None:
    one, same, other = (drive(RateLimiter(4.0, seed), [160] * 5000, [160]) for seed in (3, 3, 4))
    assert one == same
    assert one != other
    assert abs(np.mean(one) - 4) < 0.12
    assert abs(np.var(one) - 4) < 0.4
    assert min(one) == 0
    assert max(one) >= 10


def test_fixed_draws_are_the_ratio_itself() -> None:
    assert drive(RateLimiter(4.0, seed=3, draw="fixed"), [160] * 5, [160]) == [4] * 5
    assert drive(RateLimiter(2.5, seed=4, draw="fixed"), [100, 60, 20], [50]) == [5, 3, 1]
    limiter = RateLimiter(1.5, seed=0, draw="fixed")
    drive(limiter, [7] * 1000, [160])
    assert limiter.replayed_steps + credit(limiter, 160) == 1.5 * 7000


def resumed(limiter: RateLimiter, draw: str, *, keep_credit: bool) -> RateLimiter:
    """Another that goes on from its state, as it is written to a file."""
    another = RateLimiter(4.0, 99, draw)
    another.restore(json.loads(json.dumps(limiter.state())), keep_credit=keep_credit)
    return another


@pytest.mark.parametrize("draw", ["poisson", "fixed"])
def test_another_goes_on_from_its_state(draw: str) -> None:
    limiter = RateLimiter(4.0, seed=1, draw=draw)
    drive(limiter, [155, 80] * 10, [149])
    limiter.count_fresh(np.array([1000]))  # much is owed
    another = resumed(limiter, draw, keep_credit=True)
    assert credit(another, 10_000) == credit(limiter, 10_000) > 1000
    assert drive(another, [155, 80] * 20, [149]) == drive(limiter, [155, 80] * 20, [149])
    assert (another.fresh_steps, another.replayed_steps) == (limiter.fresh_steps, limiter.replayed_steps)
    assert another.state() == limiter.state()


@pytest.mark.parametrize("owed", [1000, 0])
def test_without_its_credit_another_owes_nothing_and_counts_on(owed: int) -> None:
    limiter = RateLimiter(4.0, seed=1)
    drive(limiter, [160] * 100, [160])
    limiter.count_fresh(np.array([owed]))
    another = resumed(limiter, "poisson", keep_credit=False)
    assert not another.owes(1)
    assert another.ratio == limiter.ratio
    before = another.fresh_steps, another.replayed_steps
    drive(another, [160] * 2000, [160])
    fresh, replayed = another.fresh_steps - before[0], another.replayed_steps - before[1]
    assert fresh == 160 * 2000
    assert replayed / fresh == pytest.approx(4.0, rel=0.05)


def test_nothing_fresh_counts_until_replay_has_started() -> None:
    limiter = RateLimiter(2.0, seed=0, draw="fixed", start=100)
    for held, is_full, counts in ((99, False, False), (100, False, True), (60, True, True)):
        before = limiter.fresh_steps
        limiter.count_held(held, is_full)
        limiter.count_fresh(np.array([10]))
        assert limiter.fresh_steps - before == (10 if counts else 0)
    assert credit(limiter, 100) == 40
