"""The races against other trainers, without the other trainers."""

from __future__ import annotations

import itertools
import sys
import time
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from apex_acer.config.runfile import load_run, presets
from checks.benchmarks import peers
from checks.benchmarks.peer_programs import OURS, Failed, Record, last_json
from checks.benchmarks.peer_tasks import TASKS, Task

FAST = {"env_steps": 1_000, "train_s": 2.0, "wall_s": 3.0, "reached": True}
SLOW = {"env_steps": 4_000, "train_s": 4.0, "wall_s": 9.0, "reached": True}
OUR_PRESETS = [(task, flags[0]) for task in TASKS.values() for flags in task.ours.values() if flags[0] in presets()]


def runs(name: str, *figures: Record) -> list[Record]:
    return [{"peer": name, "seed": seed, **found} for seed, found in enumerate(figures)]


@pytest.mark.parametrize(("task", "preset"), OUR_PRESETS, ids=[preset for _, preset in OUR_PRESETS])
def test_a_task_and_our_preset_are_of_one_game(task: Task, preset: str) -> None:
    environment = load_run(preset).environment
    game = task.environment.replace("Continuous", "")
    assert environment.id in (task.environment, game)
    if environment.id != task.environment:
        assert environment.keyword_arguments() == {"continuous": True}


def test_each_of_ours_runs_before_the_peers_that_it_is_held_against() -> None:
    names = peers.in_turns(TASKS["pendulum"], ("sb3_td3", "sb3_sac"))
    assert names == ["apex_acer_sac", "sb3_sac", "apex_acer_td3", "sb3_td3"]
    assert peers.in_turns(TASKS["cartpole"], ("sb3_ppo", "pfrl_acer")) == [OURS, "sb3_ppo", "pfrl_acer"]


def test_ratios_are_of_medians_and_say_where_a_run_missed_the_target() -> None:
    records = runs("apex_acer_sac", FAST, SLOW, FAST) + runs("sb3_sac", SLOW, SLOW, SLOW | {"reached": False})
    table = peers.medians(records + runs("sb3_td3", SLOW))
    assert table["apex_acer_sac"] == {"runs": 3, "reached": 3, "env_steps": 1_000, "train_s": 2.0, "wall_s": 3.0}
    ratio = {"ours": "apex_acer_sac", "relation": "<", "env_steps": 0.25, "train_s": 0.5, "wall_s": 0.333}
    assert peers.ratios(TASKS["pendulum"], table) == {"sb3_sac": ratio}


def test_a_run_that_fails_leaves_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(task: Task, name: str, seed: int) -> Record:
        if (name, seed) == ("sb3_ppo", 0):
            raise Failed("exit code 1: no message")
        return runs(name, FAST)[0] | {"seed": seed}

    monkeypatch.setattr(peers, "run", run)
    records, complete = peers.race(TASKS["cartpole"], 2, [OURS, "sb3_ppo"])
    assert not complete
    assert [(record["peer"], record["seed"]) for record in records] == [(OURS, 0), (OURS, 1), ("sb3_ppo", 1)]
    assert "sb3_ppo, seed 0: exit code 1: no message" in capsys.readouterr().out


def test_ours_and_a_peer_hear_of_the_same_target(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[list[str]] = []

    def answer(command: list[str], deadline_s: float) -> Record:
        said.append(command)
        return {"env_steps": 1, "wall_s": 2.0, "eval_return": -150.0, "reason": "at_return"}

    monkeypatch.setattr(peers, "last_json", answer)
    record = peers.run(TASKS["pendulum"], "apex_acer_sac", 3)
    assert record == {"peer": "apex_acer_sac", "seed": 3, "eval_return": -150.0} | {
        "env_steps": 1,
        "train_s": 2.0,
        "wall_s": 2.0,
        "reached": True,
    }
    peers.run(TASKS["pendulum"], "sb3_sac", 3)
    pairs = [dict(itertools.pairwise(command)) for command in said]
    assert pairs[0]["train"] == "pendulum-sac"
    assert pairs[0]["--until"] == pairs[1]["--target"] == "-160.0"
    assert pairs[0]["--evaluation.every"] == pairs[1]["--every"] == "1000"
    assert pairs[0]["--seed"] == pairs[1]["--seed"] == "3"
    assert float(pairs[0]["--stop.minutes"]) * 60 == float(pairs[1]["--limit"])


def test_a_program_gives_its_last_line_or_a_reason(tmp_path: Path) -> None:
    assert last_json([sys.executable, "-c", "print('a line'); print('{\"a\": 1}')"]) == {"a": 1}
    with pytest.raises(Failed, match="exit code 1: ValueError: x"):
        last_json([sys.executable, "-c", "raise ValueError('x')"])
    start = time.monotonic()
    with pytest.raises(Failed, match="no end within 1 s"):
        last_json(["sh", "-c", f"sleep 60; touch {tmp_path}/late"], 1.0)
    assert time.monotonic() - start < 30.0


def test_an_unknown_peer_is_one_line() -> None:
    with pytest.raises(SystemExit, match="--peers: pfrl_sac is not allowed; give some of sb3_sac, sb3_td3, sb3_ddpg"):
        peers.main("pendulum", peers=("pfrl_sac",))


def test_each_task_can_be_named_on_the_command_line() -> None:
    assert get_args(get_type_hints(peers.main)["task"]) == tuple(TASKS)
