from __future__ import annotations

import dataclasses
import io
import re
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from apex_acer.config import ActorsConfig, EvaluationConfig, RunConfig, StopConfig
from apex_acer.protocol.messages import Row
from apex_acer.views.progress import Progress
from apex_acer.views.screen import Screen, bottleneck, number, sparkline
from tests.runs import a_status

SIZES = [(60, 10), (80, 24), (120, 24)]


def known(actors: int, states: dict[str, str] | None = None, **said: Any) -> Progress:
    """A run in full swing, with figures as wide as they get."""
    names = [f"actor_{index}" for index in range(actors)]
    stop = StopConfig(env_steps=10**9, minutes=2000.0, at_return=500.0)
    progress = Progress.before(RunConfig(actors=ActorsConfig(count=actors), stop=stop))
    running = dict.fromkeys(["learner", *names, "evaluator"], "running")
    learner = {"updates": 5e6, "skipped_updates": 1234.0, "updates_per_s": 98765.4, "q_loss": 1e-9, "entropy": 1.234}
    learner |= {"loss": -1e12, "time_waiting": 0.1, "replay_steps": 99_999.0}
    for count in range(1, 80):
        score = (-1) ** count * 12_345_678.9 * count
        row = {"episodes": count, "episode_return": score, "episode_return_max": score, "env_steps_per_s": 123_456.7}
        rows: dict[str, Any] = {name: {**row, "policy_lag": 123456.0, "time_waiting": 0.987} for name in names}
        rows |= {"learner": learner, "evaluator": {"eval_return": score, "eval_env_steps": count}}
        status: dict[str, Any] = {
            "rows": rows,
            "states": running | (states or {}),
            "restarts": dict.fromkeys(running, 10),
        }
        status |= {"best": score, "env_steps": 10**6 * count, "wall_s": 60.0 * count, "replay_memory": 28 * 10**9}
        progress = progress.after(a_status(**(status | said)))
    return progress


def drawn(progress: Progress, width: int, height: int) -> list[str]:
    console = Console(
        file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None, _environ={}
    )
    console.print(Screen(progress))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def assert_fits(lines: list[str], width: int, height: int) -> None:
    assert max(map(cell_len, lines)) <= width, "\n".join(lines)
    assert len(lines) <= height, "\n".join(lines)


@pytest.mark.parametrize("actors", [1, 64])
@pytest.mark.parametrize(("width", "height"), SIZES)
def test_it_fits_and_misses_nothing_that_matters(width: int, height: int, actors: int) -> None:
    words = ("8%", "left", "last", "best", "learner ", "replay ", "waiting ", "evaluator", "bottleneck")
    news = [f"actor_{number}: killed by SIGKILL, {'and so on ' * 20}" for number in range(5)]
    for progress in (known(actors), known(actors, news=news, states={"actor_0": f"dead: {'日本' * 90}"})):
        lines = drawn(progress, width, height)
        assert_fits(lines, width, height)
        text = "\n".join(lines)
        assert all(word in text for word in words)
        assert not any("…" in line for line in lines if not re.search("日|and so", line)), text
    assert any("and so on" in line for line in lines)


@pytest.mark.parametrize(("width", "height"), [(1, 1), (30, 3), (400, 100)])
def test_no_size_is_an_error(width: int, height: int) -> None:
    lines = drawn(known(8), width, height)
    assert max(map(cell_len, lines)) <= width


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_it_fits_before_anything_is_known(width: int, height: int) -> None:
    config = RunConfig(actors=ActorsConfig(count=64))
    lines = drawn(Progress.before(config), width, height)
    assert_fits(lines, width, height)
    assert "starting" in lines[0]
    assert "learner   starting" in "\n".join(lines)
    bare = dataclasses.replace(config, actors=ActorsConfig(), evaluation=EvaluationConfig(every=0))
    text = "\n".join(drawn(Progress.before(bare), width, height))
    assert "actor 0" not in text
    assert "evaluator" not in text


def test_who_does_not_run_is_shown_first_and_the_rest_is_summed_up() -> None:
    """64 actors in 24 lines."""
    troubled = {"actor_40": "dead: killed by SIGKILL", "actor_63": "restarting"}
    lines = drawn(known(64, states=troubled), 120, 24)
    assert len(lines) == 24
    names = [" ".join(line.split()[:2]) for line in lines[2:-5]]
    assert names == [*(f"actor {index}" for index in range(15)), "actor 40", "actor 63"]
    assert "killed by SIGKILL" in lines[-7]
    rest = lines[-5].split()
    assert rest[:3] == ["47", "more", "470"]
    assert rest[3] == "6e+06"
    assert lines[-5].rstrip().endswith("47 running")


