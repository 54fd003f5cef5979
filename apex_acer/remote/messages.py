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

VERSIONS = 1, 2
WRONG, BUSY = 1008, 1013  # WebSocket's codes for a broken rule and for trying again later
HELLO_BYTES = 1 << 16
BYTES_PER_NUMBER = 32  # at most, in JSON
LONGEST = 200  # of what a refusal quotes, characters
LONGEST_NAME = 40  # characters
NUMBERS = {bool, int, float}
USABLE = f"a number from {-LARGEST:g} to {LARGEST:g}"
ENDS = "terminated", "truncated"
WITH_REWARD = "step", *ENDS
WAIT = "wait"
STEPS = "reset", *WITH_REWARD, WAIT  # of an agent

Values = dict[str, Any]
Fields = Mapping[str, tuple[Callable[[Any], bool], str]]  # by key: a check of the value, and what is allowed
Observation = Array | dict[str, Array]


class RemoteError(Exception):
    """Error of a client: the message is one line for it, `code` WebSocket's close code."""

    def __init__(self, message: str, code: int = WRONG, name: str = "") -> None:
        """`name` is the client's if it knows the token."""
        super().__init__(message)
        self.code, self.name = code, name


class Hello(NamedTuple):
    """What a client asks for."""

    train: bool
    """Whether its steps are for training."""
    session: str
    """The session that it wants to go on with; empty: a new one."""
    agents: int | None
    """Number of agents in each message of version 2; None in version 1, which knows no agents."""
    name: str = ""
    """The client's name in the log and in metrics, without the token; empty: it has none."""


class Step(NamedTuple):
    """What a message says of one agent: `kind` is one of `STEPS`."""

    kind: str
    obs: Observation | None
    """`[*given_shape]`, or an array of each part by name; None if the agent waits."""
    reward: float


class Request(NamedTuple):
    """A client's message during play."""

    kind: str
    """The message's type."""
    sequence: int
    steps: list[Step]
    """One for each agent; none with `bye`."""


def most_bytes(spec: EnvironmentSpec, agents: int = 1) -> int:
    """Largest size in bytes of a client's message about so many agents."""
    numbers = sum(math.prod(box.given_shape) for box in spec.boxes.values() or [spec])
    return HELLO_BYTES + BYTES_PER_NUMBER * numbers * agents


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
    """Checks a `hello`: its token, version and spaces; raises `RemoteError`."""
    if values["type"] != "hello":
        raise RemoteError("require hello first")  # without what came, which may be the token
    has_agents = values.get("version") == 2
    _require_keys(values, HELLO_2 if has_agents else HELLO, {"train", "session", "name"})
    if not hmac.compare_digest(values["token"].encode(errors="replace"), token.encode()):
        raise RemoteError("wrong token")
    name = values.get("name", "").replace(token, "…")
    if values["version"] not in VERSIONS:
        spoken = " and ".join(map(str, VERSIONS))
        raise RemoteError(f"version {_short(values['version'])} of the protocol; this server speaks {spoken}")
    space = {name: _space(box) for name, box in spec.boxes.items()} or _space(spec)
    if values["observation"] != space:
        line = f"observation is {_short(values['observation'])}, this server's is {space}"
        raise RemoteError(line, name=name)
    if not spec.actions.fits(values["action"]):
        actions = _short(spec.actions.client_space())
        raise RemoteError(f"action is {_short(values['action'])}, this server's is {actions}", name=name)
    agents = int(values["agents"]) if has_agents else None
    return Hello(values.get("train", True), values.get("session", ""), agents, name)


def parse_request(values: Values, spec: EnvironmentSpec, agents: int | None = None) -> Request:
    """A message during play, in version 2 one of so many `agents`; raises `RemoteError`."""
    kind = values["type"]
    allowed = REQUESTS if agents is None else REQUESTS_2
    if kind not in allowed:
        raise RemoteError(f"type {_short(kind)} is unknown; allowed: {', '.join(allowed)}")
    _require_keys(values, allowed[kind])
    sequence = int(values["sequence"])
    if kind == "bye":
        return Request(kind, sequence, [])
    if agents is None:
        return Request(kind, sequence, _steps([kind], [values.get("reward", 0.0)], values["observation"], spec, ()))
    kinds, rewards = values["kinds"], values["rewards"]
    if not len(kinds) == len(rewards) == agents:
        counts = f"{len(kinds)} kinds and {len(rewards)} rewards"
        raise RemoteError(f"{kind}: {counts}; require one for each agent, which are {agents}")
    if set(kinds) == {WAIT}:
        raise RemoteError(f"{kind}: all agents wait; require another kind of one at least")
    return Request(kind, sequence, _steps(kinds, rewards, values["observations"], spec, (agents,)))


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


def _is_count(value: Any) -> bool:
    return _is_sequence(value) and value > 0


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= LONGEST_NAME and value.isprintable()


