"""Saving and restoring: the weights file, and the checkpoint of everything that a resumed run needs."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from apex_acer.config import ConfigError, RunConfig
from apex_acer.learner import stored_replay
from apex_acer.learner.batch_queue import BatchQueue
from apex_acer.learner.ranks import Ranks
from apex_acer.learner.reporting import Counters
from apex_acer.learner.snapshots import Evaluations, Snapshot
from apex_acer.learner.trainer import Trainer
from apex_acer.networks import weights
from apex_acer.networks.metadata import describe, require_match, written_by
from apex_acer.protocol.specification import Array, EnvironmentSpec
from apex_acer.replay.storage import Read
from apex_acer.storage import checkpoint
from apex_acer.storage.folder import where

WEIGHTS, TENSORS = "weights.safetensors", "tensors.safetensors"


class Saver:
    """Saves a learner in the run's folder and restores it from there.

    Of several learners only the first one uses the folder; it sends the others what it restores.
    """

    def __init__(
        self,
        config: RunConfig,
        spec: EnvironmentSpec,
        folder: Path,
        trainer: Trainer,
        queue: BatchQueue,
        evaluations: Evaluations,
        counters: Counters,
        ranks: Ranks,
    ) -> None:
        self._config, self._spec, self._folder, self._ranks = config, spec, folder, ranks
        self._algorithm, self._optimizer = trainer.algorithm, trainer.optimizer
        self._queue, self._evaluations, self._counters = queue, evaluations, counters
        self._saved: tuple[int, int, dict[str, Any]] | None = None  # what a checkpoint was written of last

    def snapshot(self) -> Snapshot:
        """The current weights, for an evaluation."""
        return Snapshot(self._counters.env_steps, self._counters.updates, self._weights_file())

    def _weights_file(self) -> bytes:
        """The bytes of a weights file; raises FloatingPointError if a tensor is not finite: it could not be loaded."""
        weights.require_finite(self._algorithm.tensors())
        counters, score = self._counters, self._evaluations.score
        metadata = describe(self._config, self._spec, score, env_steps=counters.env_steps, updates=counters.updates)
        return weights.pack(self._algorithm.tensors(), metadata)

    def save_weights(self) -> Path:
        """Writes the weights file, with the weights that reached `stop.at_return` if some have; returns its path."""
        path = where(self._folder) / WEIGHTS
        if self._ranks.rank == 0:
            weights.write(path, self._evaluations.passed or self._weights_file())
        return path

    def save(self) -> Path:
        """Writes the weights file and a checkpoint, if this is the first learner; returns the path of the weights file."""
        path, counters = self.save_weights(), self._counters
        moment = (counters.env_steps, counters.updates, self._evaluations.state()[0])
        if moment != self._saved and self._ranks.rank == 0:
            self._saved = moment
            self._write_checkpoint()
        return path

    def _write_checkpoint(self) -> None:
        evaluations, snapshots = self._evaluations.state()
        state = {
            **self._counters.state(),
            "spec": dataclasses.asdict(self._spec),
            "optimizer": self._optimizer.numbers(),
            "feed": self._queue.state(),
            "evaluations": evaluations,
        }
        tensors = self._algorithm.tensors() | self._optimizer.tensors() | {"rng.torch": torch.get_rng_state()}
        weights.require_finite(tensors)
        contents: dict[str, bytes | Array] = {TENSORS: weights.pack(tensors, {}), **snapshots}
        if self._config.saves_replay:
            storage = self._queue.storage
            state["replay"] = stored_replay.describe(storage.layout, len(storage), storage.oldest)
            contents |= {f"replay.{name}": array for name, array in self._queue.arrays().items()}
        checkpoint.write(where(self._folder), self._counters.updates, state, contents)

    def start(self, resume: bool) -> None:
        """Loads the newest checkpoint if `resume`, else `load` and `replay.load`; raises `ConfigError` if unfit."""
        if resume:
            self._restore()
            return
        if self._config.load and self._ranks.rank == 0:
            self._load_weights(self._config.load)
        if folder := self._config.replay.load:  # there is one learner
            stored_replay.load_replay(folder, self._config, self._spec, self._queue)
        self._ranks.align(list(self._algorithm.tensors().values()))

    def _load_weights(self, path: str) -> None:
        tensors, metadata = weights.read(path)
        try:
            require_match(metadata, self._config, self._spec)
            self._algorithm.load(tensors)
        except ConfigError as error:
            raise ConfigError(f"{path}: {str(error).removeprefix('weights: ')}{written_by(metadata)}") from None

    def _restore(self) -> None:
        if self._ranks.rank:
            state, data = self._ranks.collect(b"")[0], self._ranks.collect(b"")[0]
            self._take(json.loads(state), data, None)
            return
        saved = checkpoint.load_newest(self._folder)
        path = saved.path
        try:
            has_replay = any(name.startswith("replay.") for name in saved.names)
            read = functools.partial(stored_replay.read_array, saved) if has_replay else None
            self._take(saved.state, saved.read(TENSORS), read)
            self._evaluations.restore(saved.state["evaluations"], saved.read)
        except ConfigError as error:
            raise ConfigError(f"{path}: {str(error).removeprefix('weights: ').removeprefix(f'{path}/')}") from None
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            raise ConfigError(f"{path}: its state cannot be used ({type(error).__name__}: {error!s:.100})") from None
        self._ranks.collect(json.dumps(saved.state).encode())
        self._ranks.collect(saved.read(TENSORS))

    def _take(self, state: Mapping[str, Any], data: bytes, read: Read | None) -> None:
        tensors = weights.unpack(data)
        self._algorithm.load(tensors)
        self._optimizer.load(tensors, state["optimizer"])
        self._queue.restore(state["feed"], read)
        self._counters.restore(state)
        if self._ranks.rank == 0:  # the other learners keep their own generators
            torch.set_rng_state(tensors["rng.torch"])
