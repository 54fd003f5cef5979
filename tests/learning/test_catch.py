"""Images are learned from: byte planes, stacks and convolutions, through the whole local engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from apex_acer import train
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
