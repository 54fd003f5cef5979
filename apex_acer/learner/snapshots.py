"""The learner's side of evaluation: hands weights to the evaluator and keeps track of their scores."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from apex_acer.config import ConfigError, EvaluationConfig
from apex_acer.learner.inbox import Post
from apex_acer.networks import weights
from apex_acer.networks.metadata import make_score, read_metadata
from apex_acer.protocol.messages import Reply, Row
from apex_acer.storage.folder import where

log = logging.getLogger(__name__)


class Snapshot(NamedTuple):
    """Weights for an evaluation."""

    env_steps: int
    updates: int
    data: bytes
    """A weights file's bytes."""
    confirms: bool = False
    """Whether it has a score, which its evaluation is to confirm in other games."""

    @property
    def facts(self) -> dict[str, int]:
        """Plain values for a checkpoint."""
        return {"env_steps": self.env_steps, "updates": self.updates}


class Evaluations:
    """Hands snapshots to the evaluator when it asks, and keeps the best score and the weights that reached the target.

    The best of many scores is partly luck. So a snapshot that reaches the target, or scores better than the best one, plays
    other games, and their score counts. The first score of a run needs no such confirmation to be the best.
    """

    def __init__(self, folder: Path, target: float | None, settings: EvaluationConfig) -> None:
        self._folder, self._target, self._settings = folder, target, settings
        self._asking: Post | None = None
        self._due: Snapshot | None = None
        self._to_confirm: Snapshot | None = None  # before the one that is due
        self._playing: Snapshot | None = None
        self.best: float | None = None
        """Mean return of the best weights so far."""
        self.score: dict[str, Any] | None = None
        """Newest score, as a weights file's metadata has it."""
        self.passed: bytes | None = None
        """The weights file that reached the target, if one has."""

    @property
    def last(self) -> float | None:
        return self.score["eval_return"] if self.score else None

    def offer(self, snapshot: Snapshot) -> None:
        """Has `snapshot` evaluated next, in place of one that the evaluator has not begun."""
        self._due = snapshot
        self._hand_over()

    def take(self, post: Post) -> Row:
        """Takes the evaluator's message, which is answered with the next snapshot; returns the row with its score."""
        row: Row = {}
        if post.message.rows and self._playing:
            row = self._judge(post.message.rows[-1], self._playing)
        else:  # from a new evaluator
            self._to_confirm, self._due = self._unscored
        self._asking, self._playing = post, None
        self._hand_over()
        return row

    def dismiss(self) -> None:
        if self._asking:
            self._asking.answer(Reply(self._asking.message.sequence, stop=True))
            self._asking = None

    @property
    def _unscored(self) -> tuple[Snapshot | None, Snapshot | None]:
        """The snapshots to confirm and to evaluate, if the one that is being played gets no score."""
        if self._playing and self._playing.confirms:
            return self._playing, self._due
        return self._to_confirm, self._due or self._playing

    def state(self) -> tuple[dict[str, Any], dict[str, bytes]]:
        """Plain values for `restore`, and by name the weights files of snapshots to evaluate; empty: none."""
        scores = {"best": self.best, "score": self.score, "passed": self.passed is not None}
        confirming, due = self._unscored
        facts = {"confirming": confirming and confirming.facts, "pending": due and due.facts}
        files = {"confirming": confirming.data if confirming else b"", "snapshot": due.data if due else b""}
        return scores | facts, files

    def restore(self, state: Mapping[str, Any], read: Callable[[str], bytes]) -> None:
        """Continues from a `state`, whose files `read` gives by name; its snapshots are due again."""
        self.best, self.score = state["best"], state["score"]
        if facts := state.get("confirming"):  # a checkpoint of an older version has none
            self._to_confirm = Snapshot(**facts, data=read("confirming"), confirms=True)
        if facts := state["pending"]:
            self._due = Snapshot(**facts, data=read("snapshot"))

    def _hand_over(self) -> None:
        snapshot = self._to_confirm or self._due
        if self._asking and snapshot:
            post, self._asking, self._playing = self._asking, None, snapshot
            self._due = self._due if snapshot.confirms else None
            self._to_confirm = None
            version, data, confirms = snapshot.updates, snapshot.data, snapshot.confirms
            post.answer(Reply(post.message.sequence, weights_version=version, weights=data, confirms=confirms))

    def _judge(self, row: Row, snapshot: Snapshot) -> Row:
        score, confirms = row["eval_return"], snapshot.confirms
        self.score = make_score(row, self._settings, snapshot.env_steps)
        data = weights.add_metadata(snapshot.data, score=self.score)
        log.info("%s at %d env steps: %.2f", "confirmation" if confirms else "evaluation", snapshot.env_steps, score)
        passes = self._target is not None and score >= self._target
        leads = self.best is None or score > self.best
        if not confirms and (passes or (leads and self.best is not None)):
            self._to_confirm = snapshot._replace(confirms=True)
            leads = passes = False
        if passes:
            self.passed = data
        if leads:
            self.best = score
            self._keep(data, score)
        return {**row, "eval_env_steps": snapshot.env_steps}

    def _keep(self, data: bytes, score: float) -> None:
        """Writes the best weights, unless a learner that died after the checkpoint that was resumed has left better ones."""
        path, before = where(self._folder) / "best.safetensors", -math.inf
        with contextlib.suppress(ConfigError, LookupError, TypeError):  # none yet, or a damaged one
            before = float(read_metadata(path)["score"]["eval_return"])
        if not before > score:
            weights.write(path, data)
