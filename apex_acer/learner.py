"""The learner: takes unrolls, keeps replay, updates the network, hands out weights, writes what there is to see."""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections import deque
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from apex_acer import weights
from apex_acer.algorithms import algorithm_class
from apex_acer.config import ConfigError, RunConfig
from apex_acer.evaluations import Evaluations, Snapshot
from apex_acer.inbox import Inbox, Post
from apex_acer.messages import Reply, Row
from apex_acer.metrics import Means, Timers
from apex_acer.optimizer import Optimizer
from apex_acer.pace import Pace
from apex_acer.policy import describe
from apex_acer.replay import UniformReplay
from apex_acer.result import TrainResult
from apex_acer.seeds import derive_seed
from apex_acer.trajectory import Batch, EnvironmentSpec, Layout, layout
from apex_acer.writers import Writers

log = logging.getLogger(__name__)


class Learner:
    """One screen of ACER's outer loop; `step` does one thing at a time, so that stopping is prompt."""

    def __init__(self, config: RunConfig, spec: EnvironmentSpec, folder: Path, run_id: str, started_at: float) -> None:
        """Raises `ConfigError` where the device or the weights to load do not fit."""
        self.device = choose_device(config.learner.device)
        torch.manual_seed(derive_seed(config.seed, "learner"))
        self._config, self._spec, self._folder, self._started_at = config, spec, folder, started_at
        algorithm = algorithm_class(config.algorithm.name)
        self._algorithm = algorithm(config, spec, self.device)
        if config.load:
            self._load(config.load)
        self._optimizer = Optimizer(config, self._algorithm.network)

        k, batch_size = config.algorithm.unroll_length, config.learner.batch_size
        shapes = layout(spec, k, algorithm.behaviour_shapes(spec), algorithm.state_shapes(config))
        self._replay = UniformReplay(shapes, config.replay.capacity // k, derive_seed(config.seed, "learner", 1))
        log.info("replay holds up to %.0f MB", self._replay.num_bytes / 1e6)
        self._pace = make_pace(config)
        self._fresh: deque[int] = deque()  # slots accepted and not yet trained on
        self._batch_steps = batch_size * k
        self._fresh_in_batch = fresh_in_batch(config)
        self.inbox = make_inbox(config, spec, shapes, run_id)

        self._evaluations = Evaluations(folder, config.stop.at_return)
        self._wire: tuple[int, bytes] = (-1, b"")  # version and bytes handed to actors
        self.env_steps = self.updates = self._skipped = self._skipped_in_a_row = 0
        self._first_step_at = 0.0
        self._reason = ""

        self._writers = Writers(folder)
        self._timers, self._means = Timers(), Means()
        self._rows: dict[str, Row] = {}
        self._row_at, self._updates_at_row = time.monotonic(), 0

    # ── the loop ──

    @property
    def idle(self) -> bool:
        """Whether `step` would only wait."""
        return self.inbox.empty and not self._owes_replay() and len(self._fresh) < self._fresh_in_batch

    def step(self, timeout_s: float) -> bool:
        """One update, or one unroll taken (waiting up to `timeout_s` seconds for it); False once the run is to end."""
        while post := self.inbox.take_other():
            self._answer(post)
        if self._owes_replay():
            self._learn_replayed()
        elif len(self._fresh) >= self._fresh_in_batch:
            self._learn_fresh()
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
        path = self._save()
        self._write_rows(last=True)
        self.close()
        startup_s = max(0.0, self._first_step_at - self._started_at) if self._first_step_at else 0.0
        return TrainResult(
            reason=self._reason,
            env_steps=self.env_steps,
            updates=self.updates,
            wall_s=wall_s,
            startup_s=startup_s,
            eval_return=self._evaluations.last,
            weights=str(path),
        )

    def close(self) -> None:
        """Closes the files of metrics."""
        self._writers.close()

    def _owes_replay(self) -> bool:
        return self._pace.owes(self._batch_steps)

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
        return time.time() - self._first_step_at if self._first_step_at else 0.0

    # ── learning ──

    def _learn_fresh(self) -> None:
        """One update on segments that were not trained on yet; with `algorithm.mix` joint, on replayed ones beside them."""
        slots = torch.tensor([self._fresh.popleft() for _ in range(self._fresh_in_batch)])
        steps = self._replay.count_steps(slots)
        ready = self._replay.num_steps >= self._config.replay.start
        beside = self._config.learner.batch_size - self._fresh_in_batch if ready else 0
        replayed = self._replay.draw(beside)
        if self._algorithm.fresh:
            self._update(torch.cat([slots, replayed]), self._fresh_in_batch)
        if ready:
            self._pace.count_fresh(steps)
            self._pace.count_replayed(self._replay.count_steps(replayed))

    def _learn_replayed(self) -> None:
        slots = self._replay.draw(self._config.learner.batch_size)
        self._pace.count_replayed(self._replay.count_steps(slots))
        self._update(slots, 0)

    def _update(self, slots: Tensor, num_fresh: int) -> None:
        """One optimizer step on the segments in `slots`, of which the first `num_fresh` are fresh."""
        with self._timers.phase("learning"):
            batch = self._replay.gather(slots, num_fresh)
            lag = self.updates - batch.weights_version  # [B]
            if limit := self._config.replay.max_lag:
                batch = dataclasses.replace(batch, mask=batch.mask & ((lag <= limit) | batch.fresh))
                if not batch.mask.any():  # nothing to learn, and momentum alone must not move the weights
                    return
            output = self._algorithm.loss(_to(batch, self.device))
            norm, taken = self._optimizer.step(output.loss, self.env_steps)
            if taken:
                self._algorithm.after_step()
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
            self._first_step_at = min(self._first_step_at or message.first_step_at, message.first_step_at)
            before = self.env_steps
            self._fresh.extend(self._replay.insert(unroll, message.weights_version).tolist())
            self._algorithm.observe(unroll, message.peer)
            self.env_steps += unroll.num_steps
            self._answer(post)
            self._keep_schedule(before)

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
        if _passed_multiple(before, self.env_steps, self._config.checkpoint.every):
            with self._timers.phase("saving"):
                self._save()
        if _passed_multiple(before, self.env_steps, self._config.evaluation.every):
            self._evaluations.offer(Snapshot(self.env_steps, self.updates, self._file()))

    # ── files and rows ──

    def _save(self) -> Path:
        path = self._folder / "weights.safetensors"
        weights.write(path, self._evaluations.passed or self._file())
        return path

    def _file(self) -> bytes:
        facts = {"env_steps": self.env_steps, "updates": self.updates}
        return weights.pack(self._algorithm.tensors(), describe(self._config, self._spec, **facts))

    def _load(self, path: str) -> None:
        tensors, metadata = weights.read(path)
        name, mine = metadata.get("config", {}).get("algorithm", {}).get("name"), self._config.algorithm.name
        if name != mine:
            raise ConfigError(f"{path}: algorithm.name is {name!r}, this run's is {mine!r}")
        try:
            self._algorithm.load(tensors)
        except ConfigError as error:
            raise ConfigError(f"{path}: {str(error).removeprefix('weights: ')}") from None

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
            "replay_steps": self._replay.num_steps,
            "replay_ratio": self._pace.ratio,
            "fresh_segments": len(self._fresh),
            "refused_messages": self.inbox.num_refused,
            "learning_rate": self._optimizer.learning_rate(self.env_steps),
        }
        with self._timers.phase("saving"):
            self._note("learner", row, self.env_steps)
        self._row_at, self._updates_at_row = time.monotonic(), self.updates

    def _note(self, source: str, row: Row, env_steps: int) -> None:
        self._writers.write(source, env_steps, self._wall_s(), row)
        self._rows = {**self._rows, source: {**self._rows.get(source, {}), **row}}
        self.inbox.status = self.status()

    def status(self) -> dict[str, Any]:
        """Live figures for the manager's view: the newest row of each process, and the best evaluation."""
        figures = {"env_steps": self.env_steps, "wall_s": self._wall_s(), "best": self._evaluations.best}
        return {**figures, "rows": self._rows}


