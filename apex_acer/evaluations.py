"""The learner's side of evaluation: snapshots that are due, and what their scores mean."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import NamedTuple

from apex_acer import weights
from apex_acer.inbox import Post
from apex_acer.messages import Message, Reply

log = logging.getLogger(__name__)


class Snapshot(NamedTuple):
    """Weights set aside: a file's bytes, and the environment steps they were trained for."""

    env_steps: int
    data: bytes


class Evaluations:
    """Hands snapshots to the evaluator when it asks, and keeps the best and the one that reached the target."""

    def __init__(self, folder: Path, target: float | None) -> None:
        self._folder, self._target = folder, target
        self._asking: Post | None = None
        self._due: Snapshot | None = None
        self._playing: Snapshot | None = None
        self.best: float | None = None
        """Highest score so far."""
        self.last: float | None = None
        """Newest score."""
        self.passed: bytes | None = None
        """The file that reached the target, once one has."""

    def offer(self, snapshot: Snapshot) -> None:
        """Has `snapshot` evaluated next; one not yet begun is replaced, so that the evaluator never lags behind."""
        self._due = snapshot
        self._hand_over()

    def take(self, post: Post) -> None:
        """Judges the score in the evaluator's message, if one is there; its next snapshot is the answer."""
        if post.message.rows and self._playing:
            self._judge(post.message, self._playing)
        self._asking = post
        self._hand_over()

    def _hand_over(self) -> None:
        if self._asking and self._due:
            post, self._asking = self._asking, None
            self._playing, self._due = self._due, None
            post.answer(
                Reply(post.message.sequence, weights_version=self._playing.env_steps, weights=self._playing.data)
            )

    def _judge(self, message: Message, snapshot: Snapshot) -> None:
        score = message.rows[-1]["eval_return"]
        self.last = score
        log.info("evaluation at %d env steps: %.2f", snapshot.env_steps, score)
        if self._target is not None and score >= self._target:
            self.passed = snapshot.data
        if self.best is None or score > self.best:
            self.best = score
            weights.write(self._folder / "best.safetensors", snapshot.data)
