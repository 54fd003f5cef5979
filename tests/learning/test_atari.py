"""Real Atari frames through the whole local engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from apex_acer import load_policy, train
from apex_acer.cli.training import parse_train

SMALL = [
    *["--actors", "2", "--actors.environments", "4", "--learner.batch-size", "4", "--replay.start", "200"],
    *["--algorithm.replay-ratio", "1", "--evaluation.episodes", "2", "--evaluation.every", "500"],
    *["--environment.kwargs", '{"max_num_frames_per_episode": 400}'],
]


@pytest.mark.slow
def test_a_game_is_learned_from(tmp_path: Path) -> None:
    flags = ["--environment.id", "ALE/Seaquest-v5", "--steps", "1500", "--replay.capacity", "1000", *SMALL]
    config, _ = parse_train(["atari", *flags, "--out", str(tmp_path / "run")])
    result = train(config)
    assert result.reason == "env_steps"
    assert result.updates > 20
    folders = {folder.name for folder in (tmp_path / "run" / "tb").iterdir()}
    assert folders >= {"learner", "actor_0", "actor_1"}
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    learner = [row for row in rows if row["source"] == "learner"]
    assert learner[-1]["replay_steps"] <= 1000
    assert learner[-1]["frames"] == 4 * learner[-1]["env_steps"]
    assert load_policy(result.weights).spec.obs_shape == (4, 84, 84)
