"""What a learner tells: its own row of metrics, and the status that the manager is shown."""

from __future__ import annotations

from typing import Any

from apex_acer.config import RunConfig
from apex_acer.learner.journal import Journal
from apex_acer.learner.saving import TrainingState
from apex_acer.protocol.inbox import Inbox
from apex_acer.protocol.messages import Row
from apex_acer.protocol.specification import EnvironmentSpec


class Bulletin:
    """Gives rows to `journal`, and with each one a new status to `inbox`."""

    def __init__(
        self, config: RunConfig, spec: EnvironmentSpec, training: TrainingState, journal: Journal, inbox: Inbox
    ) -> None:
        self._saves_replay, self._action_repeat = config.checkpoint.replay, spec.action_repeat
        self._training, self._journal, self._inbox = training, journal, inbox

    def note(self, source: str, row: Row, env_steps: int | None = None) -> None:
        """A row of the process `source`, of now or of `env_steps`."""
        self._journal.note(source, row, env_steps)
        self._inbox.status = self.status()

    def write_row(self) -> None:
        """The learner's own row."""
        trainer, prefetch = self._training.trainer, self._training.prefetch
        evaluations, counters = self._training.evaluations, self._training.counters
        facts: Row = {
            "env_steps": counters.env_steps,
            "frames": counters.env_steps * self._action_repeat,
            "updates": counters.updates,
            "skipped_updates": counters.skipped,
            "replay_steps": prefetch.feed.mixture.held,
            "replay_ratio": prefetch.feed.mixture.pace.ratio,
            "fresh_segments": prefetch.num_fresh,
            "refused_messages": self._inbox.num_refused,
            "learning_rate": trainer.optimizer.learning_rate(counters.env_steps),
        }
        if evaluations.best is not None:
            facts["best_return"] = evaluations.best
        self._journal.note_learner(facts)
        self._inbox.status = self.status()

    def status(self) -> dict[str, Any]:
        """Live figures for the manager: each process's newest row, the best evaluation, where the learner computes in what,
        and how many bytes replay takes when full and a save may have to write of it.
        """
        trainer, prefetch = self._training.trainer, self._training.prefetch
        evaluations, counters = self._training.evaluations, self._training.counters
        replay_memory = prefetch.feed.replay.num_bytes
        return {
            "env_steps": counters.env_steps,
            "wall_s": counters.clock.wall_s,
            "startup_s": counters.clock.startup_s,
            "best": evaluations.best,
            "learner": trainer.computes,
            "replay_memory": replay_memory,
            "replay_bytes": replay_memory if self._saves_replay else 0,
            "rows": self._journal.rows,
        }
