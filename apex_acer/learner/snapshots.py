"""The learner's side of evaluation: hands weights to the evaluator and keeps track of their scores."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from apex_acer.config import EvaluationConfig
from apex_acer.networks import weights
from apex_acer.networks.card import make_score
from apex_acer.protocol.inbox import Post
from apex_acer.protocol.messages import Reply, Row
from apex_acer.storage.folder import where

log = logging.getLogger(__name__)


class Snapshot(NamedTuple):
    """Weights set aside for an evaluation."""

    env_steps: int
    updates: int
    data: bytes
    """A weights file's bytes."""


class Evaluations:
    """Hands snapshots to the evaluator when it asks, and keeps the best score and the weights that reached the target."""

    def __init__(self, folder: Path, target: float | None, settings: EvaluationConfig) -> None:
        self._folder, self._target, self._settings = folder, target, settings
        self._asking: Post | None = None
        self._due: Snapshot | None = None
        self._playing: Snapshot | None = None
        self.best: float | None = None
        """Highest mean return of an evaluation so far."""
        self.score: dict[str, Any] | None = None
        """Newest score, as a weights file's card has it."""
        self.passed: bytes | None = None
        """The weights file that reached the target, if one has."""

    @property
    def last(self) -> float | None:
        """Mean return of the newest score."""
        return self.score["eval_return"] if self.score else None

    def offer(self, snapshot: Snapshot) -> None:
        """Has `snapshot` evaluated next, in place of one that the evaluator has not begun, so it never lags behind."""
        self._due = snapshot
        self._hand_over()

    def take(self, post: Post) -> Row:
        """Takes the score in the evaluator's message, which is answered with the next snapshot; returns the row to write."""
        row: Row = {}
        if post.message.rows and self._playing:
            row = self._judge(post.message.rows[-1], self._playing)
        else:  # a new evaluator: the snapshot that the previous one was playing is due again, unless a newer one is
            self._due = self._due or self._playing
        self._asking, self._playing = post, None
        self._hand_over()
        return row

    def dismiss(self) -> None:
        """Tells a waiting evaluator to stop."""
        if self._asking:
            self._asking.answer(Reply(self._asking.message.sequence, stop=True))
            self._asking = None

    def state(self) -> tuple[dict[str, Any], bytes]:
        """Plain values for `restore`, and the weights file of the snapshot without a score yet; empty if there is none."""
        pending = self._due or self._playing
        facts = None if pending is None else {"env_steps": pending.env_steps, "updates": pending.updates}
        scores = {"best": self.best, "score": self.score, "passed": self.passed is not None}
        return {**scores, "pending": facts}, pending.data if pending else b""

    def restore(self, state: Mapping[str, Any], data: bytes) -> None:
        """Continues from a `state`; its snapshot is due again."""
        self.best, self.score = state["best"], state["score"]
        pending = state["pending"]
        self._due = Snapshot(pending["env_steps"], pending["updates"], data) if pending else None

    def _hand_over(self) -> None:
        if self._asking and self._due:
            post, self._asking = self._asking, None
            self._playing, self._due = self._due, None
            version, data = self._playing.updates, self._playing.data
            post.answer(Reply(post.message.sequence, weights_version=version, weights=data))

    def _judge(self, row: Row, snapshot: Snapshot) -> Row:
        score = row["eval_return"]
        self.score = make_score(row, self._settings, snapshot.env_steps)
        data = weights.add_metadata(snapshot.data, score=self.score)
        log.info("evaluation at %d env steps: %.2f", snapshot.env_steps, score)
        if self._target is not None and score >= self._target:
            self.passed = data
        if self.best is None or score > self.best:
            self.best = score
            weights.write(where(self._folder) / "best.safetensors", data)
        return {**row, "eval_env_steps": snapshot.env_steps}
