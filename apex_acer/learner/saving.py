"""What a learner writes and goes on from: the weights file, and the checkpoint of everything that a run needs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from apex_acer.algorithms.algorithm import Algorithm
from apex_acer.config import ConfigError, RunConfig, require
from apex_acer.learner.feed import Feed
from apex_acer.learner.optimizer import Optimizer
from apex_acer.learner.ranks import Ranks
from apex_acer.learner.snapshots import Evaluations
from apex_acer.networks import weights
from apex_acer.networks.card import describe, require_format, written_by
from apex_acer.protocol.trajectory import Array, EnvironmentSpec
from apex_acer.storage import checkpoint

WEIGHTS = "weights.safetensors"


class Counters(NamedTuple):
    """How far a run is."""

    env_steps: int = 0
    updates: int = 0
    skipped: int = 0
    """Updates that were not finite."""
    wall_s: float = 0.0
    rows_length: int = 0
    """Bytes of its rows on disk."""
    run_id: str = ""
    """Of the program that saved it."""
    startup_s: float = 0.0
    """That program's; 0: it has not made a step yet."""


class Saver:
    """Writes the parts of a learner into the run's folder, and restores them from there.

    Of several learners only the first one sees that folder; the others get what it restores.
    """

    def __init__(
        self,
        config: RunConfig,
        spec: EnvironmentSpec,
        folder: Path,
        algorithm: Algorithm,
        optimizer: Optimizer,
        feed: Feed,
        evaluations: Evaluations,
        ranks: Ranks,
    ) -> None:
        self._config, self._spec, self._folder, self._ranks = config, spec, folder, ranks
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
        path = self._folder / WEIGHTS
        if self._ranks.rank == 0:
            weights.write(path, self._evaluations.passed or self.file(counters))
        return path

    def save(self, counters: Counters) -> Path:
        """Writes the weights and all that a run needs to go on, where it is the first learner's; the weights' path."""
        if self._ranks.rank:
            return self._folder / WEIGHTS
        path = self.save_weights(counters)
        moment = (counters.env_steps, counters.updates, self._evaluations.last)
        if moment == self._saved:
            return path
        self._saved = moment
        evaluations, snapshot = self._evaluations.state()
        state = {
            **counters._asdict(),
            "spec": dataclasses.asdict(self._spec),
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

    def begin(self) -> Counters:
        """Begins with `config.load`, where it is given; raises `ConfigError` where it is of another algorithm or network."""
        if self._config.load and self._ranks.rank == 0:
            self._load_weights(self._config.load)
        self._ranks.align(list(self._algorithm.tensors().values()))
        return Counters()

    def _load_weights(self, path: str) -> None:
        tensors, card = weights.read(path)
        try:
            require_format(card)
            name, mine = card.get("config", {}).get("algorithm", {}).get("name"), self._config.algorithm.name
            if name != mine:
                raise ConfigError(f"algorithm.name is {name!r}, this run's is {mine!r}")
            self._algorithm.load(tensors)
        except ConfigError as error:
            raise ConfigError(f"{path}: {str(error).removeprefix('weights: ')}{written_by(card)}") from None

    def restore(self) -> Counters:
        """Goes on from the newest checkpoint; raises `ConfigError` where it is of another network, or damaged."""
        if self._ranks.rank:
            return self._take(json.loads(self._ranks.share(b"")), self._ranks.share(b""), None)
        path = checkpoint.newest(self._folder)
        if path is None:
            raise ConfigError(f"{self._folder}: holds no whole checkpoint; give the folder of a run that has saved one")
        saved = checkpoint.load(path)
        try:
            counters = self._take_all(saved)
        except ConfigError as error:
            what = str(error).removeprefix("weights: ").removeprefix(f"{path}/")
            raise ConfigError(f"{path}: {what}") from None
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            what = f"{type(error).__name__}: {str(error)[:200]!r}"
            raise ConfigError(f"{path}: state of another kind ({what})") from None
        self._ranks.share(json.dumps(saved.state).encode())
        self._ranks.share(saved.read("tensors.safetensors"))
        return counters

    def _take_all(self, saved: checkpoint.Checkpoint) -> Counters:
        has_replay = any(name.startswith("replay.") for name in saved.names)
        fill = (lambda name, array: saved.read_into(f"replay.{name}", array)) if has_replay else None
        counters = self._take(saved.state, saved.read("tensors.safetensors"), fill)
        self._evaluations.restore(saved.state["evaluations"], saved.read("snapshot"))
        return counters

    def _take(self, state: Mapping[str, Any], data: bytes, fill: Callable[[str, Array], None] | None) -> Counters:
        tensors = weights.unpack(data)
        self._algorithm.load(tensors)
        self._optimizer.load(tensors, state["optimizer"])
        self._feed.restore(state["feed"], fill)
        counts = {name: int(state[name]) for name in ("env_steps", "updates", "skipped", "rows_length")}
        require(
            0 <= counts["env_steps"] < 2**62, "env_steps", counts["env_steps"], "it is no count that curves can hold"
        )
        counters = Counters(
            **counts,
            wall_s=float(state["wall_s"]),
            run_id=str(state["run_id"]),
            startup_s=float(state["startup_s"]),
        )
        torch.set_rng_state(tensors["rng.torch"])
        return counters
