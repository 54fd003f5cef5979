"""What a learner writes and goes on from: the weights file, and the checkpoint of everything that a run needs."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch

from apex_acer import checkpoint, weights
from apex_acer.algorithms.algorithm import Algorithm
from apex_acer.card import describe, migrate, written_by
from apex_acer.config import ConfigError, RunConfig, require
from apex_acer.evaluations import Evaluations
from apex_acer.feed import Feed
from apex_acer.optimizer import Optimizer
from apex_acer.trajectory import Array, EnvironmentSpec


class Counters(NamedTuple):
    """How far a run is."""

    env_steps: int = 0
    updates: int = 0
    skipped: int = 0
    """Updates that were not finite."""
    wall_s: float = 0.0
    rows_length: int = 0
    """Bytes of its rows on disk."""


class Saver:
    """Writes the parts of a learner into the run's folder, and restores them from there."""

    def __init__(
        self,
        config: RunConfig,
        spec: EnvironmentSpec,
        folder: Path,
        algorithm: Algorithm,
        optimizer: Optimizer,
        feed: Feed,
        evaluations: Evaluations,
    ) -> None:
        self._config, self._spec, self._folder = config, spec, folder
        self._algorithm, self._optimizer = algorithm, optimizer
        self._feed, self._evaluations = feed, evaluations
        self._saved: tuple[int, int, float | None] | None = None

    def file(self, counters: Counters) -> bytes:
        """A weights file."""
        facts = {"env_steps": counters.env_steps, "updates": counters.updates}
        return weights.pack(
            self._algorithm.tensors(), describe(self._config, self._spec, self._evaluations.score, **facts)
        )

    def save_weights(self, counters: Counters) -> Path:
        """Writes the weights file, of those that reached the target where some have; returns its path."""
        path = self._folder / "weights.safetensors"
        weights.write(path, self._evaluations.passed or self.file(counters))
        return path

    def save(self, counters: Counters) -> Path:
        """Writes the weights and all that a run needs to go on; returns the weights' path."""
        path = self.save_weights(counters)
        moment = (counters.env_steps, counters.updates, self._evaluations.last)
        if moment == self._saved:
            return path
        self._saved = moment
        evaluations, snapshot = self._evaluations.state()
        state = {
            **counters._asdict(),
            "optimizer": self._optimizer.numbers(),
            "feed": self._feed.state(),
            "evaluations": evaluations,
        }
        tensors = self._algorithm.tensors() | self._optimizer.tensors() | {"rng.torch": torch.get_rng_state()}
        contents: dict[str, bytes | Array] = {"tensors.safetensors": weights.pack(tensors, {}), "snapshot": snapshot}
        if self._config.checkpoint.replay:
            contents |= {f"replay.{name}": array for name, array in self._feed.arrays().items()}
        checkpoint.write(self._folder, counters.updates, state, contents)
        return path

    def load_weights(self, path: str) -> None:
        """Begins with a weights file; raises `ConfigError` where it is of another algorithm or network."""
        tensors, card = weights.read(path)
        try:
            name, mine = migrate(card).get("config", {}).get("algorithm", {}).get("name"), self._config.algorithm.name
            if name != mine:
                raise ConfigError(f"algorithm.name is {name!r}, this run's is {mine!r}")
            self._algorithm.load(tensors)
        except ConfigError as error:
            raise ConfigError(f"{path}: {str(error).removeprefix('weights: ')}{written_by(card)}") from None

    def restore(self) -> Counters:
        """Goes on from the newest checkpoint; raises `ConfigError` where it is of another network, or damaged."""
        path = checkpoint.newest(self._folder)
        if path is None:
            raise ConfigError(f"{self._folder}: holds no whole checkpoint; give the folder of a run that has saved one")
        saved = checkpoint.load(path)
        try:
            return self._take(saved)
        except ConfigError as error:
            what = str(error).removeprefix("weights: ").removeprefix(f"{path}/")
            raise ConfigError(f"{path}: {what}") from None
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            what = f"{type(error).__name__}: {str(error)[:200]!r}"
            raise ConfigError(f"{path}: state of another kind ({what})") from None

    def _take(self, saved: checkpoint.Checkpoint) -> Counters:
        state, has_replay = saved.state, any(name.startswith("replay.") for name in saved.names)
        tensors = weights.unpack(saved.read("tensors.safetensors"))
        self._algorithm.load(tensors)
        self._optimizer.load(tensors, state.get("optimizer", {}))
        fill = (lambda name, array: saved.read_into(f"replay.{name}", array)) if has_replay else None
        self._feed.restore(state["feed"], fill)
        self._evaluations.restore(state["evaluations"], saved.read("snapshot"))
        counts = {name: int(state[name]) for name in ("env_steps", "updates", "skipped", "rows_length")}
        require(
            0 <= counts["env_steps"] < 2**62, "env_steps", counts["env_steps"], "it is no count that curves can hold"
        )
        counters = Counters(wall_s=float(state["wall_s"]), **counts)
        torch.set_rng_state(tensors["rng.torch"])
        return counters
