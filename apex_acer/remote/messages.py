"""What clients and servers say to each other (docs/remote.md): decoded, checked, and encoded."""

from __future__ import annotations

import hmac
import json
import math
import reprlib
from collections.abc import Callable, Mapping, Set
from typing import Any, NamedTuple

import msgpack
import numpy as np

from apex_acer.protocol.actions import Actions, has_choice
from apex_acer.protocol.planes import is_legal
from apex_acer.protocol.specification import LARGEST, MASK, Array, EnvironmentSpec, unusable

VERSION = 1
WRONG, BUSY = 1008, 1013  # WebSocket's codes for a broken rule and for trying again later
HELLO_BYTES = 1 << 16
BYTES_PER_NUMBER = 32  # at most, in JSON
LONGEST = 200  # of what a refusal quotes, characters
NUMBERS = {bool, int, float}
USABLE = f"a number from {-LARGEST:g} to {LARGEST:g}"
ENDS = "terminated", "truncated"
WITH_REWARD = "step", *ENDS
KINDS = "reset", *WITH_REWARD, "bye"

Values = dict[str, Any]
Fields = Mapping[str, tuple[Callable[[Any], bool], str]]  # by key: a check of the value, and what is allowed
Observation = Array | dict[str, Array]


class RemoteError(Exception):
    """Error of a client: the message is one line for it, `code` WebSocket's close code."""

    def __init__(self, message: str, code: int = WRONG) -> None:
        super().__init__(message)
        self.code = code


class Request(NamedTuple):
    """A client's message during play: `kind` is one of `KINDS`."""

    kind: str
    sequence: int
    obs: Observation | None
    """`[*given_shape]`, or an array of each part by name; None with `bye`."""
    reward: float


def most_bytes(spec: EnvironmentSpec) -> int:
    """Largest size in bytes of a client's message."""
    return HELLO_BYTES + BYTES_PER_NUMBER * sum(math.prod(box.given_shape) for box in spec.boxes.values() or [spec])


def decode(data: str | bytes) -> Values:
    """The map in a frame: JSON if it is text, else msgpack. Raises `RemoteError`."""
    try:
        if isinstance(data, str):
            values = json.loads(data, parse_constant=_no_constant)
        else:
            limit = len(data)
            values = msgpack.unpackb(data, strict_map_key=True, max_ext_len=0, max_array_len=limit, max_map_len=64)
    except (ValueError, RecursionError, msgpack.UnpackException) as error:
        name = "JSON" if isinstance(data, str) else "msgpack"
        raise RemoteError(f"not {name}: {_short(error) or type(error).__name__}") from None
    if not isinstance(values, dict) or not isinstance(values.get("type"), str):
        raise RemoteError("require a map with a string as type")
    return values


def encode(values: Mapping[str, Any], *, text: bool) -> str | bytes:
    """The frame of a message: JSON if `text`, else msgpack."""
    return json.dumps(values, separators=(",", ":")) if text else bytes(msgpack.packb(values))


def error_message(message: str, *, retry: bool = False, text: bool) -> str | bytes:
    """The frame of an `error`."""
    return encode({"type": "error", "message": message, "retry": retry}, text=text)


def parse_hello(values: Values, spec: EnvironmentSpec, token: str) -> tuple[bool, str]:
    """Checks a `hello`: its token, version and spaces.

    Returns whether the client's steps are for training, and the session that it wants to go on with (empty: a new one).
    Raises `RemoteError`.
    """
    if values["type"] != "hello":
        raise RemoteError("require hello first")  # without what came, which may be the token
    _require_keys(values, HELLO, {"train", "session"})
    if not hmac.compare_digest(values["token"].encode(errors="replace"), token.encode()):
        raise RemoteError("wrong token")
    if values["version"] != VERSION:
        raise RemoteError(f"version {_short(values['version'])} of the protocol; this server speaks {VERSION}")
    space = {name: _space(box) for name, box in spec.boxes.items()} or _space(spec)
    if values["observation"] != space:
        raise RemoteError(f"observation is {_short(values['observation'])}, this server's is {space}")
    if not spec.actions.fits(values["action"]):
        actions = _short(spec.actions.client_space())
        raise RemoteError(f"action is {_short(values['action'])}, this server's is {actions}")
    return values.get("train", True), values.get("session", "")


def parse_request(values: Values, spec: EnvironmentSpec) -> Request:
    """A message during play; raises `RemoteError`."""
    kind = values["type"]
    if kind not in KINDS:
        raise RemoteError(f"type {_short(kind)} is unknown; allowed: {', '.join(KINDS)}")
    _require_keys(values, REQUESTS[kind])
    reward = float(values.get("reward", 0.0))
    obs = _observation(values["observation"], spec) if kind != "bye" else None
    if spec.has_masks and isinstance(obs, dict):
        obs[MASK] = _mask(obs[MASK], spec.actions, is_over=kind in ENDS)
    return Request(kind, int(values["sequence"]), obs, reward)


# ── checks ──


