"""Images are learned from: byte planes, stacks and convolutions, and Atari's frames, through the whole local engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from apex_acer import load_policy, train
from apex_acer.cli.training import parse_train

CATCH = "--environment.id tests.learning.catch:Catch-v0 --environment.stack 2 --until 0.9"
FLAGS = {
    "cartpole": "--algorithm.reward-clip 1 --steps 60000 --evaluation.every 4000 --seed 1",
    "cartpole-apex-dqn": (  # without convolutions, from prioritized steps, in one process: a few seconds
        "--network.torso mlp --algorithm.n-steps 5 --algorithm.replay-ratio 8 --learner.batch-size 64 --engine serial"
        " --actors 2 --actors.threads 1 --learner.threads 1 --steps 10000 --evaluation.every 2000 --seed 2"
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("preset", FLAGS)
def test_catch_is_learned_from_pixels(preset: str, tmp_path: Path) -> None:
    config, _ = parse_train([preset, *CATCH.split(), *FLAGS[preset].split(), "--out", str(tmp_path / "run")])
    result = train(config)
    assert result.reason == "at_return", result


ATARI = [
    *[
        "--environment.id",
        "ALE/Seaquest-v5",
        "--actors",
        "2",
        "--actors.environments",
        "4",
        "--learner.batch-size",
        "4",
    ],
    *["--steps", "1500", "--replay.capacity", "1000", "--replay.start", "200", "--algorithm.replay-ratio", "1"],
    *["--evaluation.episodes", "2", "--evaluation.every", "500"],
    *["--environment.kwargs", '{"max_num_frames_per_episode": 400}'],
]


@pytest.mark.slow
def test_an_atari_game_is_learned_from(tmp_path: Path) -> None:
    config, _ = parse_train(["atari", *ATARI, "--out", str(tmp_path / "run")])
    result = train(config)
    assert result.reason == "env_steps"
    assert result.updates > 20
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    learner = [row for row in rows if row["source"] == "learner"]
    assert learner[-1]["replay_steps"] <= 1000
    assert learner[-1]["frames"] == 4 * learner[-1]["env_steps"]
    assert load_policy(result.weights).spec.obs_shape == (4, 84, 84)
