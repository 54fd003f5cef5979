"""Messages to ZeroMQ parts and back: a msgpack header, then one raw part per array. Nothing is ever unpickled."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from types import UnionType
from typing import Any

import msgpack
import numpy as np

from apex_acer.messages import ROLES, Message, Peer, Reply
from apex_acer.trajectory import ARRAY_FIELDS, Array, Unroll

MAX_PARTS = 64
MAX_HEADER_BYTES = 1 << 20
DTYPES = {f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)} | {
    "float16",
    "float32",
    "float64",
    "bool",
}

Part = bytes | memoryview


class WireError(Exception):
    """Parts that are no message, and why."""


def encode_message(message: Message) -> list[Part]:
    """The parts of `message`; the arrays are not copied."""
    header = {f.name: getattr(message, f.name) for f in dataclasses.fields(message) if f.name not in ("peer", "unroll")}
    header["peer"] = [message.peer.role, message.peer.index, message.peer.incarnation]
    arrays = _flatten(message.unroll) if message.unroll else {}
    header["arrays"] = [[name, array.dtype.name, list(array.shape)] for name, array in arrays.items()]
    return [msgpack.packb(header), *(np.ascontiguousarray(a).data.cast("B") for a in arrays.values())]


def decode_message(parts: Sequence[Part]) -> Message:
    """The message in `parts`; raises `WireError`. Arrays are views of the parts."""
    header = _header(parts)
    try:
        described = header.pop("arrays")
        peer = _peer(header.pop("peer"))
        if len(described) != len(parts) - 1:
            raise WireError(f"{len(parts) - 1} arrays, the header describes {len(described)}")
        arrays = {name: _array(part, *rest) for part, (name, *rest) in zip(parts[1:], described, strict=True)}
        unroll = _unflatten(arrays) if arrays else None
        message = Message(peer=peer, unroll=unroll, **header)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise WireError(f"{type(error).__name__}: {error}") from None
    _check_types(message)
    return message


def encode_reply(reply: Reply) -> list[Part]:
    """The parts of `reply`; the weights are the second."""
    header = {f.name: getattr(reply, f.name) for f in dataclasses.fields(reply) if f.name != "weights"}
    return [msgpack.packb(header)] if reply.weights is None else [msgpack.packb(header), reply.weights]


def decode_reply(parts: Sequence[Part]) -> Reply:
    """The reply in `parts`; raises `WireError`."""
    try:
        return Reply(**_header(parts), weights=bytes(parts[1]) if len(parts) > 1 else None)
    except TypeError as error:
        raise WireError(str(error)) from None


def _header(parts: Sequence[Part]) -> dict[str, Any]:
    if not 1 <= len(parts) <= MAX_PARTS or len(parts[0]) > MAX_HEADER_BYTES:
        raise WireError(f"{len(parts)} parts, the first of {len(parts[0]) if parts else 0} bytes")
    try:
        header = msgpack.unpackb(parts[0])
    except (ValueError, msgpack.UnpackException) as error:
        raise WireError(f"the header is not msgpack: {error}") from None
    if not isinstance(header, dict):
        raise WireError(f"the header is a {type(header).__name__}, not a map")
    return header


def _peer(described: Any) -> Peer:
    match described:
        case [str() as role, int() as index, int() as incarnation] if role in ROLES and index >= 0 and incarnation >= 0:
            return Peer(role, index, incarnation)
    raise WireError(f"peer {described!r}")


def _array(part: Part, dtype: str, shape: list[int]) -> Array:
    if dtype not in DTYPES or not all(isinstance(size, int) and size >= 0 for size in shape):
        raise WireError(f"array of {dtype!r} {shape}")
    kind = np.dtype(dtype)
    if math.prod(shape) * kind.itemsize != len(part):
        raise WireError(f"array of {dtype} {shape} in {len(part)} bytes")
    return np.frombuffer(part, kind).reshape(shape)


def _check_types(message: Message) -> None:
    for field in dataclasses.fields(message):
        value = getattr(message, field.name)
        if isinstance(field.default, str | int | float) and not isinstance(value, type(field.default)):
            raise WireError(f"{field.name} is {value!r}")
    if not isinstance(message.run_id, str) or not isinstance(message.sequence, int):
        raise WireError("run_id or sequence of another type")
    if not isinstance(message.rows, list) or not all(_is_table(row, int | float) for row in message.rows):
        raise WireError("rows that are not names and numbers")
    if not _is_table(message.incarnations, int):
        raise WireError("incarnations that are not names and counts")


def _is_table(table: Any, kind: type | UnionType) -> bool:
    """Whether `table` maps names to values of `kind`."""
    return isinstance(table, dict) and all(isinstance(k, str) and isinstance(v, kind) for k, v in table.items())


def _flatten(unroll: Unroll) -> dict[str, Array]:
    arrays = {name: getattr(unroll, name) for name in ARRAY_FIELDS}
    parts = {f"behaviour.{name}": array for name, array in unroll.behaviour.items()}
    return arrays | parts | {f"state.{name}": array for name, array in unroll.state.items()}


def _unflatten(arrays: dict[str, Array]) -> Unroll:
    def under(prefix: str) -> dict[str, Array]:
        return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}

    plain = {name: array for name, array in arrays.items() if "." not in name}
    return Unroll(**plain, behaviour=under("behaviour."), state=under("state."))