def _is_reward(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= LARGEST  # false for NaN, too


def _is_whole(value: Any) -> bool:
    return type(value) is int or (type(value) is float and value.is_integer())  # JavaScript's 1 is 1.0 in msgpack


def _is_sequence(value: Any) -> bool:
    return _is_whole(value) and 0 <= value < 2**53  # JSON's numbers are exact up to there


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_map(value: Any) -> bool:
    return isinstance(value, dict)


BYE: Fields = {"type": (_is_text, "a string"), "sequence": (_is_sequence, "a whole number from 0 to 2^53 - 1")}
RESET: Fields = {**BYE, "observation": (lambda value: True, "")}  # `_observation` checks it
STEP: Fields = {**RESET, "reward": (_is_reward, USABLE)}
REQUESTS = {"bye": BYE, "reset": RESET, **dict.fromkeys(WITH_REWARD, STEP)}
HELLO: Fields = {
    "type": (_is_text, "a string"),
    "version": (_is_whole, "a whole number"),
    "token": (_is_text, "a string"),
    "observation": (_is_map, "a map"),
    "action": (_is_map, "a map"),
    "train": (lambda value: isinstance(value, bool), "true or false"),
    "session": (_is_text, "a string"),
}


def _require_keys(values: Values, fields: Fields, optional: Set[str] = frozenset()) -> None:
    kind = values["type"]
    if unknown := [name for name in values if name not in fields]:
        raise RemoteError(f"{kind}: unknown key {_short(unknown[0])}; allowed: {', '.join(fields)}")
    if missing := fields.keys() - values.keys() - optional:
        raise RemoteError(f"{kind}: {', '.join(sorted(missing))} missing")
    for name, value in values.items():
        fits, allowed = fields[name]
        if not fits(value):
            # only numbers are quoted, because a token may be in other values
            quoted = _short(value) if type(value) in NUMBERS else f"of type {type(value).__name__}"
            raise RemoteError(f"{kind}: {name} is {quoted}; require {allowed}")


def _space(spec: EnvironmentSpec) -> Values:
    return {"shape": list(spec.given_shape), "dtype": spec.given_dtype}


def _observation(value: Any, spec: EnvironmentSpec) -> Observation:
    """`value` as an array `[*given_shape]` of the environment's type, or as one of each part; raises `RemoteError`."""
    if not spec.parts:
        return _array(value, spec, "observation")
    if not isinstance(value, dict) or value.keys() != spec.boxes.keys():
        raise RemoteError(f"observation is {_short(value)}; require a map with the keys {', '.join(spec.boxes)}")
    return {name: _array(value[name], box, f"{name} in observation") for name, box in spec.boxes.items()}


def _mask(mask: Array, actions: Actions, *, is_over: bool) -> Array:
    """`mask`, or ones if no action is legal at an episode's end; raises `RemoteError` if none is legal before."""
    try:
        legal = is_legal(mask)
    except ValueError as error:
        raise RemoteError(f"{MASK} in observation: {error}") from None
    if has_choice(legal, actions.branches):
        return mask
    if not is_over:
        raise RemoteError(f"{MASK} in observation: no action is legal, though the episode goes on")
    return np.ones_like(mask)


def _array(value: Any, spec: EnvironmentSpec, what: str) -> Array:
    dtype, shape = np.dtype(spec.given_dtype), spec.given_shape
    if isinstance(value, bytes):
        expected = math.prod(shape) * dtype.itemsize
        if len(value) != expected:
            raise RemoteError(f"{what} has {len(value)} bytes, expected {expected}")
        array = np.frombuffer(value, dtype.newbyteorder("<"))
        if dtype.kind == "b" and array.view(np.uint8).max() > 1:
            raise RemoteError(f"{what} has a byte that is neither 0 nor 1")
    elif isinstance(value, list) or (not shape and type(value) in NUMBERS):
        array = _from_list(value if isinstance(value, list) else [value], what)
    else:
        raise RemoteError(f"{what} is {_short(value)}; require {'a list' if shape else 'a number'} or bytes")
    if array.shape != shape and array.shape != (math.prod(shape),):
        raise RemoteError(f"{what} has shape {list(array.shape)}, expected {list(shape)}")
    with np.errstate(all="ignore"):  # what does not fit is told apart below
        converted = array.astype(dtype).reshape(shape)
    if dtype.kind == "f" and unusable(converted):
        wrong = array.reshape(-1)[np.argmin(np.abs(converted.reshape(-1)) <= LARGEST)]
        raise RemoteError(f"{what} has {wrong:g}; require {USABLE}")
    if dtype.kind != "f" and (converted != array.reshape(shape)).any():
        raise RemoteError(f"{what} has a number that is not a {dtype.name}")
    if problem := spec.refusal(converted):
        raise RemoteError(f"{what}: {problem}")
    return converted


def _from_list(value: list[Any], what: str) -> Array:
    leaves = value
    while leaves and all(type(row) is list for row in leaves):
        leaves = [each for row in leaves for each in row]
    try:
        # an array of texts would have room for the longest one in each place
        array = np.asarray(value if set(map(type, leaves)) <= NUMBERS else None)
    except (ValueError, OverflowError, RecursionError):
        array = np.asarray(None)
    if array.dtype.kind not in "biuf":
        raise RemoteError(f"{what} is {_short(value)}; require numbers")
    return array


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not allowed")


def _short(value: Any) -> str:
    return (str(value) if isinstance(value, Exception) else SHORT.repr(value))[:LONGEST]


SHORT = reprlib.Repr()
SHORT.maxstring = SHORT.maxother = 60
