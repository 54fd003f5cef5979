from __future__ import annotations

import dataclasses
import itertools
import random
from typing import Any

import pytest

from apex_acer.config import RunConfig, StopConfig
from apex_acer.protocol.messages import Outcome
from apex_acer.views.progress import KEPT_NEWS, KEPT_RETURNS, Progress, clock
from tests.runs import a_status

CONFIG = RunConfig(stop=StopConfig(env_steps=10_000))


def test_the_rate_follows_what_lasts_and_not_what_jumps() -> None:
    """Steps arrive in bursts of up to twice their mean: the time left stays near the truth, then follows a new pace."""
    generator, steps, progress = random.Random(1), 0, Progress.before(RunConfig(stop=StopConfig(env_steps=10**6)))
    lefts = []
    for second in range(1, 241):
        pace = 1000 if second <= 120 else 500
        steps += generator.randrange(2 * pace)
        progress = progress.after(a_status(env_steps=steps, wall_s=float(second)))
        lefts.append(progress.left_s or 0.0)
    truth = [(10**6 - 1000 * second) / 1000 for second in range(30, 121)]
    assert lefts[29:120] == pytest.approx(truth, rel=0.25)
    changes = [abs(after - before) for before, after in itertools.pairwise(lefts[29:120])]
    assert max(changes) < 0.1 * max(lefts[29:120])
    assert progress.steps_per_s == pytest.approx(500, rel=0.2)


def test_a_learner_that_goes_back_to_its_checkpoint_leaves_the_rate() -> None:
    progress = Progress.before(CONFIG).after(a_status(env_steps=1000, wall_s=10.0))
    back = progress.after(a_status(env_steps=400, wall_s=4.0))
    assert (back.env_steps, back.steps_per_s) == (400, progress.steps_per_s)
    assert back.after(a_status(env_steps=500, wall_s=5.0)).steps_per_s == pytest.approx(100)


@pytest.mark.parametrize(("minutes", "left", "share"), [(None, 90.0, 0.1), (1.0, 50.0, 10 / 60)])
def test_the_budget_that_ends_first_counts(minutes: float | None, left: float, share: float) -> None:
    config = dataclasses.replace(CONFIG, stop=StopConfig(env_steps=10_000, minutes=minutes))
    progress = Progress.before(config)
    assert progress.left_s == (60 * minutes if minutes else None)
    progress = progress.after(a_status(env_steps=1000, wall_s=10.0))
    assert progress.left_s == pytest.approx(left)
    assert progress.share == pytest.approx(share)


def test_each_return_is_kept_once_and_no_more_than_can_be_drawn() -> None:
    """A row is told of again and again until there is a newer one, and not every row has an episode's end."""
    progress = Progress.before(CONFIG)
    for number in range(100):
        score = float("nan") if number == 90 else float(number)
        row = {"episodes": number, "episode_return": score, "episode_return_max": 100.0 - number}
        scored = {"eval_env_steps": 100 * number, "eval_return": float(number // 98)}
        for news in ([f"news {number}"], []):
            rows = {"actor_0": row, "evaluator": scored, "actor_1": {"episodes": 0}}
            progress = progress.after(a_status(rows=rows, news=news))
    kept = [float(number) for number in range(99 - KEPT_RETURNS, 100) if number != 90]
    assert progress.returns["actor_0"] == tuple(kept)
    assert progress.returns["evaluator"] == (*[0.0] * (KEPT_RETURNS - 2), 1.0, 1.0)
    assert progress.returns["actor_1"] == ()
    assert progress.best == {"actor_0": 100.0}
    assert [line.split()[-1] for line in progress.news] == [str(number) for number in range(100 - KEPT_NEWS, 100)]


def test_states_and_news_cannot_move_the_cursor_and_say_who_waits_for_a_client() -> None:
    evil = "killed\x1b[2J\x1b[H\nby\tit\x07"
    states = {"actor_0": f"dead: {evil}", "actor_1": "running"}
    rows = {"actor_1": {"clients": 0.0}}
    progress = Progress.before(CONFIG).after(a_status(news=[evil], states=states, rows=rows))
    assert all(text.isprintable() for text in (*progress.news, *progress.states.values()))
    assert progress.states["actor_1"] == "waiting: for a client"


@pytest.mark.parametrize(("heard", "score", "best"), [(7.0, 7.0, 7.0), (7.0, 9.0, 8.5), (0.0, -5.0, 0.0)])
def test_the_end_is_that_of_the_result_and_of_what_was_written_after_the_last_status(
    heard: float, score: float, best: float
) -> None:
    """The newest score is no best one before it is confirmed."""
    actor: dict[str, Any] = {"episodes": 1, "episode_return": 5.0, "episode_return_max": 6.0, "policy_lag": 4}
    rows: dict[str, Any] = {"evaluator": {"eval_env_steps": 50, "eval_return": heard}, "actor_0": actor}
    progress = Progress.before(CONFIG).after(a_status(rows=rows, best=heard))
    written: dict[str, Any] = {"actor_0": {"episodes": 2, "episode_return": 8.0, "episode_return_max": 9.0}}
    written |= {"learner": {"updates": 4} | ({"best_return": 8.5} if best == 8.5 else {})}
    ended = progress.ended(Outcome("env_steps", 10_100, 5, 12.0, 1.0, score, "weights", "run"), written)
    assert (ended.env_steps, ended.wall_s, ended.share, ended.best_evaluation) == (10_100, 12.0, 1.0, best)
    assert ended.rows["learner"]["updates"] == 5
    assert ended.rows["actor_0"] == actor | written["actor_0"]
    assert (ended.returns["actor_0"], ended.best) == ((5.0, 8.0), {"actor_0": 9.0})
    assert ended.steps_per_s == pytest.approx(10_100 / 12)
    assert ended.returns["evaluator"] == ((heard,) if score == heard else (heard, score))
    assert set(ended.states.values()) == {"ended"}


def test_durations() -> None:
    durations = {59.9: "59 s", 60: "1 min 00 s", 3600: "1 h 00 min", 400_000: "111 h 06 min"}
    assert {seconds: clock(seconds) for seconds in durations} == durations
