"""A game of two players is learned by self-play."""

from __future__ import annotations

from pathlib import Path

import pytest

from apex_acer import train
from apex_acer.cli.training import parse_train

TIC_TAC_TOE = "--environment.id docs.examples.tic_tac_toe:TicTacToe --engine serial --actors 2 --learner.threads 1"


@pytest.mark.slow
def test_tic_tac_toe_is_won_against_random_moves(tmp_path: Path) -> None:
    """Two players who move at random have a mean return of 0, half the games each as the first."""
    flags = f"{TIC_TAC_TOE} --until 0.7 --steps 30000 --seed 1"
    config, _ = parse_train(["cartpole-ppo", *flags.split(), "--out", str(tmp_path / "run")])
    result = train(config)
    assert result.reason == "at_return", result
