"""Messages to ZeroMQ parts and back: a msgpack header, then one raw part per array. Nothing is ever unpickled.

What is decoded has every field, of its type and in its range, and arrays as their descriptions say; anything else is one
`WireError`. Whether a message belongs to this run is the inbox's to judge.
"""

from __future__ import annotations

import dataclasses
import math
import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgpack
import numpy as np

from apex_acer.messages import ROLES, Message, Peer, Reply
from apex_acer.trajectory import ARRAY_FIELDS, Array, Unroll

MAX_PARTS = 64
MAX_HEADER_BYTES = 1 << 20
MAX_DIMENSIONS = 8
# an array's length is allocated as it is read: without a limit, nested ones take gigabytes
LIMITS = {"max_str_len": 1 << 16, "max_array_len": 1 << 12, "max_map_len": 1 << 12, "max_bin_len": 0, "max_ext_len": 0}
DTYPES = {f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)} | {
    "float16",
    "float32",
    "float64",
    "bool",
}

Part = bytes | memoryview
Fits = Callable[[Any], bool]


class WireError(Exception):
    """Parts that are no message, and why, in one line."""


def encode_message(message: Message) -> list[Part]:
    """The parts of `message`; the arrays are not copied."""
    header = {f.name: getattr(message, f.name) for f in dataclasses.fields(message) if f.name not in ("peer", "unroll")}
    header["peer"] = [message.peer.role, message.peer.index, message.peer.incarnation]
    arrays = _flatten(message.unroll) if message.unroll else {}
    header["arrays"] = [[name, array.dtype.name, list(array.shape)] for name, array in arrays.items()]
    return [msgpack.packb(header), *(np.ascontiguousarray(a).data.cast("B") for a in arrays.values())]


def decode_message(parts: Sequence[Part]) -> Message:
    """The message in `parts`; raises `WireError`. Arrays are views of the parts."""
    header = _header(parts, MESSAGE)
    described, peer = header.pop("arrays"), Peer(*header.pop("peer"))
    if len(described) != len(parts) - 1:
        raise WireError(f"{len(parts) - 1} arrays, the header describes {len(described)}")
    arrays = {array[0]: _array(part, *array) for part, array in zip(parts[1:], described, strict=True)}
    if len(arrays) != len(described):
        raise WireError("two arrays of one name")
    return Message(peer=peer, unroll=_unflatten(arrays) if arrays else None, **header)


def encode_reply(reply: Reply) -> list[Part]:
    """The parts of `reply`; the weights are the second."""
    header = {f.name: getattr(reply, f.name) for f in dataclasses.fields(reply) if f.name != "weights"}
    return [msgpack.packb(header)] if reply.weights is None else [msgpack.packb(header), reply.weights]


def decode_reply(parts: Sequence[Part]) -> Reply:
    """The reply in `parts`; raises `WireError`."""
    header = _header(parts, REPLY)
    if len(parts) > 2:
        raise WireError(f"a reply of {len(parts)} parts")
    return Reply(**header, weights=bytes(parts[1]) if len(parts) == 2 else None)


# ── the header ──


def _header(parts: Sequence[Part], fields: Mapping[str, Fits]) -> dict[str, Any]:
    """The header in the first part, which has just these `fields`."""
    if not 1 <= len(parts) <= MAX_PARTS or len(parts[0]) > MAX_HEADER_BYTES:
        raise WireError(f"{len(parts)} parts, the first of {len(parts[0]) if parts else 0} bytes")
    try:
        header = msgpack.unpackb(parts[0], strict_map_key=True, **LIMITS)
    except (ValueError, msgpack.UnpackException) as error:
        raise WireError(f"the header is not msgpack: {error or type(error).__name__}") from None
    if not isinstance(header, dict):
        raise WireError(f"the header is a {type(header).__name__}, not a map")
    if odd := header.keys() ^ fields.keys():
        raise WireError(f"missing or unknown in the header: {reprlib.repr(odd)}")
    for name, fits in fields.items():
        if not fits(header[name]):
            raise WireError(f"{name} is {reprlib.repr(header[name])}")
    return header


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63  # a bool is an int, but no count


def _is_version(value: Any) -> bool:
    return _is_count(value) or (type(value) is int and value == -1)


def _is_time(value: Any) -> bool:
    return type(value) is float and 0 <= value < math.inf


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)  # not a number, too: the inbox answers its sender, a refusal here does not


def _is_table(value: Any, fits: Fits) -> bool:
    return isinstance(value, dict) and all(_is_text(key) and fits(item) for key, item in value.items())


def _is_list(value: Any, fits: Fits) -> bool:
    return isinstance(value, list) and all(map(fits, value))


def _is_row(value: Any) -> bool:
    return _is_table(value, _is_number)


def _is_peer(value: Any) -> bool:
    match value:
        case [str() as role, index, incarnation] if _is_count(index) and _is_count(incarnation):
            return role in ROLES and (role == "actor" or index == 0)
    return False


def _is_description(value: Any) -> bool:
    match value:
        case [str(), str() as dtype, list() as shape] if len(shape) <= MAX_DIMENSIONS:
            return dtype in DTYPES and _is_list(shape, _is_count)
    return False


MESSAGE: dict[str, Fits] = {
    "run_id": _is_text,
    "peer": _is_peer,
    "sequence": _is_count,
    "weights_version": _is_version,
    "wants_weights": _is_flag,
    "rows": lambda value: _is_list(value, _is_row),
    "acting_s": _is_time,
    "stop": _is_text,
    "incarnations": lambda value: _is_table(value, _is_count),
    "arrays": lambda value: _is_list(value, _is_description),
}
REPLY: dict[str, Fits] = {
    "sequence": _is_count,
    "stop": _is_flag,
    "weights_version": _is_version,
    "refused": _is_text,
    "status": lambda value: _is_table(value, lambda figure: True),
}


# ── the arrays ──


def _array(part: Part, name: str, dtype: str, shape: list[int]) -> Array:
    kind = np.dtype(dtype)
    if 0 in shape or math.prod(shape) * kind.itemsize != len(part):
        raise WireError(f"{reprlib.repr(name)}: {dtype}{shape} in {len(part)} bytes")
    array = np.frombuffer(part, kind).reshape(shape)
    if dtype == "bool" and array.view(np.uint8).max() > 1:  # counting and indexing would differ
        raise WireError(f"{reprlib.repr(name)}: neither true nor false")
    return array


def _flatten(unroll: Unroll) -> dict[str, Array]:
    arrays = {name: getattr(unroll, name) for name in ARRAY_FIELDS}
    parts = {f"behaviour.{name}": array for name, array in unroll.behaviour.items()}
    return arrays | parts | {f"state.{name}": array for name, array in unroll.state.items()}


def _unflatten(arrays: dict[str, Array]) -> Unroll:
    def under(prefix: str) -> dict[str, Array]:
        return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}

    behaviour, state = under("behaviour."), under("state.")
    plain = {name: array for name, array in arrays.items() if name in ARRAY_FIELDS}
    if len(plain) < len(ARRAY_FIELDS) or len(plain) + len(behaviour) + len(state) < len(arrays):
        raise WireError(f"arrays named {reprlib.repr(list(arrays))}")
    return Unroll(**plain, behaviour=behaviour, state=state)