def choose_device(name: str) -> torch.device:
    """The device `learner.device` names; raises `ConfigError` where it is not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        there = torch.cuda.device_count()
        raise ConfigError(
            f"learner.device: {name!r} is not there; this machine has {there} CUDA devices; give cpu or auto"
        )
    return device


def fresh_in_batch(config: RunConfig) -> int:
    """Fresh segments per update: all of a batch, or with `algorithm.mix` joint their share of it."""
    joint = config.algorithm.mix == "joint"
    return math.ceil(config.learner.batch_size / (1 + config.algorithm.replay_ratio if joint else 1))


def make_pace(config: RunConfig) -> Pace:
    """The run's replay ratio; joint batches hold their replay in themselves, so nothing is drawn for them."""
    settings = config.algorithm
    draw = "fixed" if settings.mix == "joint" else settings.replay_draw
    return Pace(settings.replay_ratio, derive_seed(config.seed, "learner", 2), draw)


def make_inbox(config: RunConfig, spec: EnvironmentSpec, shapes: Layout, run_id: str) -> Inbox:
    """The inbox of a run with `config.actors`."""
    waiting = config.actors.count * config.actors.max_unanswered
    return Inbox(run_id, shapes, config.actors.environments, spec.num_actions, waiting)


def _passed_multiple(before: int, after: int, interval: int) -> bool:
    return bool(interval) and before // interval != after // interval


def _to(batch: Batch, device: torch.device) -> Batch:
    if device.type == "cpu":
        return batch
    moved: dict[str, Any] = {
        name: {key: t.to(device) for key, t in field.items()} if isinstance(field, dict) else field.to(device)
        for name, field in vars(batch).items()
    }
    return Batch(**moved)
