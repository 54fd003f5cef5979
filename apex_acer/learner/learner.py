"""The learner: puts unrolls into replay, updates the network, sends weights to actors, evaluates, saves and reports."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.filesize import decimal

from apex_acer.config import RunConfig
from apex_acer.learner.inbox import Barrier, Inbox, Post
from apex_acer.learner.parts import make_batch_queue
from apex_acer.learner.ranks import ALONE, Ranks
from apex_acer.learner.reporting import Counters, Reporter
from apex_acer.learner.saving import Saver
from apex_acer.learner.snapshots import Evaluations
from apex_acer.learner.trainer import Trainer
from apex_acer.networks.device import in_float32
from apex_acer.protocol.messages import Message, Outcome, Reply, Row
from apex_acer.protocol.metrics import CLIENT
from apex_acer.protocol.specification import EnvironmentSpec

log = logging.getLogger(__name__)

MAX_WAIT_S = 0.01  # for an unroll, because other learners wait for this one


class Learner:
    """The outer loop; `step` does one thing at a time, so that a run stops promptly.

    Several learners take each step together. Each has its own actors; the first one decides when to stop, evaluates, saves
    and writes the metrics.
    """

    @in_float32()  # with the serial engine an environment may have set another default
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
        """Continues from the newest checkpoint if `resume`; raises `ConfigError` if that or the device does not fit."""
        self._config, self._ranks, self._action_repeat = config, ranks, spec.action_repeat
        self._columns, self._waits = config.actors.environments, config.algorithm.waits
        self._has_replay = config.algorithm.replay_ratio > 0
        self._max_wait_s = math.inf if ranks is ALONE else MAX_WAIT_S
        self._trainer = Trainer(config, spec, ranks)
        layout = self._trainer.algorithm.agent.layout
        waiting = config.actors.count * config.max_unanswered
        slots = config.environment.remote.clients if config.environment.is_remote else 1
        self.inbox = Inbox(run_id, layout, self._columns, spec, waiting, slots)
        unrolls = config.learner.batch_size // ranks.count // self._columns  # in a batch; a whole number if actors wait
        self._barrier = Barrier(unrolls if self._waits else 0, self.inbox.is_current)
        self._queue = make_batch_queue(config, layout, self._trainer.device, ranks)
        log.info("learner on %s; replay holds up to %s", self._trainer.computes, decimal(self._queue.storage.num_bytes))
        self.counters = Counters(run_id, started_at)
        self._evaluations = Evaluations(folder, config.stop.at_return, config.evaluation)
        self._saver = Saver(config, spec, folder, self._trainer, self._queue, self._evaluations, self.counters, ranks)
        self._saver.start(resume)
        network = self._trainer.algorithm.network
        self._reporter = Reporter(
            config, folder, self.counters, network, self.inbox, self._status, ranks, resume=resume
        )
        self.at_checkpoint = False
        """Set when a checkpoint is written in the middle of the run."""
        self._reason = ""
        self._agree([])  # the replay that was restored may hold a batch already

    @property
    def idle(self) -> bool:
        """Whether `step` would only wait."""
        return self.inbox.empty and not self._queue.ready

    @in_float32()
    def step(self, timeout_s: float) -> bool:
        """Makes one update, or takes one unroll (waiting up to `timeout_s` seconds for it); False if the run ends."""
        self.inbox.turns += 1
        self._answer(iter(self.inbox.take_other, None))
        inserted: list[Post] = []
        if self._queue.ready:
            self._learn()
        else:
            inserted = self._take(min(timeout_s, self._max_wait_s))
        new_steps, stops, row_due = self._agree(inserted)
        self._answer(inserted)  # an unroll is answered when it is in replay, before the update on it
        self._evaluate_and_save(new_steps)
        if row_due:
            self._report()
        if stops or self._budget_is_used:
            self._reason = self._stop_reason() or "env_steps"
        return not self._reason

    def _take(self, timeout_s: float) -> list[Post]:
        """Puts one unroll into replay, of several learners as many as a batch needs; they must then be answered."""
        with self._reporter.timers.phase("waiting"):
            post = self.inbox.take_unroll(timeout_s)
        inserted = []
        with self._reporter.timers.phase("taking"):
            while post:
                if refused := self._barrier.refusal(post.message, self.counters.updates):
                    self.inbox.count_refused(f"{post.message.peer.name}: {refused}")
                    post.answer(Reply(post.message.sequence, refused=refused))
                else:
                    self._insert(post.message)
                    inserted.append(post)
                post = self.inbox.take_unroll(0) if self._queue.takes_more else None
        return inserted

    def _insert(self, message: Message) -> None:
        assert message.unroll is not None
        self.counters.note_first_step(message.acting_s)
        self._queue.insert(message.unroll, message.weights_version)
        self._trainer.algorithm.observe(message.unroll, (message.peer, message.slot))

    def _learn(self) -> None:
        counters = self.counters
        with self._reporter.timers.phase("learning"):
            batch = self._queue.next_batch(counters.env_steps / self._config.schedule_end)
            lag = counters.updates - batch.weights_version  # [B]
            update = self._trainer.update(batch, counters.env_steps, counters.updates)
            counters.updates += len(update.metrics)
            for metrics in update.metrics:
                self._reporter.means.add(metrics)
            if update.metrics:
                self._reporter.means.add({"policy_lag": lag.float().mean()})
                counters.skipped_in_a_row = 0
            if update.priorities is not None:
                self._queue.set_priorities(update.priorities)
            if update.num_skipped:
                self._skip(update.num_skipped)

    def _skip(self, num: int) -> None:
        self.counters.skipped += num
        self.counters.skipped_in_a_row += num
        limit = self._config.learner.max_skipped_updates
        if self.counters.skipped_in_a_row >= limit:
            self._saver.save_weights()
            raise FloatingPointError(f"{limit} updates in a row were not finite; the weights before them are saved")

    def _agree(self, inserted: list[Post]) -> tuple[int, bool, bool]:
        """The environment steps that all learners have inserted, whether the run stops, and whether a row is due."""
        steps = sum(post.message.num_steps for post in inserted)
        new_steps, stops, row_due = self._queue.agree(steps, bool(self._stop_reason()), self._reporter.due)
        self.counters.env_steps += new_steps
        return new_steps, stops, row_due

    def _answer(self, posts: Iterable[Post]) -> None:
        with self._reporter.timers.phase("taking"):
            for post in posts:
                message = post.message
                if message.peer.role == "actor":
                    lag = self.counters.updates - message.weights_version
                    for row in message.rows:
                        self._reporter.log(message.peer.name, row | {"policy_lag": lag})
                    for name, row in message.clients.items():
                        self._reporter.log(f"{CLIENT}_{name}", row)
                    self._barrier.put(post)
                elif row := self._evaluations.take(post):
                    self._reporter.log("evaluator", row, int(row["eval_env_steps"]))
            # actors that wait for updates wait for the replayed batches that are due, too
            if not (self._waits and self._has_replay and self._queue.ready):
                for post in self._barrier.release(self._queue.num_fresh // self._columns):
                    self._answer_actor(post)

    def _answer_actor(self, post: Post) -> None:
        message, updates = post.message, self.counters.updates
        reply = Reply(message.sequence, weights_version=updates)
        if (message.wants_weights or self._waits) and message.weights_version < updates:
            policy = self._trainer.policy(updates)
            reply = dataclasses.replace(reply, weights=policy, env_steps=self.counters.env_steps)
        post.answer(reply)

    def _evaluate_and_save(self, new_steps: int) -> None:
        """Evaluates and saves, in the first learner, if `env_steps` has passed a multiple of the interval in this step."""
        env_steps, new = self.counters.env_steps, new_steps if self._ranks.rank == 0 else 0
        if _passed_multiple(self._config.evaluation.every, env_steps, new):
            self._evaluations.offer(self._saver.snapshot())
        if _passed_multiple(self._config.checkpoint.every, env_steps, new):
            with self._reporter.timers.phase("saving"):
                self.save()
            self.at_checkpoint = True

    def _stop_reason(self) -> str:
        stop = self._config.stop
        if self._evaluations.passed:
            return "at_return"
        if self._budget_is_used:
            return "env_steps"
        if stop.minutes is not None and self.counters.wall_s >= 60 * stop.minutes:
            return "minutes"
        return self.inbox.stop_reason

    def _report(self) -> None:
        """Writes the learner's row; an error in the user's callback ends the run, which is saved first."""
        row = self._reporter.log_learner(self._figures())
        try:
            self._reporter.show(row)
        except BaseException:
            self.save()
            raise

    def _figures(self) -> Row:
        """The metrics of this moment in the learner's row."""
        counters, best = self.counters, self._evaluations.best
        learning_rate = self._trainer.optimizer.learning_rate(counters.env_steps)
        return {
            "env_steps": counters.env_steps,
            "frames": counters.env_steps * self._action_repeat,
            "updates": counters.updates,
            "skipped_updates": counters.skipped,
            **self._queue.figures(),
            "refused_messages": self.inbox.num_refused,
            **({"learning_rate": learning_rate} if self._config.algorithm.has_optimizer else {}),
            **({} if best is None else {"best_return": best}),
        }

    def _status(self) -> dict[str, Any]:
        """Live figures for the manager."""
        counters, replay_memory = self.counters, self._queue.storage.num_bytes  # bytes, when it is full
        return {
            "env_steps": counters.env_steps,
            "wall_s": counters.wall_s,
            "startup_s": counters.startup_s,
            "best": self._evaluations.best,
            "learner": self._trainer.computes,
            "replay_memory": replay_memory,
            "replay_bytes": replay_memory if self._config.saves_replay else 0,  # that a save may have to write
        }

    @property
    def _budget_is_used(self) -> bool:
        """Whether the environment steps are over and, without replay, every whole batch of them was learned from."""
        learns = not self._config.algorithm.replay_ratio and self._queue.ready
        return self.counters.env_steps >= self._config.stop.env_steps and not learns

    def forget_peers(self) -> None:
        """Drops all waiting messages; actors and evaluator start anew, as with a learner that has just resumed."""
        self._barrier.clear()
        self._trainer.pack_again()
        self.inbox.forget_peers()

    def save(self) -> Path:
        """Writes the weights file and a checkpoint, if this is the first learner; returns the path of the weights file."""
        self.counters.rows_length = self._reporter.length
        return self._saver.save()

    def finish(self) -> Outcome:
        """Tells every peer to stop, writes the weights and the last row, and returns how the run ended."""
        counters, wall_s = self.counters, self.counters.wall_s
        self.inbox.stop(self._reason, self._barrier.clear())
        self._evaluations.dismiss()
        self._report()
        path = self.save()
        self.close()
        return Outcome(
            reason=self._reason,
            env_steps=counters.env_steps,
            updates=counters.updates,
            wall_s=wall_s,
            startup_s=counters.startup_s,
            eval_return=self._evaluations.last,
            weights=str(path),
            folder=str(path.parent),
            skipped_updates=counters.skipped,
        )

    def close(self) -> None:
        self._ranks.close()
        self._reporter.close()
        self._trainer.close()
        self._queue.close()


def _passed_multiple(interval: int, env_steps: int, new: int) -> bool:
    """Whether a multiple of `interval` (0: never) is among the last `new` of `env_steps`."""
    return bool(interval) and env_steps % interval < new
