"""The learner: takes unrolls, keeps replay, updates the network, hands out weights, writes what there is to see."""

from __future__ import annotations

import dataclasses
import logging
import time
from pathlib import Path
from typing import Any

import torch

from apex_acer import checkpoint, imports, weights
from apex_acer.algorithms import algorithm_class
from apex_acer.card import describe, migrate, written_by
from apex_acer.config import ConfigError, RunConfig, require
from apex_acer.device import check_compiler, choose_device
from apex_acer.evaluations import Evaluations, Snapshot
from apex_acer.feed import make_feed
from apex_acer.gradient import Gradient, num_parts
from apex_acer.inbox import Inbox, Post
from apex_acer.messages import Reply, Row
from apex_acer.metrics import Means, Timers
from apex_acer.optimizer import make_optimizer
from apex_acer.result import TrainResult
from apex_acer.seeds import derive_seed
from apex_acer.trajectory import Array, EnvironmentSpec, Layout, layout
from apex_acer.transfer import on_device
from apex_acer.writers import Writers

log = logging.getLogger(__name__)


class Learner:
    """One screen of the outer loop; `step` does one thing at a time, so that stopping is prompt."""

    def __init__(
        self,
        config: RunConfig,
        spec: EnvironmentSpec,
        folder: Path,
        run_id: str,
        started_at: float,
        *,
        resume: bool = False,
    ) -> None:
        """With `resume` it goes on from the newest checkpoint in `folder`.

        Raises:
            ConfigError: where the device, the weights to load or the checkpoint do not fit.
        """
        self.device = choose_device(config.learner.device, "learner.device")
        torch.manual_seed(derive_seed(config.seed, "learner"))
        self._config, self._spec, self._folder, self._started_at = config, spec, folder, started_at
        algorithm = algorithm_class(config.algorithm.name)
        self._algorithm = algorithm(config, spec, self.device)
        if config.load and not resume:
            self._load(config.load)
        self._optimizer = make_optimizer(config, self._algorithm.network)
        parts = num_parts(config.learner.threads, config.learner.batch_size)
        on_cores = spec.is_image and self.device.type == "cpu"  # vectors are too small to share
        compiled = config.learner.compile and check_compiler()
        self._gradient = Gradient(self._algorithm, self._optimizer, parts if on_cores else 1, compiled)

        k = config.algorithm.unroll_length
        shapes = layout(spec, k, algorithm.behaviour_shapes(config, spec), algorithm.state_shapes(config))
        self._feed = make_feed(config, algorithm.feeding(config), shapes, self.device)
        if compiled:  # before anybody waits for it
            self._gradient.compute(on_device(self._feed.blank(), self.device))
        self._computes = f"{self.device}, {'bfloat16' if self._algorithm.network.precision else 'float32'}"
        log.info("learner on %s; replay holds up to %.0f MB", self._computes, self._feed.num_bytes / 1e6)
        self.inbox = make_inbox(config, spec, shapes, run_id)

        self._evaluations = Evaluations(folder, config.stop.at_return, config.evaluation)
        self._wire: tuple[int, bytes] = (-1, b"")  # version and bytes handed to actors
        self.env_steps = self.updates = self._skipped = self._skipped_in_a_row = 0
        self._resumed_at = time.monotonic() if resume else 0.0
        self._wall_before = self._startup_s = 0.0
        self._first_step_at = 0.0  # monotonic seconds; 0: none yet
        self._saved_at: tuple[int, int, float | None] | None = None
        self._rows_length = 0  # bytes on disk when what is resumed was saved
        self.at_checkpoint = False
        """Set where a checkpoint was written in the midst of the run."""
        self._reason = ""
        if resume:
            self._restore()

        self._writers = Writers(folder, self.env_steps if resume else None, self._rows_length)
        self._writers.describe(config)
        self._timers, self._means = Timers(), Means()
        self._rows: dict[str, Row] = {}
        self._row_at, self._updates_at_row = time.monotonic(), self.updates
        self._histograms_due = 0.0  # monotonic seconds
        self._callback = imports.load("learner.callback", config.learner.callback) if config.learner.callback else None

    # ── the loop ──

    @property
    def idle(self) -> bool:
        """Whether `step` would only wait."""
        return self.inbox.empty and not self._feed.ready

    def step(self, timeout_s: float) -> bool:
        """One update, or one unroll taken (waiting up to `timeout_s` seconds for it); False once the run is to end."""
        self.inbox.turns += 1
        while post := self.inbox.take_other():
            self._answer(post)
        if self._feed.ready:
            self._learn()
        else:
            with self._timers.phase("waiting"):
                taken = self.inbox.take_unroll(timeout_s)
            if taken:
                self._take(taken)
        self._write_rows()
        self._reason = self._reason or self._stop_reason()
        return not self._reason

    def finish(self) -> TrainResult:
        """Tells every peer to stop, writes the weights and the last rows, and sums the run up."""
        wall_s = self._wall_s()
        self.inbox.stop(self._reason)
        self._evaluations.dismiss()
        self._write_rows(last=True)
        path = self._save_checkpoint()
        self.close()
        return TrainResult(
            reason=self._reason,
            env_steps=self.env_steps,
            updates=self.updates,
            wall_s=wall_s,
            startup_s=self._startup_s,
            eval_return=self._evaluations.last,
            weights=str(path),
            folder=str(self._folder),
        )

    def close(self) -> None:
        """Closes the files of metrics and ends its threads."""
        self._writers.close()
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
        with self._timers.phase("learning"):
            batch = self._feed.next_batch(self.env_steps / self._config.stop.env_steps)
            lag = self.updates - batch.weights_version  # [B]
            if limit := self._config.replay.max_lag:
                batch = dataclasses.replace(batch, mask=batch.mask & ((lag <= limit) | batch.fresh))
                if not batch.mask.any():  # nothing to learn, and momentum alone must not move the weights
                    return
            output = self._gradient.compute(batch)
            norm, taken = self._optimizer.step(output.loss, self.env_steps)
            if taken:
                self._algorithm.after_step(output.metrics)
                self._feed.set_priorities(output.priorities)
                self.updates += 1
                self._skipped_in_a_row = 0
                self._means.add({**output.metrics, "grad_norm": norm, "policy_lag": lag.float().mean()})
            else:
                self._skip()

    def _skip(self) -> None:
        self._skipped += 1
        self._skipped_in_a_row += 1
        log.warning("update %d was not finite and was skipped", self.updates)
        limit = self._config.learner.max_skipped_updates
        if self._skipped_in_a_row >= limit:
            self._save()
            raise FloatingPointError(f"{limit} updates in a row were not finite; the weights before them are saved")

    # ── the conversation ──

    def _take(self, post: Post) -> None:
        """Puts an unroll into replay and answers it: from then on it is there exactly once."""
        with self._timers.phase("taking"):
            message, unroll = post.message, post.message.unroll
            assert unroll is not None
            self._note_start(message.acting_s)
            before = self.env_steps
            self._feed.insert(unroll, message.weights_version)
            self._algorithm.observe(unroll, message.peer)
            self.env_steps += unroll.num_steps
            self._answer(post)
            self._keep_schedule(before)

    def _note_start(self, acting_s: float) -> None:
        """An actor made its first step `acting_s` seconds ago: the wall clock runs from the earliest one on.

        What it did with the learner before this one was counted then.
        """
        at = max(time.monotonic() - acting_s, self._resumed_at)
        if not self._first_step_at or at < self._first_step_at:
            self._first_step_at = at
            self._startup_s = max(0.0, at - self._started_at)

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
        data = self._weights() if newer else None
        post.answer(Reply(message.sequence, weights_version=self.updates, weights=data))

    def _weights(self) -> bytes:
        """The newest policy as actors get it, packed once per version."""
        if self._wire[0] != self.updates:
            policy = {name: t for name, t in self._algorithm.tensors().items() if name.startswith("network.")}
            self._wire = self.updates, weights.pack(policy, {"weights_version": self.updates})
        return self._wire[1]

    def _keep_schedule(self, before: int) -> None:
        """Saves and evaluates when `env_steps` has passed a multiple of the interval since `before`."""
        if _passed_multiple(before, self.env_steps, self._config.evaluation.every):
            self._evaluations.offer(Snapshot(self.env_steps, self.updates, self._file()))
        if _passed_multiple(before, self.env_steps, self._config.checkpoint.every):
            with self._timers.phase("saving"):
                self._save_checkpoint()
            self.at_checkpoint = True

    # ── files and rows ──

    def _save_checkpoint(self) -> Path:
        """Writes the weights and all that a run needs to go on; returns the weights' path."""
        path = self._save()
        moment = (self.env_steps, self.updates, self._evaluations.last)
        if moment == self._saved_at:
            return path
        self._saved_at = moment
        evaluations, snapshot = self._evaluations.state()
        state = {
            "env_steps": self.env_steps,
            "updates": self.updates,
            "skipped": self._skipped,
            "wall_s": self._wall_s(),
            "rows_length": self._writers.length,
            "optimizer": self._optimizer.numbers(),
            "feed": self._feed.state(),
            "evaluations": evaluations,
        }
        tensors = self._algorithm.tensors() | self._optimizer.tensors() | {"rng.torch": torch.get_rng_state()}
        contents: dict[str, bytes | Array] = {"tensors.safetensors": weights.pack(tensors, {}), "snapshot": snapshot}
        if self._config.checkpoint.replay:
            contents |= {f"replay.{name}": array for name, array in self._feed.arrays().items()}
        checkpoint.write(self._folder, self.updates, state, contents)
        return path

    def _restore(self) -> None:
        """Goes on from the newest checkpoint; raises `ConfigError` where it is of another network, or damaged."""
        path = checkpoint.newest(self._folder)
        if path is None:
            raise ConfigError(f"{self._folder}: holds no whole checkpoint; give the folder of a run that has saved one")
        saved = checkpoint.load(path)
        state, has_replay = saved.state, any(name.startswith("replay.") for name in saved.names)
        try:
            tensors = weights.unpack(saved.read("tensors.safetensors"))
            self._algorithm.load(tensors)
            self._optimizer.load(tensors, state.get("optimizer", {}))
            fill = (lambda name, array: saved.read_into(f"replay.{name}", array)) if has_replay else None
            self._feed.restore(state["feed"], fill)
            self._evaluations.restore(state["evaluations"], saved.read("snapshot"))
            names = ("env_steps", "updates", "skipped", "rows_length")
            self.env_steps, self.updates, self._skipped, self._rows_length = (int(state[name]) for name in names)
            require(0 <= self.env_steps < 2**62, "env_steps", self.env_steps, "it is no count that curves can hold")
            self._wall_before = float(state["wall_s"])
            torch.set_rng_state(tensors["rng.torch"])
        except ConfigError as error:
            what = str(error).removeprefix("weights: ").removeprefix(f"{path}/")
            raise ConfigError(f"{path}: {what}") from None
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            what = f"{type(error).__name__}: {str(error)[:200]!r}"
            raise ConfigError(f"{path}: state of another kind ({what})") from None

    def _save(self) -> Path:
        path = self._folder / "weights.safetensors"
        weights.write(path, self._evaluations.passed or self._file())
        return path

    def _file(self) -> bytes:
        facts = {"env_steps": self.env_steps, "updates": self.updates}
        card = describe(self._config, self._spec, self._evaluations.score, **facts)
        return weights.pack(self._algorithm.tensors(), card)

    def _load(self, path: str) -> None:
        tensors, card = weights.read(path)
        try:
            name, mine = migrate(card).get("config", {}).get("algorithm", {}).get("name"), self._config.algorithm.name
            if name != mine:
                raise ConfigError(f"algorithm.name is {name!r}, this run's is {mine!r}")
            self._algorithm.load(tensors)
        except ConfigError as error:
            raise ConfigError(f"{path}: {str(error).removeprefix('weights: ')}{written_by(card)}") from None

    def _write_rows(self, *, last: bool = False) -> None:
        elapsed = time.monotonic() - self._row_at
        if elapsed < self._config.logging.every_seconds and not last:
            return
        row: Row = {
            **self._means.take(),
            **self._timers.shares(),
            "env_steps": self.env_steps,
            "frames": self.env_steps * self._spec.action_repeat,
            "updates": self.updates,
            "updates_per_s": (self.updates - self._updates_at_row) / max(elapsed, 1e-9),
            "skipped_updates": self._skipped,
            "replay_steps": self._feed.num_steps,
            "replay_ratio": self._feed.ratio,
            "fresh_segments": self._feed.num_fresh,
            "refused_messages": self.inbox.num_refused,
            "learning_rate": self._optimizer.learning_rate(self.env_steps),
        }
        if self._evaluations.best is not None:
            row["best_return"] = self._evaluations.best
        with self._timers.phase("saving"):
            self._note("learner", row, self.env_steps)
            self._write_histograms()
        if self._callback:
            with torch.no_grad():
                self._callback(self.env_steps, dict(row), self._algorithm.network)
        self._row_at, self._updates_at_row = time.monotonic(), self.updates

    def _write_histograms(self) -> None:
        every = self._config.logging.histograms_every_seconds
        if every and time.monotonic() >= self._histograms_due:
            self._writers.write_histograms(self.env_steps, self._algorithm.network)
            self._histograms_due = time.monotonic() + every

    def _note(self, source: str, row: Row, env_steps: int) -> None:
        self._writers.write(source, env_steps, self._wall_s(), row)
        self._rows = {**self._rows, source: {**self._rows.get(source, {}), **row}}
        self.inbox.status = self.status()

    def status(self) -> dict[str, Any]:
        """Live figures for the manager: each process's newest row, the best evaluation, where the learner computes in what,
        and how many bytes replay takes when full and a save may have to write of it.
        """
        return {
            "env_steps": self.env_steps,
            "wall_s": self._wall_s(),
            "best": self._evaluations.best,
            "learner": self._computes,
            "replay_memory": self._feed.num_bytes,
            "replay_bytes": self._feed.num_bytes if self._config.checkpoint.replay else 0,
            "rows": self._rows,
        }


def make_inbox(config: RunConfig, spec: EnvironmentSpec, shapes: Layout, run_id: str) -> Inbox:
    """The inbox of a run with `config.actors`."""
    waiting = config.actors.count * config.actors.max_unanswered
    return Inbox(run_id, shapes, config.actors.environments, spec.num_actions, waiting)


def _passed_multiple(before: int, after: int, interval: int) -> bool:
    return bool(interval) and before // interval != after // interval
