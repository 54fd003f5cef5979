"""Replay on disk, as checkpoints hold it; a run may start from another's, or from unrolls that a user wrote."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from apex_acer.algorithms import make_agent
from apex_acer.config import ConfigError, RunConfig
from apex_acer.learner.batch_queue import BatchQueue
from apex_acer.protocol.specification import Array, EnvironmentSpec
from apex_acer.protocol.unroll import Layout, Unroll
from apex_acer.replay.compressed import CompressedArray, unpack
from apex_acer.replay.storage import CHUNK, nested, sequences
from apex_acer.storage import checkpoint

log = logging.getLogger(__name__)

ROUNDING = 1e-3  # of the sum of the probabilities of actors, which may compute in bfloat16
UNUSABLE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


def describe(layout: Layout, num_sequences: int, oldest: int = 0) -> dict[str, Any]:
    """The description, in plain values, of the replay in a checkpoint.

    `oldest` is the slot of the oldest of its sequences; the others follow it, round the end.
    """
    fields = {name: [list(shape), dtype] for name, (shape, dtype) in layout.fields.items()}
    return {"fields": fields, "sequences": num_sequences, "oldest": oldest}


def load_replay(folder: str, config: RunConfig, spec: EnvironmentSpec, queue: BatchQueue) -> None:
    """Puts the newest sequences of the replay in `folder` into that of `queue`, where they are not fresh.

    Raises `ConfigError`, with nothing put there, unless all of it fits the run.
    """
    storage, log_probs = queue.storage, make_agent(config, spec).log_probs
    try:
        saved = checkpoint.load_newest(Path(folder))
        arrays, slots = _open(saved, spec, storage.layout)
        slots = slots[-storage.capacity :]
        chunks = np.split(slots, range(CHUNK, len(slots), CHUNK))
        for chunk in chunks:
            _require_usable(_unroll(arrays, chunk), spec, log_probs)
    except ConfigError as error:
        raise ConfigError(f"replay.load: {error}") from None
    for chunk in chunks:
        queue.store(_unroll(arrays, chunk), 0)
    log.info("replay starts with %d sequences, %d steps, of %s", len(storage), storage.num_steps, saved.path)


def store_unrolls(folder: Path, config: RunConfig, spec: EnvironmentSpec, unrolls: Sequence[Unroll]) -> Path:
    """Writes `unrolls` for runs of `config`, in the form that `load_replay` reads; raises `ConfigError`."""
    if not config.algorithm.replay_ratio:
        name = config.algorithm.name
        raise ConfigError(f"run: its {name} keeps no replay memory; give one with algorithm.replay_ratio")
    if not unrolls:
        raise ConfigError(f"{folder}: there are no unrolls; give one or more")
    if (folder / checkpoint.FOLDER).exists():
        raise ConfigError(f"{folder}: holds a checkpoint; give a new folder")
    agent = make_agent(config, spec)
    for number, unroll in enumerate(unrolls):
        try:
            _require_fit(unroll, agent.layout)
            _require_usable(unroll, spec, agent.log_probs)
        except ConfigError as error:
            raise ConfigError(f"unrolls[{number}]: {error}") from None
    joined = {name: np.concatenate([sequences(unroll, name) for unroll in unrolls]) for name in agent.layout.fields}
    arrays = {f"replay.{name}": np.ascontiguousarray(array) for name, array in joined.items()}
    replay = describe(agent.layout, sum(unroll.num_columns for unroll in unrolls))
    return checkpoint.write(folder, 0, {"spec": dataclasses.asdict(spec), "replay": replay}, arrays)


def _open(
    saved: checkpoint.Checkpoint, spec: EnvironmentSpec, layout: Layout
) -> tuple[dict[str, Array | CompressedArray], Array]:
    """The arrays `[sequences, …]` of `layout` in a checkpoint, and their slots, the oldest first.

    Raises `ConfigError` if the replay there is of another environment or algorithm.
    """
    path = saved.path
    if "replay" not in saved.state:
        raise ConfigError(f"{path}: holds no replay; give a folder of a run with checkpoint.replay")
    try:
        replay = saved.state["replay"]
        changes = spec.changes(EnvironmentSpec.from_dict(saved.state["spec"]))
        there = {name: f"{dtype}{list(shape)}" for name, (shape, dtype) in replay["fields"].items()}
        num, oldest = int(replay["sequences"]), int(replay["oldest"])
    except UNUSABLE as error:
        raise ConfigError(f"{path}: its replay is not described as this program does it ({error})") from None
    if num < 1:
        raise ConfigError(f"{path}: its replay is empty; give a folder of a run that had stored unrolls")
    if changes:
        raise ConfigError(f"{path}: is of another environment: {changes}")
    fields = layout.fields.items()
    for name, needed in {name: f"{dtype}{list(shape)}" for name, (shape, dtype) in fields}.items():
        if there.get(name) != needed:
            give = "give one of the same algorithm and algorithm.unroll_length"
            raise ConfigError(f"{path}: {name} is {there.get(name, 'missing')}, this run needs {needed}; {give}")
    arrays = {name: read_array(saved, name, (num, *shape), dtype) for name, (shape, dtype) in fields}
    return arrays, (oldest + np.arange(num)) % num


def read_array(saved: checkpoint.Checkpoint, name: str, shape: tuple[int, ...], dtype: str) -> Array | CompressedArray:
    """The array of this `shape` in the replay of a checkpoint, whether it is compressed there or not.

    Raises `ConfigError` if it is not there, damaged, or of another size.
    """
    name = f"replay.{name}"
    if f"{name}.sizes" not in saved.names:
        return saved.view(name, shape, dtype)
    sizes = saved.view(f"{name}.sizes", shape[:1], "int64")
    data = saved.view(f"{name}.lz4", (int(sizes.sum()),), "uint8")
    try:
        return unpack(shape[1:], dtype, sizes, data)
    except ValueError as error:
        raise ConfigError(f"{saved.path / name}.lz4: {error}") from None


def _unroll(arrays: Mapping[str, Array | CompressedArray], slots: Array) -> Unroll:
    """The sequences in `slots` as an unroll."""
    chosen = {name: array[slots] for name, array in arrays.items()}
    return Unroll(**nested({n: a if n.startswith("state.") else a.swapaxes(0, 1) for n, a in chosen.items()}))


def _require_fit(unroll: Any, layout: Layout) -> None:
    """Raises `ConfigError` unless `unroll` is one, of one environment or more, with the arrays of `layout`."""
    if not isinstance(unroll, Unroll):
        raise ConfigError(f"{type(unroll).__name__}, allowed is an Unroll")
    for name in ("extras", "state"):
        if not isinstance(part := getattr(unroll, name), dict):
            raise ConfigError(f"{name}: {type(part).__name__}, allowed is a dict of NumPy arrays")
    for name, array in (vars(unroll) | unroll.extras | unroll.state).items():
        if not isinstance(array, np.ndarray | dict):
            raise ConfigError(f"{name}: {type(array).__name__}, allowed is a NumPy array")
    if problem := layout.check(unroll, max((1, *unroll.action.shape[1:2]))):
        raise ConfigError(problem)


def _require_usable(unroll: Unroll, spec: EnvironmentSpec, log_probs: str) -> None:
    """Raises `ConfigError` if numbers cannot be learned from, or if a target would be of two episodes.

    Targets stop at a terminated step. At a truncated one they go on to the value of the next observation, which must be
    that of the same episode; and Retrace stops there only because the step behind it is masked.
    """
    if problem := unroll.refusal(spec):
        raise ConfigError(problem)
    if log_probs:  # the name of the extra with those of all actions
        sums = np.exp(unroll.extras[log_probs][unroll.mask]).sum(-1)
        off = float(np.abs(sums - 1).max(initial=0.0))
        if off > ROUNDING:
            raise ConfigError(f"{log_probs}: probabilities add up to 1 ± {off:.2g}, allowed ± {ROUNDING}")
    count, mask, k = unroll.episode_step, unroll.mask, len(unroll.mask)
    if count.min() < 0:
        raise ConfigError(f"episode_step: {count.min()}, allowed is 0 or more")
    unmasked = unroll.truncated[:-1] & mask[:-1] & mask[1:]
    _require_nowhere(unmasked, "truncated", "the step behind it is not masked, as a reset is")
    jumps = mask & ~unroll.terminated & (count[-k:] != count[-k - 1 : -1] + 1)
    _require_nowhere(jumps, "episode_step", "the next observation's is not one more; mask a step that resets")


def _require_nowhere(wrong: Array, name: str, problem: str) -> None:
    """Raises `ConfigError` with the first place where `wrong` `[k, N]` is true."""
    for step, environment in np.argwhere(wrong)[:1]:
        raise ConfigError(f"{name}: step {step} of environment {environment}: {problem}")