def _are_kinds(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(kind, str) and kind in STEPS for kind in value)


def _are_rewards(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_reward, value))


BYE: Fields = {"type": (_is_text, "a string"), "sequence": (_is_sequence, "a whole number from 0 to 2^53 - 1")}
RESET: Fields = {**BYE, "observation": (lambda value: True, "")}  # `_observations` checks it
STEP: Fields = {**RESET, "reward": (_is_reward, USABLE)}
REQUESTS = {"reset": RESET, **dict.fromkeys(WITH_REWARD, STEP), "bye": BYE}
BATCH: Fields = {
    **BYE,
    "kinds": (_are_kinds, f"a list of {', '.join(STEPS)}"),
    "observations": RESET["observation"],
    "rewards": (_are_rewards, f"a list, each {USABLE}"),
}
REQUESTS_2 = {"steps": BATCH, "bye": BYE}
HELLO: Fields = {
    "type": (_is_text, "a string"),
    "version": (_is_whole, "a whole number"),
    "token": (_is_text, "a string"),
    "observation": (_is_map, "a map"),
    "action": (_is_map, "a map"),
    "train": (lambda value: isinstance(value, bool), "true or false"),
    "session": (_is_text, "a string"),
}
HELLO_2: Fields = {
    **HELLO,
    "agents": (_is_count, "a whole number from 1 to 2^53 - 1"),
    "name": (_is_name, f"a string of at most {LONGEST_NAME} printable characters"),
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


def _steps(
    kinds: list[str], rewards: list[float], value: Any, spec: EnvironmentSpec, lead: tuple[int, ...]
) -> list[Step]:
    """The step of each agent, whose observations are in `value` `[*lead, *given_shape]`; raises `RemoteError`."""
    acting = [at for at, kind in enumerate(kinds) if kind != WAIT]
    steps = [Step(WAIT, None, 0.0)] * len(kinds)
    for at, obs in zip(acting, _observations(value, spec, lead, acting), strict=True):
        kind = kinds[at]
        if spec.has_masks and isinstance(obs, dict):
            obs[MASK] = _mask(obs[MASK], spec.actions, is_over=kind in ENDS)
        steps[at] = Step(kind, obs, float(rewards[at]) if kind in WITH_REWARD else 0.0)
    return steps


def _observations(value: Any, spec: EnvironmentSpec, lead: tuple[int, ...], rows: list[int]) -> list[Observation]:
    """The observation in each of the `rows` of `value` `[*lead, *given_shape]`; raises `RemoteError`."""
    what = "observations" if lead else "observation"
    if not spec.parts:
        array = _array(value, spec, what, lead, rows)
        return [array[at, ...] for at in range(len(rows))]
    if not isinstance(value, dict) or value.keys() != spec.boxes.keys():
        raise RemoteError(f"{what} is {_short(value)}; require a map with the keys {', '.join(spec.boxes)}")
    parts = {name: _array(value[name], box, f"{name} in {what}", lead, rows) for name, box in spec.boxes.items()}
    return [{name: array[at, ...] for name, array in parts.items()} for at in range(len(rows))]


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


def _array(value: Any, spec: EnvironmentSpec, what: str, lead: tuple[int, ...], rows: list[int]) -> Array:
    """The `rows` of `value` `[*lead, *given_shape]` in the environment's type; the other rows may have any numbers."""
    dtype, shape = np.dtype(spec.given_dtype), (*lead, *spec.given_shape)
    if isinstance(value, bytes):
        expected = math.prod(shape) * dtype.itemsize
        if len(value) != expected:
            raise RemoteError(f"{what} has {len(value)} bytes, expected {expected}")
        array = np.frombuffer(value, dtype.newbyteorder("<"))
    elif isinstance(value, list) or (not shape and type(value) in NUMBERS):
        array = _from_list(value if isinstance(value, list) else [value], what)
    else:
        raise RemoteError(f"{what} is {_short(value)}; require {'a list' if shape else 'a number'} or bytes")
    if array.shape != shape and array.shape != (math.prod(shape),):
        raise RemoteError(f"{what} has shape {list(array.shape)}, expected {list(shape)}")
    array = array.reshape(-1, *spec.given_shape)[rows]
    if isinstance(value, bytes) and dtype.kind == "b" and array.view(np.uint8).max() > 1:
        raise RemoteError(f"{what} has a byte that is neither 0 nor 1")
    with np.errstate(all="ignore"):  # what does not fit is told apart below
        converted = array.astype(dtype)
    if dtype.kind == "f" and unusable(converted):
        wrong = array.reshape(-1)[np.argmin(np.abs(converted.reshape(-1)) <= LARGEST)]
        raise RemoteError(f"{what} has {wrong:g}; require {USABLE}")
    if dtype.kind != "f" and (converted != array).any():
        raise RemoteError(f"{what} has a number that is not a {dtype.name}")
    for row in converted if spec.choices else ():
        if problem := spec.refusal(row):
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
