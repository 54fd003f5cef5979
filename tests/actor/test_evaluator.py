"""The games that the evaluator plays, how they are played again, and its videos."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import av
import pytest

from apex_acer.actor.evaluator import Evaluator, evaluate_policy
from apex_acer.actor.policy import load_policy
from apex_acer.config import ConfigError, RunConfig
from apex_acer.networks.metadata import describe
from apex_acer.networks.weights import named_tensors, pack
from apex_acer.protocol.messages import Peer, Reply, Row
from tests.actor.test_actor import RecordingLink
from tests.conftest import COUNTDOWN, play
from tests.environments_for_tests import Clock, register
from tests.runs import RUN_ID, tiny_run

EVALUATOR = Peer("evaluator", 0, 0)
VIDEOS: dict[str, Any] = {"evaluation__video_every": 2, "evaluation__episodes": 1, "evaluation__environments": 1}


def evaluated(config: RunConfig, folder: Path, confirmations: tuple[bool, ...] = (False,) * 4) -> list[Row]:
    """The rows of evaluations with the same weights after 0, 10, 20, … steps, of which some are `confirmations`."""
    environments, policy = play(config, 1)
    environments.close()
    link = RecordingLink()
    evaluator = Evaluator(config, RUN_ID, EVALUATOR, link, folder=folder)
    for sequence, confirms in enumerate(confirmations):
        metadata = describe(config, policy.spec, env_steps=10 * sequence, updates=2)
        weights = pack(named_tensors(policy.network, "network"), metadata)
        (folder / "weights.safetensors").write_bytes(weights)
        link.replies.append(Reply(sequence, weights_version=2, weights=weights, confirms=confirms))
        assert evaluator.step(0)
    assert evaluator.step(0)
    link.replies.append(Reply(len(confirmations), stop=True))
    assert not evaluator.step(0)
    evaluator.close()
    assert [message.sequence for message in link.sent] == list(range(len(confirmations) + 1))
    return [message.rows[0] for message in link.sent[1:]]


def test_evaluate_plays_the_evaluator_s_games_and_with_the_next_seed_those_of_a_confirmation(tmp_path: Path) -> None:
    config = tiny_run(seed=3)
    rows = evaluated(config, tmp_path, (False, True, False))
    assert all(row.pop("eval_seconds") > 0 for row in rows)
    policy = load_policy(tmp_path / "weights.safetensors")
    played, others = (evaluate_policy(policy, config.evaluation, seed) for seed in (3, 4))
    assert rows == [played, others, played]
    assert played != others


def test_every_second_evaluation_is_filmed(tmp_path: Path) -> None:
    config = tiny_run(environment__id="CartPole-v1", **VIDEOS)
    rows = evaluated(config, tmp_path, (False, True, False, False, False))
    videos = sorted((tmp_path / "videos").iterdir())
    assert [path.name for path in videos] == ["000000020.mp4", "000000040.mp4"]  # a confirmation is none of these
    with av.open(str(videos[0])) as video:
        assert sum(1 for _ in video.decode(video=0)) == rows[2]["eval_length"] + 1


class Undrawn(Clock):
    """Promises pictures and gives none."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    render_mode = "rgb_array"

    def __init__(self, render_mode: str = "") -> None:
        super().__init__(length=5)

    def render(self) -> Any:
        return None


register("NoPicture-v0", Undrawn)


def test_a_drawing_fault_costs_the_video_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        rows = evaluated(tiny_run(environment__id="NoPicture-v0", **VIDEOS), tmp_path)
    assert [row["eval_length"] for row in rows] == [5.0] * 4
    assert not list((tmp_path / "videos").iterdir())
    assert len([line for line in caplog.messages if "no video (ConfigError: " in line]) == 2


def test_an_environment_without_pictures_is_refused_at_the_start() -> None:
    config = tiny_run(environment__id=COUNTDOWN, **VIDEOS)
    with pytest.raises(ConfigError, match="it draws no pictures"):
        Evaluator(config, RUN_ID, EVALUATOR, RecordingLink())
