"""The races for so many minutes, without training."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from apex_acer.config.runfile import load_run, presets
from checks.benchmarks import race
from checks.benchmarks.peer_programs import OURS, Failed, Record, Venv

PONG = race.RACES["pong"]
PQN = f"{OURS}_pqn"
SCORES = [
    {"minutes": 10.0, "env_steps": 7, "mean": -3.0, "std": 1.0},
    {"minutes": 60.0, "env_steps": 9, "mean": 18.5, "std": 1.0},
]


@pytest.fixture(autouse=True)
def _nothing_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Venv, "make", lambda self: None)
    monkeypatch.setattr(race, "versions", dict)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands; Stable-Baselines3's DQN fails."""
    commands: list[list[str]] = []

    def answer(command: list[str], deadline_s: float) -> Record:
        commands.append(command)
        if "--algorithm" in command:
            if "dqn" in command:
                raise Failed("exit code 1: no message")
            return {"peer": "sb3_ppo", "seed": int(command[command.index("--seed") + 1]), "scores": SCORES}
        reason = "env_steps" if "short" in command else "minutes"
        return {"env_steps": len(commands), "reason": reason, "mean": 2.0 * len(commands), "std": 1.0}

    monkeypatch.setattr(race, "last_json", answer)
    return commands


def test_every_task_is_allowed_and_its_presets_are_of_its_environment() -> None:
    assert get_args(get_type_hints(race.main)["task"]) == tuple(race.RACES)
    for each in race.RACES.values():
        for preset, *flags in each.ours.values():
            assert preset in presets()
            assert each.environment in (load_run(preset).environment.id, *flags)


def test_ours_goes_on_after_each_score(said: list[list[str]]) -> None:
    record = race.run(PONG, PQN, 3, (10.0, 60.0), 5)
    verbs = [command[1] for command in said]
    assert verbs == ["train", "evaluate", "resume", "evaluate"]
    assert said[0][2] == "pong-pqn"
    assert [command[command.index("--minutes") + 1] for command in said if "--minutes" in command] == ["10.0", "60.0"]
    folder = said[0][said[0].index("--out") + 1]
    assert said[1][2] == f"{folder}/weights.safetensors"
    assert said[2][2] == folder
    assert not Path(folder).parent.exists()
    scores = [(10.0, 1, 4.0), (60.0, 3, 8.0)]
    assert record == {"peer": PQN, "seed": 3} | {
        "scores": [{"minutes": after, "env_steps": steps, "mean": mean, "std": 1.0} for after, steps, mean in scores]
    }


def test_a_run_that_had_its_steps_keeps_its_score(said: list[list[str]]) -> None:
    scores = race.run_ours(("short",), 0, (10.0, 30.0), 5)
    assert [command[1] for command in said] == ["train", "evaluate"]
    assert scores == [{"minutes": after, "env_steps": 1, "mean": 4.0, "std": 1.0} for after in (10.0, 30.0)]


def test_a_race_goes_on_where_it_stopped(
    said: list[list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "new" / "race.json"

    def run(seeds: int) -> int:
        peers = PQN, "sb3_ppo", "sb3_dqn"
        return race.main("pong", minutes=(10.0, 60.0), seeds=seeds, peers=peers, out=path)

    assert run(1) == 1
    assert "sb3_dqn, seed 0: exit code 1: no message" in capsys.readouterr().out
    assert said[-2][-2:] == ["10.0", "60.0"]
    said.clear()
    assert run(2) == 1
    assert [command[1] for command in said if command[0] == race.PROGRAM] == ["train", "evaluate", "resume", "evaluate"]
    runs = json.loads(path.read_text())["runs"]
    assert [(found["peer"], found["seed"]) for found in runs] == [(PQN, 0), ("sb3_ppo", 0), (PQN, 1), ("sb3_ppo", 1)]
    assert ["sb3_ppo", "2", "-3.0", "18.5", "9"] in [line.split() for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize(
    ("ask", "line"),
    [
        (lambda path: race.main("pong", peers=("sb3_sac",), out=path), "--peers: sb3_sac is not allowed; give some of"),
        (lambda path: race.main("pong", episodes=3, out=path), "has runs with episodes 5, not 3; give another file"),
        (lambda path: race.main("pong", episodes=5, out=path), "has runs with cores 0, not "),
    ],
)
def test_a_wrong_question_is_one_line(tmp_path: Path, ask: Callable[[Path], int], line: str) -> None:
    path = tmp_path / "race.json"
    asked = {
        "environment": PONG.environment,
        "minutes": [10.0, 30.0, 60.0],
        "episodes": 5,
        "cores": 0,
        "has_bfloat16": None,
    }
    path.write_text(json.dumps({**asked, "runs": []}))
    with pytest.raises(SystemExit, match=line):
        ask(path)
