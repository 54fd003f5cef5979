"""What is evaluated next, what the scores mean, and both after a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from apex_acer.config import EvaluationConfig
from apex_acer.learner.inbox import Post
from apex_acer.learner.snapshots import Evaluations, Snapshot
from apex_acer.networks.weights import pack
from apex_acer.protocol.messages import Message, Peer, Reply
from tests.runs import RUN_ID

SETTINGS = EvaluationConfig(episodes=7, greedy=False)


class Evaluator:
    """Asks, and scores what it is given."""

    def __init__(self, evaluations: Evaluations) -> None:
        self.evaluations = evaluations
        self._sequence = 0
        self.replies: list[Reply] = []

    def ask(self, score: float | None = None) -> dict[str, float]:
        """The row that is to be written."""
        rows = [] if score is None else [{"eval_return": score, "eval_seconds": 0.5}]
        message = Message(RUN_ID, Peer("evaluator", 0, 0), self._sequence, rows=rows, wants_weights=True)
        self._sequence += 1
        return self.evaluations.take(Post(message, self.replies.append))

    @property
    def given(self) -> list[bytes | None]:
        return [reply.weights for reply in self.replies]


def snapshot(env_steps: int) -> Snapshot:
    return Snapshot(env_steps, env_steps // 10, pack({"x": torch.tensor(env_steps)}, {"env_steps": env_steps}))


def scored(env_steps: int, score: float) -> bytes:
    """The file of a snapshot that had this score."""
    metadata = {"eval_return": score, "episodes": 7, "greedy": False, "env_steps": env_steps}
    return pack({"x": torch.tensor(env_steps)}, {"env_steps": env_steps, "score": metadata})


def resumed(evaluations: Evaluations, folder: Path, target: float | None = None) -> Evaluations:
    """Another that goes on from its state, as it is written to files."""
    state, files = evaluations.state()
    another = Evaluations(folder, target, SETTINGS)
    another.restore(json.loads(json.dumps(state)), files.__getitem__)
    return another


def test_the_newest_snapshot_is_scored_and_the_best_kept(tmp_path: Path) -> None:
    evaluations = Evaluations(tmp_path, None, SETTINGS)
    evaluator = Evaluator(evaluations)
    assert evaluator.ask() == {}
    evaluations.offer(snapshot(100))
    for late in (200, 300):
        evaluations.offer(snapshot(late))
    assert evaluator.ask(5.0) == {"eval_return": 5.0, "eval_seconds": 0.5, "eval_env_steps": 100}
    assert evaluator.ask(4.0) == {"eval_return": 4.0, "eval_seconds": 0.5, "eval_env_steps": 300}
    assert evaluator.given == [snapshot(100).data, snapshot(300).data]
    assert [reply.weights_version for reply in evaluator.replies] == [10, 30]
    assert (evaluations.best, evaluations.last) == (5.0, 4.0)
    assert (tmp_path / "best.safetensors").read_bytes() == scored(100, 5.0)


# ── confirmations ──


def evaluated(folder: Path, *scores: tuple[int, float], target: float | None = None) -> Evaluator:
    """An evaluator that gave these snapshots these scores, one after the other, a second one if it was asked again."""
    evaluator = Evaluator(Evaluations(folder, target, SETTINGS))
    evaluator.ask()
    before = 0
    for env_steps, score in scores:
        if env_steps != before:
            evaluator.evaluations.offer(snapshot(env_steps))
        before = env_steps
        assert evaluator.given[-1] == snapshot(env_steps).data
        evaluator.ask(score)
    return evaluator


def test_a_better_score_counts_only_as_far_as_other_games_confirm_it(tmp_path: Path) -> None:
    evaluator = evaluated(tmp_path, (100, 5.0), (200, 9.0), (200, 4.0))
    evaluations = evaluator.evaluations
    assert [reply.confirms for reply in evaluator.replies] == [False, False, True]
    assert (evaluations.best, evaluations.last) == (5.0, 4.0)
    assert (tmp_path / "best.safetensors").read_bytes() == scored(100, 5.0)
    evaluations.offer(snapshot(300))
    evaluator.ask(8.0)
    assert (tmp_path / "best.safetensors").read_bytes() == scored(100, 5.0)  # as long as nothing confirms it
    evaluator.ask(7.0)
    assert evaluations.best == 7.0
    assert (tmp_path / "best.safetensors").read_bytes() == scored(300, 7.0)


def test_a_target_is_reached_only_if_other_games_reach_it_too(tmp_path: Path) -> None:
    evaluator = evaluated(tmp_path, (100, 9.0), (100, 7.0), (200, 8.0), target=8.0)
    assert not evaluator.evaluations.passed
    assert evaluator.replies[-1].confirms
    evaluator.ask(8.0)
    assert evaluator.evaluations.passed == scored(200, 8.0)
    assert (tmp_path / "best.safetensors").read_bytes() == scored(200, 8.0)


@pytest.mark.parametrize("restarted", ["evaluator", "run"])
def test_a_confirmation_is_played_again_if_who_played_it_is_gone(tmp_path: Path, restarted: str) -> None:
    before = evaluated(tmp_path, (100, 5.0), (200, 9.0)).evaluations
    before.offer(snapshot(300))
    after = before if restarted == "evaluator" else resumed(before, tmp_path)
    after.offer(snapshot(400))
    evaluator = Evaluator(after)
    evaluator.ask()
    assert (evaluator.given, evaluator.replies[0].confirms) == ([snapshot(200).data], True)
    evaluator.ask(6.0)
    assert (tmp_path / "best.safetensors").read_bytes() == scored(200, 6.0)
    assert evaluator.given[1:] == [snapshot(400).data]
    assert not evaluator.replies[1].confirms


# ── checkpoints ──


def test_scores_go_on_and_a_target_that_was_reached_does_not_end_the_next_run(tmp_path: Path) -> None:
    first = Evaluations(tmp_path, 5.0, SETTINGS)
    after = resumed(first, tmp_path)
    assert (after.best, after.last, first.state()[0]["passed"]) == (None, None, False)
    evaluator = Evaluator(first)
    evaluator.ask()
    first.offer(snapshot(100))
    evaluator.ask(7.0)
    evaluator.ask(6.0)
    first.offer(snapshot(200))
    evaluator.ask(3.0)
    assert first.state()[0]["passed"] is True
    after = resumed(first, tmp_path, 8.0)
    assert (after.best, after.last, after.passed) == (6.0, 3.0, None)
    after.offer(snapshot(300))
    evaluator = Evaluator(after)
    evaluator.ask()
    evaluator.ask(5.5)  # not the best of the run, though the best since it was resumed
    assert (tmp_path / "best.safetensors").read_bytes() == scored(100, 6.0)


def test_better_weights_of_a_learner_that_died_after_the_checkpoint_stay(tmp_path: Path) -> None:
    evaluator = evaluated(tmp_path, (100, 5.0))
    state = json.loads(json.dumps(evaluator.evaluations.state()[0]))
    evaluator = evaluated(tmp_path, (200, 9.0), (200, 9.0))  # which no checkpoint knows of
    after = Evaluations(tmp_path, None, SETTINGS)
    after.restore(state, lambda name: b"")
    evaluator = Evaluator(after)
    evaluator.ask()
    for env_steps, score, best in ((150, 7.0, scored(200, 9.0)), (300, 9.5, scored(300, 9.5))):
        after.offer(snapshot(env_steps))
        evaluator.ask(score)
        evaluator.ask(score)
        assert after.best == score
        assert (tmp_path / "best.safetensors").read_bytes() == best
    (tmp_path / "best.safetensors").write_bytes(b"damaged")
    after.offer(snapshot(400))
    evaluator.ask(10.0)
    evaluator.ask(10.0)
    assert (tmp_path / "best.safetensors").read_bytes() == scored(400, 10.0)


@pytest.mark.parametrize("situation", ["playing", "playing and due"])
def test_what_was_yet_to_be_scored_is_due_again(tmp_path: Path, situation: str) -> None:
    """One that waits is newer than what is played, which it replaces."""
    before = Evaluations(tmp_path, None, SETTINGS)
    Evaluator(before).ask()
    before.offer(snapshot(100))
    if "due" in situation:
        before.offer(snapshot(200))
    expected = snapshot(200 if "due" in situation else 100)
    after = resumed(before, tmp_path)
    evaluator = Evaluator(after)
    assert evaluator.ask() == {}
    assert evaluator.given == [expected.data]
    assert evaluator.ask(1.0) == {"eval_return": 1.0, "eval_seconds": 0.5, "eval_env_steps": expected.env_steps}
    assert evaluator.given == [expected.data]
