"""Replay on disk, as checkpoints hold it; a run may start from another's, or from unrolls that a user wrote."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from apex_acer.algorithms import make_agent
from apex_acer.config import ConfigError, RunConfig
from apex_acer.learner.batch_queue import BatchQueue
from apex_acer.protocol.specification import Array, EnvironmentSpec
from apex_acer.protocol.unroll import ARRAY_FIELDS, Layout, Unroll
from apex_acer.storage import checkpoint

log = logging.getLogger(__name__)

ROUNDING = 1e-3  # of the sum of the probabilities of actors, which may compute in bfloat16
CHUNK = 1024  # sequences that are checked or copied at once
UNUSABLE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


def describe(shapes: Layout, sequences: int, oldest: int = 0) -> dict[str, Any]:
    """What a checkpoint says of the replay in it, in plain values.

    `oldest` is the slot of the oldest of `sequences`; the others follow it, round the end.
    """
    fields = {name: [list(shape), dtype] for name, (shape, dtype) in shapes.fields.items()}
    return {"fields": fields, "sequences": sequences, "oldest": oldest}


def load_replay(folder: str, config: RunConfig, spec: EnvironmentSpec, queue: BatchQueue) -> None:
    """Puts the newest sequences of the replay in `folder` into that of `queue`, where they are not fresh.

    Nothing is put there unless all of it fits the run; otherwise it raises `ConfigError`.
    """
    storage, log_probs = queue.storage, make_agent(config, spec).log_probs
    try:
        path = checkpoint.newest(Path(folder))
        if path is None:
            raise ConfigError(f"{folder!r} holds no whole checkpoint")
        stored = _stored(checkpoint.load(path), spec, storage.layout)
        chunks = list(_chunks(stored, storage.capacity))
        for slots in chunks:
            _require_usable(_unroll(stored.arrays, slots), spec, log_probs)
    except ConfigError as error:
        raise ConfigError(f"replay.load: {error}") from None
    for slots in chunks:
        queue.store(_unroll(stored.arrays, slots), 0)
    log.info("replay starts with %d sequences, %d steps, of %s", len(storage), storage.num_steps, path)


def store_unrolls(folder: Path, config: RunConfig, spec: EnvironmentSpec, unrolls: Sequence[Unroll]) -> Path:
    """Writes `unrolls` for runs of `config`, in the form that `load_replay` reads; raises `ConfigError`."""
    if not config.algorithm.replay_ratio:
        raise ConfigError(
            f"run: its {config.algorithm.name} keeps no replay memory; give one with algorithm.replay_ratio"
        )
    agent = make_agent(config, spec)
    shapes = agent.layout
    if not unrolls or (folder / checkpoint.FOLDER).exists():
        what = "holds a checkpoint; give a new folder" if unrolls else "there are no unrolls; give one or more"
        raise ConfigError(f"{folder}: {what}")
    for number, unroll in enumerate(unrolls):
        try:
            _require_fit(unroll, shapes)
            _require_usable(unroll, spec, agent.log_probs)
        except ConfigError as error:
            raise ConfigError(f"unrolls[{number}]: {error}") from None
    joined = {name: np.concatenate([_sequences(unroll, name) for unroll in unrolls]) for name in shapes.fields}
    arrays = {f"replay.{name}": np.ascontiguousarray(array) for name, array in joined.items()}
    held = describe(shapes, sum(unroll.num_columns for unroll in unrolls))
    return checkpoint.write(folder, 0, {"spec": dataclasses.asdict(spec), "replay": held}, arrays)


class Stored(NamedTuple):
    """A saved replay that fits the run's layout."""

    arrays: dict[str, Array]
    """`[sequences, …]` by name, of those that the run needs."""
    sequences: int
    oldest: int


def _stored(saved: checkpoint.Checkpoint, spec: EnvironmentSpec, shapes: Layout) -> Stored:
    """The arrays of `shapes` in a checkpoint; raises `ConfigError` if its replay is another environment's or algorithm's."""
    if "replay" not in saved.state:
        raise ConfigError(f"{saved.path}: holds no replay; give a folder of a run with checkpoint.replay")
    try:
        held = saved.state["replay"]
        changes = spec.changes(EnvironmentSpec.from_dict(saved.state["spec"]))
        found = {name: (tuple(map(int, shape)), str(dtype)) for name, (shape, dtype) in held["fields"].items()}
        num, oldest = int(held["sequences"]), int(held["oldest"])
    except UNUSABLE as error:
        raise ConfigError(f"{saved.path}: its replay is not described as this program does it ({error})") from None
    if changes:
        raise ConfigError(f"{saved.path}: is of another environment: {changes}")
    for name, kind in shapes.fields.items():
        if found.get(name) != kind:
            this = f"this run needs {_words(kind)}; give one of the same algorithm and algorithm.unroll_length"
            raise ConfigError(f"{saved.path}: {name} is {_words(found.get(name))}, {this}")
    kinds = shapes.fields.items()
    views = {name: saved.view(f"replay.{name}", (num, *shape), dtype) for name, (shape, dtype) in kinds}
    return Stored(views, num, oldest % num)


