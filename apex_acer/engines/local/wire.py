"""Encodes messages as ZeroMQ parts and decodes them: a msgpack header, then all arrays in one raw part; never a pickle.

The arrays share a part because the cost of a small unroll depends on the number of its parts, not on its bytes.

A decoded message has every field, of its type and in its range, and arrays as the header describes them; anything else
raises `WireError`. Whether a message belongs to this run is for the inbox to decide.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgpack
import numpy as np

from apex_acer.protocol.messages import ROLES, Message, Peer, Reply
from apex_acer.protocol.specification import Array
from apex_acer.protocol.unroll import ARRAY_FIELDS, Unroll

ALIGNMENT = 8  # bytes; each array begins at a multiple of this in its part
MAX_HEADER_BYTES = 1 << 20
# msgpack allocates a list by the length that its header claims: without limits, nested lists would take gigabytes
LIMITS = {"max_str_len": 1 << 16, "max_array_len": 1 << 12, "max_map_len": 1 << 12, "max_bin_len": 0, "max_ext_len": 0}
FLOATS, INTEGERS = ["float16", "float32", "float64"], ["int8", "int16", "int32", "int64"]
DTYPES = ["bool", *FLOATS, *INTEGERS, *(f"u{name}" for name in INTEGERS)]
NAMES = {np.dtype(name): name for name in DTYPES}
# group, name, type and up to eight lengths, each short enough that their product is quick to compute
DESCRIPTION = re.compile(r"(extras\.|state\.)?(\w{1,64}):(\w{1,8}):(\d{1,12}(?:,\d{1,12}){0,7})", re.ASCII)

Part = bytes | memoryview
Fits = Callable[[Any], bool]
Place = tuple[str, str, np.dtype[Any], tuple[int, ...], int, int]
"""Of an array: its group and name in the unroll, type, shape, number of elements, and first byte in the part."""


class WireError(Exception):
    """The parts are not a message; the text says why in one line."""


def encode_message(message: Message) -> list[Part]:
    """The parts of `message`: its header, and its arrays if it has an unroll."""
    header = {name: getattr(message, name) for name in MESSAGE if name not in ("peer", "arrays")}
    header["peer"] = [message.peer.role, message.peer.index, message.peer.incarnation]
    arrays = _flatten(message.unroll) if message.unroll else {}
    header["arrays"] = _describe(arrays)
    return [msgpack.packb(header), *([_join(arrays.values())] if arrays else [])]


def decode_message(parts: Sequence[Part]) -> Message:
    """The message in `parts`, with its arrays as views of the second part; raises `WireError`."""
    header = _header(parts, MESSAGE)
    described, peer = header.pop("arrays"), Peer(*header.pop("peer"))
    if bool(described) != len(parts) - 1:
        raise WireError(f"{len(parts)} parts, arrays are {reprlib.repr(described)}")
    return Message(peer=peer, unroll=_split(parts[1], described) if described else None, **header)


def encode_reply(reply: Reply) -> list[Part]:
    """The parts of `reply`: its header, and its weights if it has any."""
    header = {f.name: getattr(reply, f.name) for f in dataclasses.fields(reply) if f.name != "weights"}
    return [msgpack.packb(header)] if reply.weights is None else [msgpack.packb(header), reply.weights]


def decode_reply(parts: Sequence[Part]) -> Reply:
    """The reply in `parts`; raises `WireError`."""
    header = _header(parts, REPLY)
    return Reply(**header, weights=bytes(parts[1]) if len(parts) == 2 else None)


# ── the header ──


def _header(parts: Sequence[Part], fields: Mapping[str, Fits]) -> dict[str, Any]:
    """The header in the first of one or two parts, which must have exactly these `fields`."""
    if not 1 <= len(parts) <= 2 or len(parts[0]) > MAX_HEADER_BYTES:
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


def _is_count(value: Any, least: int = 0) -> bool:
    return type(value) is int and least <= value < 2**63  # a bool is an int, but no count


def _is_table(value: Any, fits: Fits) -> bool:
    return isinstance(value, dict) and all(_is_text(key) and fits(item) for key, item in value.items())


def _is_row(value: Any) -> bool:
    # NaN passes: the inbox answers its sender, and a refusal here would not
    return _is_table(value, lambda item: type(item) in (int, float))


def _is_peer(value: Any) -> bool:
    match value:
        case [str() as role, index, incarnation] if _is_count(index) and _is_count(incarnation):
            return role in ROLES and (role == "actor" or index == 0)
    return False


MESSAGE: dict[str, Fits] = {
    "run_id": _is_text,
    "peer": _is_peer,
    "sequence": _is_count,
    "weights_version": lambda value: _is_count(value, least=-1),
    "wants_weights": _is_flag,
    "rows": lambda value: isinstance(value, list) and all(map(_is_row, value)),
    "clients": lambda value: _is_table(value, _is_row),
    "unlearned_steps": _is_count,
    "slot": _is_count,
    "acting_s": lambda value: type(value) is float and 0 <= value < math.inf,
    "stop": _is_text,
    "incarnations": lambda value: _is_table(value, _is_count),
    "arrays": _is_text,
}
REPLY: dict[str, Fits] = {
    "sequence": _is_count,
    "stop": _is_flag,
    "weights_version": lambda value: _is_count(value, least=-1),
    "env_steps": _is_count,
    "confirms": _is_flag,
    "refused": _is_text,
    "status": lambda value: _is_table(value, lambda item: True),
}


# ── the arrays ──


def _describe(arrays: Mapping[str, Array]) -> str:
    """`name:dtype:length,length` of each array, separated by spaces."""
    return " ".join(f"{name}:{NAMES[array.dtype]}:{','.join(map(str, array.shape))}" for name, array in arrays.items())


@functools.lru_cache(maxsize=64)  # an actor's unrolls all have the same description
def _places(described: str) -> tuple[list[Place], int]:
    """Where the arrays of an unroll lie, and the bytes of all; raises `WireError` if an unroll has other arrays."""
    places, start = list[Place](), 0
    for text in described.split(" "):
        match = DESCRIPTION.fullmatch(text)
        if not match or match[3] not in DTYPES:
            raise WireError(f"an array described as {reprlib.repr(text)}")
        dtype, shape = np.dtype(match[3]), tuple(map(int, match[4].split(",")))
        size = math.prod(shape)
        places.append((match[1] or "", match[2], dtype, shape, size, start))
        start += _aligned(size * dtype.itemsize)
    names = [(group, name) for group, name, *_ in places]
    fields = {name for group, name in names if not group}
    if fields != set(ARRAY_FIELDS) or len(set(names)) < len(names) or not all(size for *_, size, _ in places):
        raise WireError(f"arrays {reprlib.repr(described)}")
    return places, start


def _join(arrays: Iterable[Array]) -> bytes:
    """All `arrays` in one part, each beginning at a multiple of `ALIGNMENT` bytes."""
    pieces: list[Part] = []
    for array in arrays:
        pieces += [np.ascontiguousarray(array).data.cast("B"), bytes(_aligned(array.nbytes) - array.nbytes)]
    return b"".join(pieces)


def _split(part: Part, described: str) -> Unroll:
    places, total = _places(described)
    if total != len(part):
        raise WireError(f"{len(part)} bytes of arrays, {total} are described")
    groups: dict[str, dict[str, Array]] = {"": {}, "extras.": {}, "state.": {}}
    for group, name, dtype, shape, size, start in places:
        array = groups[group][name] = np.frombuffer(part, dtype, size, start).reshape(shape)
        if dtype.kind == "b" and array.view(np.uint8).max() > 1:  # counting and indexing with it would disagree
            raise WireError(f"{group}{name}: neither true nor false")
    return Unroll(**groups[""], extras=groups["extras."], state=groups["state."])


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _flatten(unroll: Unroll) -> dict[str, Array]:
    arrays = {name: getattr(unroll, name) for name in ARRAY_FIELDS}
    parts = {f"extras.{name}": array for name, array in unroll.extras.items()}
    return arrays | parts | {f"state.{name}": array for name, array in unroll.state.items()}