def test_figures_of_a_row_are_those_of_its_process() -> None:
    rows = {
        "actor_0": {"env_steps_per_s": 812.4, "policy_lag": 3.0, "time_waiting": 0.25, "episode_return": 21.04},
        "actor_1": {"env_steps_per_s": 20.0, "time_waiting": 0.05, "episodes": 1, "episode_return": -1.5},
        "evaluator": {"eval_return": 15.0, "eval_env_steps": 10},
        "learner": {"updates_per_s": 55.0, "updates": 1234.0, "q_loss": 0.5, "loss": 0.25, "time_waiting": 0.6},
    }
    rows["actor_0"] |= {"episodes": 1, "episode_return_max": 30.0}
    rows["learner"] |= {"replay_steps": 25_000.0, "entropy": 0.6931}
    progress = Progress.before(RunConfig(actors=ActorsConfig(count=2)))
    status = a_status(rows=rows, env_steps=25_000, wall_s=50.0, best=17.0, replay_memory=2_500_000)
    lines = drawn(progress.after({**status, "restarts": {"actor_0": 2}}), 120, 24)
    assert lines[2].split() == ["actor", "0", "running", "2", "812", "3", "25%", "21.0", "30.0", "▄"]
    assert lines[3].split() == ["actor", "1", "running", "0", "20", "–", "5%", "-1.5", "–", "▄"]
    assert lines[4].split() == ["evaluator", "running", "0", "–", "–", "–", "15.0", "17.0", "▄"]
    assert " 25%  2 min 30 s left  25,000 of 100,000 env steps  500 steps/s  50 s so far" in lines[0]
    learner = "learner   running  1,234 updates, 55/s  Q loss 0.500  entropy 0.693  loss 0.250  cpu, float32"
    assert [line.rstrip() for line in (lines[5], lines[7])] == [
        learner,
        "waiting   actors 15%, learner 60%  bottleneck: actors",
    ]
    assert "25%  25,000 of 100,000 steps  2.5 MB when full" in lines[6]
    rows["learner"] |= {"action_std": 0.3}  # of continuous actions, in place of the entropy
    assert "Q loss 0.500  action std 0.300  loss 0.250" in drawn(progress.after(a_status(rows=rows)), 120, 24)[-3]
    rows["learner"] = {"q_loss": 0.5}
    rows["actor_0"] |= {"action_std": 0.25}
    rows["actor_1"] |= {"action_std": 0.75}
    assert "action std 0.500" in drawn(progress.after(a_status(rows=rows)), 120, 24)[-3]


def clients(num: int) -> dict[str, Row]:
    """Rows of an actor and of so many clients, the last of which is the fastest."""
    rows: dict[str, Row] = {"actor_0": {"clients": float(num), "env_steps_per_s": 1e4}}
    for at in range(num):
        row = {"clients": 1.0 + at, "env_steps_per_s": 10.0 * at, "episodes": 1.0, "refused_clients": float(at % 2)}
        rows[f"client_unity-arena_{at}"] = row | {"episode_return": 20.0 + at, "episode_return_max": 30.0 + at}
    return rows | {"client_@10.0.0.7": {"refused_clients": 5.0}}


def of_clients(num: int) -> Progress:
    """A run of one actor with so many clients, and refusals at an address."""
    states = {"learner": "running", "actor_0": "running", "evaluator": "running"}
    return Progress.before(RunConfig()).after(a_status(rows=clients(num), states=states))


def test_each_client_with_a_name_has_a_row_below_the_processes() -> None:
    lines = drawn(of_clients(2), 110, 24)
    assert [line.split() for line in lines[4:8]] == [
        ["client", "agents", "refused", "steps/s", "last", "best", "returns"],
        ["unity-arena_0", "1", "0", "0", "20.0", "30.0", "▄"],
        ["unity-arena_1", "2", "1", "10", "21.0", "31.0", "▄"],
        ["@10.0.0.7", "–", "5", "–", "–", "–"],
    ]
    assert lines[1].index("steps/s") == lines[4].index("steps/s"), "in the same column"
    narrow = drawn(of_clients(2), 80, 24)
    assert narrow[5].startswith("unity-ar… 1 ")


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_the_busiest_clients_are_shown_and_the_others_summed_up(width: int, height: int) -> None:
    lines = drawn(of_clients(40), width, height)
    assert_fits(lines, width, height)
    shown = [line.split() for line in lines[5:-3]]
    assert shown[-2][0].startswith("unity-a")
    assert shown[-2][1] == "40", "the fastest"
    hidden = 40 - (len(shown) - 1)
    assert shown[-1][:3] == [str(hidden + 1), "more", str(sum(range(1, hidden + 1)))]


@pytest.mark.parametrize("height", range(1, 16))
def test_clients_take_no_room_that_is_not_there(height: int) -> None:
    progress = dataclasses.replace(
        of_clients(3), states={"learner": "running", "actor_0": "running", "evaluator": "running"}
    )
    lines = drawn(progress, 120, height)
    assert len(lines) <= max(height, 7)
    assert ("10.0.0.7" in "\n".join(lines)) == (height >= 12)


def test_the_side_that_is_waited_for_is_the_bottleneck() -> None:
    assert bottleneck(actors=0.9, learner=0.1) == "bottleneck: learner"
    assert bottleneck(actors=0.1, learner=0.9) == "bottleneck: actors"
    assert bottleneck(actors=0.3, learner=0.35) == "in balance"


def test_sparklines_and_numbers() -> None:
    assert sparkline([]) == ""
    assert sparkline([5.0, 5.0]) == "▄▄"
    assert sparkline([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]) == "▁▂▃▄▅▆▇█"
    texts = {None: "–", 0.0: "0.0", -1234.56: "-1,234.6", 123_456.78: "123,457", 12_345_678.9: "1.23e+07"}
    assert {value: number(value) for value in texts} == texts
