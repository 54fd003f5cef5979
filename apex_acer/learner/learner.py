"""The learner: takes unrolls, keeps replay, updates the network, hands out weights, writes what there is to see."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable
from pathlib import Path

from rich.filesize import decimal

from apex_acer.config import RunConfig
from apex_acer.learner.agreement import Agreed, Report, agree
from apex_acer.learner.bulletin import Bulletin
from apex_acer.learner.counters import Counters, RunClock
from apex_acer.learner.feed import make_feed, unroll_layout
from apex_acer.learner.journal import Journal
from apex_acer.learner.prefetch import make_prefetch
from apex_acer.learner.ranks import ALONE, Ranks
from apex_acer.learner.saving import Saver, TrainingState
from apex_acer.learner.snapshots import Evaluations
from apex_acer.learner.trainer import Trainer
from apex_acer.protocol.inbox import Inbox, Post
from apex_acer.protocol.messages import Message, Reply
from apex_acer.protocol.outcome import Outcome
from apex_acer.protocol.specification import EnvironmentSpec

log = logging.getLogger(__name__)

MOMENT_S = 0.01  # that a learner may keep the others waiting


class Learner:
    """One screen of the outer loop; `step` does one thing at a time, so that stopping is prompt.

    Several learners take each step together. Each has its own actors; the first one decides when to stop, saves, evaluates
    and writes.
    """

    def __init__(
        self,
        config: RunConfig,
        spec: EnvironmentSpec,
        folder: Path,
        run_id: str,
        started_at: float,
        *,
        resume: bool = False,
        ranks: Ranks = ALONE,
    ) -> None:
        """With `resume` it goes on from the newest checkpoint in `folder`; `ranks` are this learner and the others.

        Raises:
            ConfigError: if the device, the weights to load or the checkpoint do not fit.
        """
        self._config, self._ranks = config, ranks
        self._trainer = Trainer(config, spec, ranks)
        shapes = unroll_layout(config, spec)
        self._feed = make_feed(config, shapes, self._trainer.device, ranks)
        self._prefetch = make_prefetch(self._feed, self._trainer.device)
        log.info("learner on %s; replay holds up to %s", self._trainer.computes, decimal(self._feed.replay.num_bytes))
        waiting = config.actors.count * config.actors.max_unanswered
        self.inbox = Inbox(run_id, shapes, config.actors.environments, spec.num_actions, waiting)
        self.counters = Counters(RunClock(run_id, started_at))
        self._evaluations = Evaluations(folder, config.stop.at_return, config.evaluation)
        training = TrainingState(
            trainer=self._trainer, prefetch=self._prefetch, evaluations=self._evaluations, counters=self.counters
        )
        self._saver = Saver(config, spec, folder, training, ranks)
        if resume:
            self._saver.restore()
        else:
            self._saver.begin()
        self._journal = Journal(config, folder, self._trainer.algorithm.network, ranks, self.counters, resume=resume)
        self._bulletin = Bulletin(config, spec, training, self._journal, self.inbox)
        self.at_checkpoint = False
        """Set when a checkpoint was written in the midst of the run."""
        self._reason = ""
        self._agree([])  # replay that was restored may hold a batch already

    # ── the loop ──

    @property
    def idle(self) -> bool:
        """Whether `step` would only wait."""
        return self.inbox.empty and not self._prefetch.ready

    def step(self, timeout_s: float) -> bool:
        """One update, or one unroll taken (waiting up to `timeout_s` seconds for it); False once the run is to end."""
        self.inbox.turns += 1
        self._answer(iter(self.inbox.take_other, None))
        taken: list[Post] = []
        if self._prefetch.ready:
            self._learn()
        else:
            taken = self._take(timeout_s)
        agreed = self._agree(taken)
        self._answer(taken)  # what is in replay; an actor does not wait for the update on it
        self._evaluate_and_save(agreed)
        if agreed.row_due:
            self._bulletin.write_row()
        if agreed.stops or self.counters.env_steps >= self._config.stop.env_steps:
            self._reason = self._stop_reason() or "env_steps"
        return not self._reason

    def _take(self, timeout_s: float) -> list[Post]:
        """Puts unrolls into replay, where each is from then on exactly once; they are yet to be answered.

        One of several learners takes as many as a batch needs, and the others wait for it no longer than a moment.
        """
        alone = self._ranks is ALONE
        with self._journal.timers.phase("waiting"):
            post = self.inbox.take_unroll(timeout_s if alone else min(timeout_s, MOMENT_S))
        taken = []
        with self._journal.timers.phase("taking"):
            while post:
                self._keep(post.message)
                taken.append(post)
                goes_on = not alone and self._feed.mixture.lacks(self._feed.num_fresh)
                post = self.inbox.take_unroll(0) if goes_on else None
        return taken

    def _keep(self, message: Message) -> None:
        assert message.unroll is not None
        self.counters.clock.note_first_step(message.acting_s)
        self._prefetch.wait()  # the oldest segments are about to be overwritten
        self._feed.insert(message.unroll, message.weights_version)
        self._trainer.algorithm.observe(message.unroll, message.peer)

    def _learn(self) -> None:
        """One update on the next batch."""
        counters = self.counters
        with self._journal.timers.phase("learning"):
            chosen, batch = self._prefetch.next_batch(counters.env_steps / self._config.schedule_end)
            update = self._trainer.update(batch, counters.env_steps)
            if update and update.taken:
                self._feed.set_priorities(chosen, update.priorities)
                lag = counters.updates - batch.weights_version  # [B]
                self._journal.means.add({**update.metrics, "policy_lag": lag.float().mean()})
                counters.count_update()
            elif update:
                self._skip()

    def _skip(self) -> None:
        log.warning("update %d was not finite and was skipped", self.counters.updates)
        self.counters.count_skipped()
        limit = self._config.learner.max_skipped_updates
        if self.counters.skipped_in_a_row >= limit:
            self._saver.save_weights()
            raise FloatingPointError(f"{limit} updates in a row were not finite; the weights before them are saved")

    def _agree(self, taken: list[Post]) -> Agreed:
        """Tells the other learners of this step, in which so much was `taken`, and goes by what all of them hold."""
        report = Report(
            steps=sum(post.message.unroll.num_steps for post in taken if post.message.unroll),
            fresh=self._feed.num_fresh,
            held=self._feed.replay.num_steps,
            is_full=self._feed.replay.is_full,
            stops=bool(self._stop_reason()),
            row_due=self._journal.due,
        )
        agreed = agree(report, self._ranks)
        self.counters.env_steps += agreed.num_steps
        self._feed.mixture.accept(agreed)
        return agreed

    # ── answers ──

    def _answer(self, posts: Iterable[Post]) -> None:
        with self._journal.timers.phase("taking"):
            for post in posts:
                if post.message.peer.role == "evaluator":
                    self._answer_evaluator(post)
                else:
                    self._answer_actor(post)

    def _answer_evaluator(self, post: Post) -> None:
        if row := self._evaluations.take(post):
            self._bulletin.note("evaluator", row, int(row["eval_env_steps"]))

    def _answer_actor(self, post: Post) -> None:
        message, updates = post.message, self.counters.updates
        for row in message.rows:
            self._bulletin.note(message.peer.name, row | {"policy_lag": updates - message.weights_version})
        reply = Reply(message.sequence, weights_version=updates)
        if message.wants_weights and message.weights_version < updates:
            policy = self._trainer.policy(updates)
            reply = dataclasses.replace(reply, weights=policy, env_steps=self.counters.env_steps)
        post.answer(reply)

    # ── what is due ──

    def _evaluate_and_save(self, agreed: Agreed) -> None:
        """The first learner does so when `env_steps` has passed a multiple of the interval in this step."""
        env_steps, new = self.counters.env_steps, agreed.num_steps if self._ranks.rank == 0 else 0
        if _passed_multiple(self._config.evaluation.every, env_steps, new):
            self._evaluations.offer(self._saver.snapshot())
        if _passed_multiple(self._config.checkpoint.every, env_steps, new):
            with self._journal.timers.phase("saving"):
                self.save()
            self.at_checkpoint = True

    def _stop_reason(self) -> str:
        stop = self._config.stop
        if self._evaluations.passed:
            return "at_return"
        if self.inbox.stop_reason:
            return self.inbox.stop_reason
        if self.counters.env_steps >= stop.env_steps:
            return "env_steps"
        return "minutes" if stop.minutes is not None and self.counters.clock.wall_s >= 60 * stop.minutes else ""

    def save(self) -> Path:
        """Writes the weights and all that a run needs to go on, or leaves it to the first learner; the weights' path."""
        self.counters.rows_length = self._journal.length
        return self._saver.save()

    def finish(self) -> Outcome:
        """Tells every peer to stop, writes the weights and the last rows, and sums the run up."""
        counters, wall_s = self.counters, self.counters.clock.wall_s
        self.inbox.stop(self._reason)
        self._evaluations.dismiss()
        self._bulletin.write_row()
        path = self.save()
        self.close()
        return Outcome(
            reason=self._reason,
            env_steps=counters.env_steps,
            updates=counters.updates,
            wall_s=wall_s,
            startup_s=counters.clock.startup_s,
            eval_return=self._evaluations.last,
            weights=str(path),
            folder=str(path.parent),
            skipped_updates=counters.skipped,
        )

    def close(self) -> None:
        """Closes the files of metrics, ends its threads and leaves the other learners."""
        self._ranks.close()
        self._journal.close()
        self._trainer.close()
        self._prefetch.close()


def _passed_multiple(interval: int, env_steps: int, new: int) -> bool:
    """Whether one of an `interval` (0: none) is among the last `new` of `env_steps`."""
    return bool(interval) and env_steps % interval < new
