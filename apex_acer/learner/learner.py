"""The learner: takes unrolls, keeps replay, updates the network, hands out weights, writes what there is to see."""

from __future__ import annotations

import dataclasses
import logging
import time
from pathlib import Path
from typing import Any

import torch
from rich.filesize import decimal

from apex_acer.algorithms import algorithm_class
from apex_acer.config import RunConfig
from apex_acer.config.seeds import derive_seed
from apex_acer.learner.feed import make_feed
from apex_acer.learner.gradient import Gradient, num_parts
from apex_acer.learner.journal import Journal
from apex_acer.learner.optimizer import make_optimizer
from apex_acer.learner.ranks import ALONE, Ranks
from apex_acer.learner.saving import Counters, Saver
from apex_acer.learner.snapshots import Evaluations, Snapshot
from apex_acer.networks import weights
from apex_acer.networks.device import check_compiler, choose_device
from apex_acer.protocol.inbox import Inbox, Post
from apex_acer.protocol.messages import Reply, Row
from apex_acer.protocol.outcome import Outcome
from apex_acer.protocol.trajectory import EnvironmentSpec, Layout, layout
from apex_acer.replay.transfer import on_device

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
            ConfigError: where the device, the weights to load or the checkpoint do not fit.
        """
        self.device = choose_device(config.learner.device, "learner.device")
        torch.manual_seed(derive_seed(config.seed, "learner"))
        self._config, self._spec, self._folder, self._started_at = config, spec, folder, started_at
        algorithm = algorithm_class(config.algorithm.name)
        self._algorithm = algorithm(config, spec, self.device)
        self._optimizer = make_optimizer(config, self._algorithm.network)
        parts = num_parts(config.learner.threads, config.learner.batch_size // ranks.count)
        on_cores = spec.is_image and self.device.type == "cpu"  # vectors are too small to share
        compiled = config.learner.compile and check_compiler()
        self._gradient = Gradient(self._algorithm, self._optimizer, parts if on_cores else 1, compiled, ranks)

        k = config.algorithm.unroll_length
        shapes = layout(spec, k, algorithm.behaviour_shapes(config, spec), algorithm.state_shapes(config))
        self._feed = make_feed(config, algorithm.feeding(config), shapes, self.device, ranks)
        if compiled:  # before anybody waits for it
            self._gradient.compute_own(on_device(self._feed.blank(), self.device))
        self._computes = f"{self.device}, {'bfloat16' if self._algorithm.network.precision else 'float32'}"
        log.info("learner on %s; replay holds up to %s", self._computes, decimal(self._feed.num_bytes))
        self.inbox = make_inbox(config, spec, shapes, run_id)

        self._evaluations = Evaluations(folder, config.stop.at_return, config.evaluation)
        parts_saved = self._algorithm, self._optimizer, self._feed, self._evaluations
        self._ranks, self._saver = ranks, Saver(config, spec, folder, *parts_saved, ranks)
        begun = self._saver.restore() if resume else self._saver.begin()
        self.env_steps, self.updates, self._skipped, self._wall_before = begun[:4]
        resumed_at = self.env_steps if resume else None
        self._journal = Journal(config, folder, self._algorithm.network, ranks, resumed_at, begun.rows_length)
        self._wire: tuple[int, bytes] = (-1, b"")  # version and bytes handed to actors
        self._skipped_in_a_row = 0
        self._resumed_at = time.monotonic() if resume else 0.0
        self._first_step_at = 0.0  # monotonic seconds; 0: none yet
        self._run_id = run_id
        # one that goes on within the program keeps the program's
        self._startup_s = begun.startup_s if begun.run_id == run_id else 0.0
        self._updates_at_row = self.updates
        self.at_checkpoint = False
        """Set where a checkpoint was written in the midst of the run."""
        self._reason = ""

    # ── the loop ──

    @property
    def idle(self) -> bool:
        """Whether `step` would only wait."""
        return self.inbox.empty and not self._feed.ready

    def step(self, timeout_s: float) -> bool:
        """One update, or one unroll taken (waiting up to `timeout_s` seconds for it); False once the run is to end.

        One of several learners takes as many as a batch needs, and the others wait for it no longer than a moment.
        """
        self.inbox.turns += 1
        while post := self.inbox.take_other():
            self._answer(post)
        taken = []
        if self._feed.ready:
            self._learn()
        else:
            taken = self._take(timeout_s if self._ranks is ALONE else min(timeout_s, MOMENT_S))
        self._agree(taken)
        return not self._reason

    def finish(self) -> Outcome:
        """Tells every peer to stop, writes the weights and the last rows, and sums the run up."""
        wall_s = self._wall_s()
        self.inbox.stop(self._reason)
        self._evaluations.dismiss()
        self._write_rows()
        path = self.save()
        self.close()
        return Outcome(
            reason=self._reason,
            env_steps=self.env_steps,
            updates=self.updates,
            wall_s=wall_s,
            startup_s=self._startup_s,
            eval_return=self._evaluations.last,
            weights=str(path),
            folder=str(self._folder),
            skipped_updates=self._skipped,
        )

    def save(self) -> Path:
        """Writes the weights and all that a run needs to go on, or leaves it to the first learner; the weights' path."""
        return self._saver.save(self._counters())

    def close(self) -> None:
        """Closes the files of metrics, ends its threads and leaves the other learners."""
        self._ranks.close()
        self._journal.close()
        self._gradient.close()
        self._feed.close()

    def _stop_reason(self) -> str:
        stop = self._config.stop
        if self._evaluations.passed:
            return "at_return"
        if self.inbox.stop_reason:
            return self.inbox.stop_reason
        if self.env_steps >= stop.env_steps:
            return "env_steps"
        return "minutes" if stop.minutes is not None and self._wall_s() >= 60 * stop.minutes else ""

    def _wall_s(self) -> float:
        return self._wall_before + (time.monotonic() - self._first_step_at if self._first_step_at else 0.0)

    # ── learning ──

    def _learn(self) -> None:
        """One optimizer step on the next batch."""
        with self._journal.timers.phase("learning"):
            batch = self._feed.next_batch(self.env_steps / self._config.schedule_end)
            lag = self.updates - batch.weights_version  # [B]
            output = self._gradient.compute(batch)
            if not output.num_samples:  # the optimizer's momentum alone must not move the weights
                return
            norm, taken = self._optimizer.step(output.loss, self.env_steps)
            if taken:
                self._algorithm.after_step(output.metrics)
                self._feed.set_priorities(output.priorities)
                self.updates += 1
                self._skipped_in_a_row = 0
                self._journal.means.add({**output.metrics, "grad_norm": norm, "policy_lag": lag.float().mean()})
            else:
                self._skip()

    def _skip(self) -> None:
        self._skipped += 1
        self._skipped_in_a_row += 1
        log.warning("update %d was not finite and was skipped", self.updates)
        limit = self._config.learner.max_skipped_updates
        if self._skipped_in_a_row >= limit:
            self._saver.save_weights(self._counters())
            raise FloatingPointError(f"{limit} updates in a row were not finite; the weights before them are saved")

    # ── the conversation ──

    def _take(self, timeout_s: float) -> list[Post]:
        """Puts unrolls into replay, where each is from then on exactly once; they are yet to be answered."""
        with self._journal.timers.phase("waiting"):
            post = self.inbox.take_unroll(timeout_s)
        taken: list[Post] = []
        with self._journal.timers.phase("taking"):
            while post:
                message, unroll = post.message, post.message.unroll
                assert unroll is not None
                self._note_start(message.acting_s)
                self._feed.insert(unroll, message.weights_version)
                self._algorithm.observe(unroll, message.peer)
                taken.append(post)
                post = self.inbox.take_unroll(0) if self._feed.lacks and self._ranks is not ALONE else None
        return taken

    def _agree(self, taken: list[Post]) -> None:
        """Tells the other learners of this step, in which so much was `taken`, and does what is due for all of them."""
        steps = sum(post.message.unroll.num_steps for post in taken if post.message.unroll)
        mine = steps, bool(self._stop_reason()), self._journal.due, *self._feed.offer()
        said = self._ranks.gather(mine)  # [ranks, 7]
        before, (_, stops, row_due, *_) = self.env_steps, said[0]
        self.env_steps += int(said[:, 0].sum())
        if self._ranks is not ALONE:
            self._feed.accept(said[:, 3:])
        with self._journal.timers.phase("taking"):
            for post in taken:
                self._answer(post)
        if self._ranks.rank == 0:
            self._keep_schedule(before)
        if row_due:
            self._write_rows()
        if stops or self.env_steps >= self._config.stop.env_steps:
            self._reason = self._stop_reason() or "env_steps"

    def _note_start(self, acting_s: float) -> None:
        """An actor made its first step `acting_s` seconds ago: the wall clock runs from the earliest one on.

        What it did with the learner before this one was counted then. The program's start-up ends with the earliest, too.
        """
        at = time.monotonic() - acting_s
        startup_s = max(0.0, at - self._started_at)
        self._startup_s = min(self._startup_s or startup_s, startup_s)
        at = max(at, self._resumed_at)
        self._first_step_at = min(self._first_step_at or at, at)

    def _answer(self, post: Post) -> None:
        message = post.message
        if message.peer.role == "evaluator":
            if row := self._evaluations.take(post):
                self._note("evaluator", row, int(row["eval_env_steps"]))
            return
        lag = {"policy_lag": self.updates - message.weights_version}
        for row in message.rows:
            self._note(message.peer.name, row | lag, self.env_steps)
        newer = message.wants_weights and message.weights_version < self.updates
        reply = Reply(message.sequence, weights_version=self.updates)
        post.answer(dataclasses.replace(reply, weights=self._weights(), env_steps=self.env_steps) if newer else reply)

    def _weights(self) -> bytes:
        """The newest policy as actors get it, packed once per version."""
        if self._wire[0] != self.updates:
            self._wire = self.updates, weights.pack_policy(self._algorithm.tensors(), self.updates)
        return self._wire[1]

    def _keep_schedule(self, before: int) -> None:
        """Saves and evaluates when `env_steps` has passed a multiple of the interval since `before`."""
        if _passed_multiple(before, self.env_steps, self._config.evaluation.every):
            self._evaluations.offer(Snapshot(self.env_steps, self.updates, self._saver.file(self._counters())))
        if _passed_multiple(before, self.env_steps, self._config.checkpoint.every):
            with self._journal.timers.phase("saving"):
                self.save()
            self.at_checkpoint = True

    # ── files and rows ──

    def _counters(self) -> Counters:
        program = self._run_id, self._startup_s
        return Counters(self.env_steps, self.updates, self._skipped, self._wall_s(), self._journal.length, *program)

    def _write_rows(self) -> None:
        updates_per_s = (self.updates - self._updates_at_row) / max(self._journal.elapsed_s, 1e-9)
        self._updates_at_row = self.updates
        facts: Row = {
            "env_steps": self.env_steps,
            "frames": self.env_steps * self._spec.action_repeat,
            "updates": self.updates,
            "updates_per_s": updates_per_s,
            "skipped_updates": self._skipped,
            "replay_steps": self._feed.num_steps,
            "replay_ratio": self._feed.ratio,
            "fresh_segments": self._feed.num_fresh,
            "refused_messages": self.inbox.num_refused,
            "learning_rate": self._optimizer.learning_rate(self.env_steps),
        }
        if self._evaluations.best is not None:
            facts["best_return"] = self._evaluations.best
        self._journal.note_learner(facts, self.env_steps, self._wall_s())
        self.inbox.status = self.status()

    def _note(self, source: str, row: Row, env_steps: int) -> None:
        self._journal.note(source, row, env_steps, self._wall_s())
        self.inbox.status = self.status()

    def status(self) -> dict[str, Any]:
        """Live figures for the manager: each process's newest row, the best evaluation, where the learner computes in what,
        and how many bytes replay takes when full and a save may have to write of it.
        """
        return {
            "env_steps": self.env_steps,
            "wall_s": self._wall_s(),
            "startup_s": self._startup_s,
            "best": self._evaluations.best,
            "learner": self._computes,
            "replay_memory": self._feed.num_bytes,
            "replay_bytes": self._feed.num_bytes if self._config.checkpoint.replay else 0,
            "rows": self._journal.rows,
        }


def make_inbox(config: RunConfig, spec: EnvironmentSpec, shapes: Layout, run_id: str) -> Inbox:
    """The inbox of a run with `config.actors`."""
    waiting = config.actors.count * config.actors.max_unanswered
    return Inbox(run_id, shapes, config.actors.environments, spec.num_actions, waiting)


def _passed_multiple(before: int, after: int, interval: int) -> bool:
    return bool(interval) and before // interval != after // interval
