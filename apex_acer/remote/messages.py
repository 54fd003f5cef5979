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
Observation = Array | dict[str, Array]


class Field(NamedTuple):
    """A key of a message: which values it takes, in code and in words."""

    fits: Callable[[Any], bool]
    allowed: str


class RemoteError(Exception):
    """A client broke a rule; the message is one line for it, `code` WebSocket's."""

    def __init__(self, message: str, code: int = WRONG) -> None:
        super().__init__(message)
        self.code = code


class Hello(NamedTuple):
    """How a client introduces itself."""

    train: bool
    session: str
    """The session that it wants to go on with; empty: a new one."""


class Request(NamedTuple):
    """A client's message during play."""

    kind: str
    """One of `KINDS`."""
    sequence: int
    obs: Observation | None
    """`[*given_shape]`, or a part of each name; None with `bye`."""
    reward: float


def most_bytes(spec: EnvironmentSpec) -> int:
    """Bytes of the largest message that a client has reason to send."""
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


def parse_hello(values: Values, spec: EnvironmentSpec, token: str) -> Hello:
    """A `hello` with the right `token`, version and spaces; raises `RemoteError`."""
    if values["type"] != "hello":
        raise RemoteError("require hello first")  # without what came, which may be the token
    _require_keys(values, HELLO, {"train", "session"})
    if not hmac.compare_digest(values["token"].encode(errors="replace"), token.encode()):
        raise RemoteError("wrong token")
    if values["version"] != VERSION:
        raise RemoteError(f"version {_short(values['version'])} of the protocol; this server speaks {VERSION}")
    if problem := _observation_misfit(values["observation"], spec) or _action_misfit(values["action"], spec.actions):
        raise RemoteError(problem)
    return Hello(values.get("train", True), values.get("session", ""))


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


def _instance(kind: type, allowed: str) -> Field:
    return Field(lambda value: isinstance(value, kind), allowed)


TEXT, SPACE, ANYTHING = _instance(str, "a string"), _instance(dict, "a map"), _instance(object, "")
HELLO = {
    "type": TEXT,
    "version": Field(_is_whole, "a whole number"),
    "token": TEXT,
    "observation": SPACE,
    "action": SPACE,
    "train": _instance(bool, "true or false"),
    "session": TEXT,
}
BYE = {"type": TEXT, "sequence": Field(_is_sequence, "a whole number from 0 to 2^53 - 1")}
RESET = BYE | {"observation": ANYTHING}
REQUESTS = {"bye": BYE, "reset": RESET, **dict.fromkeys(WITH_REWARD, RESET | {"reward": Field(_is_reward, USABLE)})}


def _require_keys(values: Values, fields: Mapping[str, Field], optional: Set[str] = frozenset()) -> None:
    kind = values["type"]
    if unknown := [name for name in values if name not in fields]:
        raise RemoteError(f"{kind}: unknown key {_short(unknown[0])}; allowed: {', '.join(fields)}")
    if missing := fields.keys() - values.keys() - optional:
        raise RemoteError(f"{kind}: {', '.join(sorted(missing))} missing")
    for name, value in values.items():
        if not fields[name].fits(value):
            # the type of what is no number, because a token may be in it
            found = _short(value) if type(value) in NUMBERS else f"of type {type(value).__name__}"
            raise RemoteError(f"{kind}: {name} is {found}; require {fields[name].allowed}")


def _observation_misfit(given: Values, spec: EnvironmentSpec) -> str:
    expected = {name: _space(box) for name, box in spec.boxes.items()} or _space(spec)
    return "" if given == expected else f"observation is {_short(given)}, this server's is {expected}"


def _space(spec: EnvironmentSpec) -> Values:
    return {"shape": list(spec.given_shape), "dtype": spec.given_dtype}


def _action_misfit(given: Values, actions: Actions) -> str:
    expected = _short(actions.client_space())
    return "" if actions.fits(given) else f"action is {_short(given)}, this server's is {expected}"


def _observation(value: Any, spec: EnvironmentSpec) -> Observation:
    """`value` as an array `[*given_shape]` of the right type, or as such an array of each part; raises `RemoteError`."""
    if not spec.parts:
        return _array(value, spec, "observation")
    if not isinstance(value, dict) or value.keys() != spec.boxes.keys():
        raise RemoteError(f"observation is {_short(value)}; require a map with the keys {', '.join(spec.boxes)}")
    return {name: _array(value[name], box, f"{name} in observation") for name, box in spec.boxes.items()}


def _mask(mask: Array, actions: Actions, *, is_over: bool) -> Array:
    """`mask`, or one that allows everything if it allows nothing at an episode's end; raises `RemoteError` before."""
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
