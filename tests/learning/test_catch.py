"""Images are learned from: byte planes, stacks and convolutions, through the whole local engine."""

from __future__ import annotations

from pathlib import Path

from apex_acer import train
from apex_acer.cli.train import parse_train


def test_catch_is_learned_from_pixels(tmp_path: Path) -> None:
    flags = [
        "--environment.id",
        "tests.learning.catch:Catch-v0",
        "--environment.stack",
        "2",
        "--algorithm.reward-clip",
        "1",
    ]
    flags += ["--steps", "60000", "--until", "0.9", "--evaluation.every", "4000", "--seed", "1"]
    config, _ = parse_train(["cartpole", *flags, "--out", str(tmp_path / "run")])
    result = train(config)
    assert result.reason == "at_return", result
