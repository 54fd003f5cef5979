"""Videos that the evaluator makes while a run trains."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import av
import pytest

from apex_acer.config import ConfigError
from apex_acer.manager.callbacks import Callbacks, Evaluation
from apex_acer.manager.manager import train
from tests.conftest import COUNTDOWN
from tests.runs import tiny_run


class Filmed(Exception):
    """Ends a run of which enough was filmed."""


@pytest.mark.parametrize("engine", ["serial", pytest.param("local", marks=pytest.mark.slow)])
def test_every_second_evaluation_is_filmed(tmp_path: Path, engine: str) -> None:
    config = tiny_run(
        tmp_path,
        engine=engine,
        environment__id="CartPole-v1",
        evaluation__every=200,
        evaluation__video_every=2,
        evaluation__episodes=1,
        evaluation__environments=1,
        stop__env_steps=1_000_000,
    )
    evaluations: list[Evaluation] = []

    def hear(evaluation: Evaluation) -> None:
        evaluations.append(evaluation)
        if len(evaluations) == 2:
            raise Filmed

    with pytest.raises(Filmed):  # an evaluator that starts late would miss a short run
        train(config, Callbacks(on_evaluation=hear))
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    played = [row for row in rows if row["source"] == "evaluator"]
    videos = sorted((tmp_path / "videos").glob("*.mp4"))
    assert videos
    # the last evaluation's video may be there before its row, which the end of the run can overtake
    assert [int(path.stem) for path in videos][: len(played) // 2] == [row["eval_env_steps"] for row in played[1::2]]
    with av.open(str(videos[0])) as video:
        assert sum(1 for _ in video.decode(video=0)) == played[1]["eval_length"] + 1


@pytest.mark.parametrize("name", ["Growing-v0", "Undrawn-v0"])
def test_a_drawing_fault_costs_the_video_only(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    evaluations: list[Evaluation] = []
    config = tiny_run(
        tmp_path,
        environment__id=f"tests.cli.test_play:{name}",
        evaluation__every=300,
        evaluation__video_every=1,
        evaluation__episodes=1,
        evaluation__environments=1,
    )
    with caplog.at_level(logging.WARNING):
        assert train(config, Callbacks(on_evaluation=evaluations.append)).env_steps >= 1000
    assert len(evaluations) > 1
    assert not list((tmp_path / "videos").iterdir())
    assert len([line for line in caplog.messages if "no video (ConfigError: " in line]) == len(evaluations)


def test_an_environment_without_pictures_is_refused_at_the_start(tmp_path: Path) -> None:
    config = tiny_run(
        tmp_path, engine="serial", environment__id=COUNTDOWN, evaluation__every=100, evaluation__video_every=1
    )
    with pytest.raises(ConfigError, match="it draws no pictures"):
        train(config)