def _words(kind: tuple[tuple[int, ...], str] | None) -> str:
    return f"{kind[1]}{list(kind[0])}" if kind else "missing"


def _chunks(stored: Stored, most: int) -> Iterator[Array]:
    """The slots of the newest sequences, at most `most`, oldest first."""
    slots = (stored.oldest + np.arange(stored.sequences)) % stored.sequences
    yield from np.split(slots[-most:], range(CHUNK, min(most, stored.sequences), CHUNK))


def _unroll(arrays: Mapping[str, Array], slots: Array) -> Unroll:
    """The sequences in `slots` as an unroll."""
    taken = {name: array[slots] for name, array in arrays.items()}
    steps = {name: array.swapaxes(0, 1) for name, array in taken.items() if not name.startswith("state.")}
    extras = {name.removeprefix("extras."): part for name, part in steps.items() if name not in ARRAY_FIELDS}
    state = {name.removeprefix("state."): part for name, part in taken.items() if name.startswith("state.")}
    return Unroll(**{name: steps[name] for name in ARRAY_FIELDS}, extras=extras, state=state)


def _sequences(unroll: Unroll, name: str) -> Array:
    """The array `name` of each sequence, `[N, …]`."""
    part, _, key = name.rpartition(".")
    array: Array = getattr(unroll, part)[key] if part else getattr(unroll, name)
    return array if part == "state" else array.swapaxes(0, 1)


def _require_fit(unroll: Any, shapes: Layout) -> None:
    """Raises `ConfigError` unless `unroll` is one, of one environment or more, with the arrays of `shapes`."""
    if not isinstance(unroll, Unroll):
        raise ConfigError(f"{type(unroll).__name__}, allowed is an Unroll")
    for name in ("extras", "state"):
        if not isinstance(part := getattr(unroll, name), dict):
            raise ConfigError(f"{name}: {type(part).__name__}, allowed is a dict of NumPy arrays")
    for name, array in (vars(unroll) | unroll.extras | unroll.state).items():
        if not isinstance(array, np.ndarray | dict):
            raise ConfigError(f"{name}: {type(array).__name__}, allowed is a NumPy array")
    if problem := shapes.check(unroll, max((1, *unroll.action.shape[1:2]))):
        raise ConfigError(problem)


def _require_usable(unroll: Unroll, spec: EnvironmentSpec, log_probs: str) -> None:
    if problem := unroll.refusal(spec) or _improbable(unroll, log_probs) or _disorder(unroll):
        raise ConfigError(problem)


def _improbable(unroll: Unroll, log_probs: str) -> str:
    """Why the extra `log_probs`, if there is one, are no probabilities of all actions, in one line; empty if they are."""
    if not log_probs:
        return ""
    off = float(np.abs(np.exp(unroll.extras[log_probs][unroll.mask]).sum(-1) - 1).max(initial=0.0))
    return f"{log_probs}: probabilities add up to 1 ± {off:.2g}, allowed ± {ROUNDING}" if off > ROUNDING else ""


def _disorder(unroll: Unroll) -> str:
    """Why a target would be of two episodes, in one line; empty if none would.

    Targets stop at a terminated step. At a truncated one they go on to the value of the next observation, which must be
    that of the same episode; and Retrace stops there only because the step behind it is masked.
    """
    count, mask, k = unroll.episode_step, unroll.mask, len(unroll.mask)
    if count.min() < 0:
        return f"episode_step: {count.min()}, allowed is 0 or more"
    if found := _first(unroll.truncated[:-1] & mask[:-1] & mask[1:]):
        return f"truncated: {found}, but the step behind it is not masked, as a reset is"
    found = _first(mask & ~unroll.terminated & (count[-k:] != count[-k - 1 : -1] + 1))
    problem = "the next observation's is not one more; mask a step that resets"
    return f"episode_step: {found}: {problem}" if found else ""


def _first(wrong: Array) -> str:
    """Where the first true value of `wrong` `[k, N]` is, in words; empty if there is none."""
    places = np.argwhere(wrong)
    return "step {} of environment {}".format(*places[0]) if len(places) else ""
