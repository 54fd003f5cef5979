"""The protocol: the bytes in docs/remote.md, what is taken, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import math
import tracemalloc
from typing import Any

import msgpack
import numpy as np
import pytest

from apex_acer.protocol.actions import Discrete
from apex_acer.protocol.planes import to_planes, unpack
from apex_acer.protocol.specification import EnvironmentSpec, Part
from apex_acer.remote.messages import (
    STEPS,
    USABLE,
    Hello,
    RemoteError,
    Step,
    decode,
    encode,
    most_bytes,
    parse_hello,
    parse_request,
)
from tests import ROOT
from tests.remote.conftest import HELLO, TOKEN
from tests.runs import BOX, CARTPOLE
from tests.runs import PARTS as MASKED

HELLO_BOX = HELLO | {"action": {"low": [-1, 0], "high": [3.0, 10.0000001]}}
WRONG_HELLOS = {
    "first": ({"type": "reset", "sequence": 0}, "require hello first"),
    "token": (HELLO | {"token": "open"}, "wrong token"),
    "token's type": (HELLO | {"token": 5}, "hello: token is 5; require a string"),
    "version": (HELLO | {"version": 3}, "version 3 of the protocol; this server speaks 1 and 2"),
    "agents of version 1": (HELLO | {"agents": 2}, "hello: unknown key 'agents'; allowed: type, version, token, "),
    "no agents": (HELLO | {"version": 2}, "hello: agents missing"),
    "a name of version 1": (HELLO | {"name": "x"}, "hello: unknown key 'name'; allowed: type, version, token, "),
    "a long name": (
        HELLO | {"version": 2, "agents": 1, "name": "x" * 41},
        "hello: name is of type str; require a string of at most 40 printable characters",
    ),
    "0 agents": (HELLO | {"version": 2, "agents": 0}, "hello: agents is 0; require a whole number from 1 to 2^53"),
    "missing": ({"type": "hello", "token": TOKEN}, "hello: action, observation, version missing"),
    "unknown": (HELLO | {"colour": 1}, "hello: unknown key 'colour'; allowed: type, version, "),
    "observations": (
        HELLO | {"observation": {"shape": [3], "dtype": "float32"}},
        "observation is {'dtype': 'float32', 'shape': [3]}, this server's is {'shape': [4], 'dtype': 'float32'}",
    ),
    "actions": (HELLO | {"action": {"n": 3}}, "action is {'n': 3}, this server's is {'n': 2, 'start': 0}"),
    "another kind": (HELLO_BOX, "action is {'high': [3.0, 10.0000001], 'low': [-1, 0]}, this server's is"),
}


@pytest.mark.parametrize(("values", "message"), WRONG_HELLOS.values(), ids=WRONG_HELLOS)
def test_a_wrong_hello_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(RemoteError) as error:
        parse_hello(decode(json.dumps(values)), CARTPOLE, TOKEN)
    assert str(error.value).startswith(message)


def test_bounds_may_differ_by_what_a_float_cannot_hold() -> None:
    assert parse_hello(HELLO_BOX, BOX, TOKEN)
    far = HELLO_BOX | {"action": {"low": [-1, 0], "high": [3.0, 10.1]}}
    with pytest.raises(RemoteError, match=r"action is .*, this server's is"):
        parse_hello(far, BOX, TOKEN)


RESET: dict[str, Any] = {"type": "reset", "sequence": 1, "observation": [0, 0.5, 1, 2]}
STEP: dict[str, Any] = RESET | {"type": "step", "reward": 1}
WIDE: Any = "x" * 60
for _ in range(6):
    WIDE = [WIDE] * 6
WRONG_STEPS: dict[str, tuple[str | bytes, str]] = {
    "a list": ("[1]", "require a map with a string as type"),
    "no JSON": ("{", "not JSON: "),
    "NaN in JSON": (json.dumps(STEP | {"reward": math.nan}), "not JSON: NaN is not allowed"),
    "type": (json.dumps(STEP | {"type": "jump"}), "type 'jump' is unknown; allowed: reset, step, "),
    "no reward": (json.dumps(RESET | {"type": "step"}), "step: reward missing"),
    "a key of bytes": (msgpack.packb(dict([*STEP.items(), (b"x", 1)])), "step: unknown key b'x'"),
    "NaN reward": (msgpack.packb(STEP | {"reward": math.nan}), f"step: reward is nan; require {USABLE}"),
    "absurd reward": (msgpack.packb(STEP | {"reward": 2e15}), "step: reward is 2000000000000000.0; require "),
    "huge reward": (json.dumps(STEP | {"reward": 10**400}), "step: reward is 1"),
    "sequence": (
        json.dumps(STEP | {"sequence": True}),
        "step: sequence is True; require a whole number from 0 to 2^53",
    ),
}
WRONG_OBSERVATIONS: dict[str, tuple[Any, str]] = {
    "shape": ([1, 2], "has shape [2], expected [4]"),
    "text": (["1", "2", "3", "4"], "is ['1', '2', '3', '4']; require"),
    "nested wide": (WIDE, "is [[[[[['xxxxx"),
    "NaN": ([0.0, math.nan, 0, 0], f"has nan; require {USABLE}"),
    "too large for its type": ([0, 1e39, 0, 0], "has 1e+39; require "),
    "absurd": ([0, 1, -2e15, 0], "has -2e+15; require "),
}
WRONG_STEPS |= {
    f"observation, {name}": (msgpack.packb(STEP | {"observation": obs}), f"observation {message}")
    for name, (obs, message) in WRONG_OBSERVATIONS.items()
}


@pytest.mark.parametrize("key", ["token", "version", "session", "train"])
def test_values_of_a_wrong_type_are_not_quoted(key: str) -> None:
    with pytest.raises(RemoteError) as error:
        parse_hello(HELLO | {key: [TOKEN]}, CARTPOLE, TOKEN)  # a token may be in them
    assert TOKEN not in str(error.value)


def test_whole_numbers_may_be_written_as_floats_and_the_largest_are_taken() -> None:
    assert parse_hello(HELLO | {"version": 1.0, "action": {"n": 2.0}}, CARTPOLE, TOKEN)
    sequence = parse_request(decode('{"type":"bye","sequence":3.0}'), CARTPOLE).sequence
    assert (sequence, type(sequence)) == (3, int)
    assert only(STEP | {"observation": [1e15, -1e15, 0, 0], "reward": -(10**15)}, CARTPOLE).reward == -1e15


@pytest.mark.parametrize(("data", "message"), WRONG_STEPS.values(), ids=WRONG_STEPS)
def test_a_wrong_message_is_refused_in_one_line(data: str | bytes, message: str) -> None:
    with pytest.raises(RemoteError) as error:
        parse_request(decode(data), CARTPOLE)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


def only(values: dict[str, Any], spec: EnvironmentSpec) -> Step:
    """What a message of version 1 says of its agent."""
    (step,) = parse_request(values, spec).steps
    return step


def test_texts_take_no_more_memory_than_they_have() -> None:
    image = dataclasses.replace(CARTPOLE, plane_shape=(4, 84, 84), given_shape=(84, 84, 4), dtype="uint8")
    tracemalloc.start()
    try:
        message = read(["x" * 10_000, *[""] * 10_000], image)
        assert tracemalloc.get_traced_memory()[1] < 10**7
    finally:
        tracemalloc.stop()
    assert str(message).startswith("observation is ['xxx")


BYTES = dataclasses.replace(CARTPOLE, plane_shape=(1, 2, 3), given_shape=(2, 3), dtype="uint8")
BITS = dataclasses.replace(CARTPOLE, plane_shape=(2,), given_shape=(2,), dtype="bool")
NOT_BYTES = "observation has a number that is not a uint8"


@pytest.mark.parametrize(
    ("spec", "observation", "found"),
    [
        (BYTES, [[0, 1, 2], [3, 4, 255]], [[0, 1, 2], [3, 4, 255]]),
        (BYTES, [0.0, 1.0, 2.0, 3.0, 4.0, 255.0], [[0, 1, 2], [3, 4, 255]]),
        (BYTES, bytes([0, 1, 2, 3, 4, 255]), [[0, 1, 2], [3, 4, 255]]),
        (BYTES, [0, 1, 2, 3, 4, 256], NOT_BYTES),
        (BYTES, [0, 1, 2, 3, 4, -1], NOT_BYTES),
        (BYTES, [0, 1, 2, 3, 4, 0.5], NOT_BYTES),
        (BYTES, [0, 1, 2, 3, 4, math.nan], NOT_BYTES),
        (BYTES, [[0, 1], [2, 3], [4, 255]], "observation has shape [3, 2], expected [2, 3]"),
        (BITS, [1, 0], [True, False]),
        (BITS, b"\x01\x00", [True, False]),
        (BITS, b"\x02\x00", "observation has a byte that is neither 0 nor 1"),
        (BITS, [2, 0], "observation has a number that is not a bool"),
    ],
)
def test_integers_and_bools(spec: EnvironmentSpec, observation: Any, found: Any) -> None:
    assert read(observation, spec) == found


def read(observation: Any, spec: EnvironmentSpec) -> Any:
    try:
        step = only(STEP | {"observation": observation}, spec)
    except RemoteError as error:
        return str(error)
    assert isinstance(step.obs, np.ndarray)
    assert step.obs.dtype == spec.dtype
    return step.obs.tolist()


# ── observations with parts ──

ROOM = Part("room", (3,), "int8", False, (), choices=(3,), first=(5,))
PARTS = EnvironmentSpec.of_parts((Part("arm.load", (2,), "float32", False, (2,)), ROOM), CARTPOLE.actions, 1, 1)
SPACES = {"arm.load": {"shape": [2], "dtype": "float32"}, "room": {"shape": [], "dtype": "int64"}}


def test_parts_are_a_map_by_their_names() -> None:
    assert parse_hello(HELLO | {"observation": SPACES}, PARTS, TOKEN) == Hello(True, "", None)
    obs = {"room": 6, "arm.load": np.array([1, 2], "<f4").tobytes()}
    step = only({"type": "reset", "sequence": 0, "observation": obs}, PARTS)
    found = unpack(PARTS, to_planes(PARTS, step.obs, 1), PARTS.boxes)
    assert {name: array.tolist() for name, array in found.items()} == {"arm.load": [[1, 2]], "room": [[0, 1, 0]]}


@pytest.mark.parametrize(
    ("obs", "message"),
    [
        ([1, 2, 6], "observation is [1, 2, 6]; require a map with the keys arm.load, room"),
        ({"room": 6}, "observation is {'room': 6}; require a map with the keys arm.load, room"),
        ({"room": 6, "arm.load": [1, 2], "leg": 1}, "observation is {"),
        ({"room": 8, "arm.load": [1, 2]}, "room in observation: observation 8, allowed is an integer from 5 to 7"),
        ({"room": "5", "arm.load": [1, 2]}, "room in observation is '5'; require a number or bytes"),
        ({"room": 5, "arm.load": b"123"}, "arm.load in observation has 3 bytes, expected 8"),
    ],
)
def test_a_part_that_does_not_fit_is_named(obs: Any, message: str) -> None:
    with pytest.raises(RemoteError) as error:
        parse_request({"type": "reset", "sequence": 0, "observation": obs}, PARTS)
    assert str(error.value).startswith(message)


def test_a_mask_is_of_zeros_and_ones() -> None:
    parts = {part.name: part for part in MASKED.parts}
    loose = dataclasses.replace(parts["action_mask"], dtype="float32")
    others = [loose if part is parts["action_mask"] else part for part in MASKED.parts]
    spec = EnvironmentSpec.of_parts(tuple(others), MASKED.actions, MASKED.stack, MASKED.action_repeat)
    obs = {"action_mask": [1, 0.5], "arm": [0, 0, 0], "camera": [0] * 8, "room": 3}
    with pytest.raises(RemoteError, match=r"^action_mask in observation: an action mask with 0\.5; give 0, 1"):
        parse_request({"type": "reset", "sequence": 0, "observation": obs}, spec)


def test_a_mask_allows_an_action_until_the_episode_is_over() -> None:
    obs = {"action_mask": [0, 0], "arm": [0, 0, 0], "camera": [0] * 8, "room": 3}
    for message in ({"type": "reset"}, {"type": "step", "reward": 0}):
        with pytest.raises(RemoteError, match="no action is legal, though the episode goes on"):
            parse_request(message | {"sequence": 0, "observation": obs}, MASKED)
    for kind in ("terminated", "truncated"):
        found = only({"type": kind, "sequence": 0, "observation": obs, "reward": 0}, MASKED).obs
        assert isinstance(found, dict)
        assert found["action_mask"].tolist() == [1, 1], "what is bootstrapped from has an action"


# ── several agents ──

BATCH: dict[str, Any] = {
    "type": "steps",
    "sequence": 7,
    "kinds": ["step", "wait", "reset", "truncated"],
    "observations": [[0, 0.5, 1, 2], [9] * 4, [3] * 4, [4] * 4],
    "rewards": [1, 2, 3, -4.5],
}
NOTHING = np.full((4, 4), np.nan, "<f4")


def batch_of(values: dict[str, Any], spec: EnvironmentSpec) -> list[tuple[str, Any, float]]:
    """What a message of version 2 says of each agent."""
    agents = len(values["kinds"])
    return [(each.kind, as_list(each.obs), each.reward) for each in parse_request(values, spec, agents).steps]


def as_list(obs: Any) -> Any:
    return (
        {name: part.tolist() for name, part in obs.items()} if isinstance(obs, dict) else getattr(obs, "tolist", str)()
    )


def test_each_agent_has_its_row_and_one_that_waits_has_nothing() -> None:
    expected = [("step", [0, 0.5, 1, 2], 1), ("wait", "", 0), ("reset", [3] * 4, 0), ("truncated", [4] * 4, -4.5)]
    assert batch_of(BATCH, CARTPOLE) == expected
    flat = np.array(BATCH["observations"], "<f4")
    assert batch_of(BATCH | {"observations": flat.ravel().tolist()}, CARTPOLE) == expected
    flat[1] = np.nan  # nobody looks at it
    assert batch_of(BATCH | {"observations": flat.tobytes()}, CARTPOLE) == expected


def test_each_agent_has_its_row_of_each_part() -> None:
    obs: dict[str, Any] = {"room": [8, 5], "arm.load": np.array([[1, 2], [3, 4]], "<f4").tobytes()}
    values = {"type": "steps", "sequence": 0, "kinds": ["wait", "step"], "observations": obs, "rewards": [0, 2]}
    assert batch_of(values, PARTS) == [("wait", "", 0), ("step", {"arm.load": [3, 4], "room": 5}, 2)]
    with pytest.raises(RemoteError, match="room in observations: observation 8, allowed is an integer from 5 to 7"):
        batch_of(values | {"kinds": ["step", "step"]}, PARTS)
    obs = {"action_mask": [[0, 0], [0, 1]], "arm": [0] * 6, "camera": [0] * 16, "room": [3, 3]}
    values |= {"observations": obs, "kinds": ["terminated", "step"]}
    assert [each["action_mask"] for _, each, _ in batch_of(values, MASKED)] == [[1, 1], [0, 1]]
    with pytest.raises(RemoteError, match="no action is legal, though the episode goes on"):
        batch_of(values | {"kinds": ["step", "step"]}, MASKED)


WRONG_BATCHES: dict[str, tuple[dict[str, Any], str]] = {
    "a message of version 1": (STEP, "type 'step' is unknown; allowed: steps, bye"),
    "no kinds": (
        {**BATCH, "kinds": "step"},
        "steps: kinds is of type str; require a list of reset, step, terminated, ",
    ),
    "a kind": (BATCH | {"kinds": ["bye"] * 4}, "steps: kinds is of type list; require a list of reset, step, "),
    "too few kinds": (BATCH | {"kinds": ["step"] * 3}, "steps: 3 kinds and 4 rewards; require one for each agent, "),
    "too many rewards": (BATCH | {"rewards": [0] * 5}, "steps: 4 kinds and 5 rewards; require one for each agent, "),
    "all wait": (BATCH | {"kinds": ["wait"] * 4}, "steps: all agents wait; require another kind of one at least"),
    "NaN reward": (
        BATCH | {"rewards": [0, 0, 0, math.nan]},
        f"steps: rewards is of type list; require a list, each {USABLE}",
    ),
    "one reward": (BATCH | {"rewards": 1}, "steps: rewards is 1; require a list, each"),
    "rows": (BATCH | {"observations": [[0] * 4] * 3}, "observations has shape [3, 4], expected [4, 4]"),
    "columns": (BATCH | {"observations": [[0] * 3] * 4}, "observations has shape [4, 3], expected [4, 4]"),
    "bytes": (BATCH | {"observations": bytes(63)}, "observations has 63 bytes, expected 64"),
    "NaN": (BATCH | {"observations": NOTHING.tobytes()}, "observations has nan; require "),
    "no observations": ({key: BATCH[key] for key in BATCH if key != "observations"}, "steps: observations missing"),
}


@pytest.mark.parametrize(("values", "message"), WRONG_BATCHES.values(), ids=WRONG_BATCHES)
def test_a_wrong_message_about_agents_is_refused_in_one_line(values: dict[str, Any], message: str) -> None:
    with pytest.raises(RemoteError) as error:
        parse_request(decode(msgpack.packb(values)), CARTPOLE, 4)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_a_message_of_many_agents_may_be_longer() -> None:
    assert most_bytes(CARTPOLE, 3) - most_bytes(CARTPOLE) == 2 * 32 * 4
    assert most_bytes(MASKED, 3) - most_bytes(MASKED) == 2 * 32 * (2 + 3 + 8 + 1)


# ── the page ──

ROWS, ROWS_2 = (
    [[cell.strip("` ") for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| `")]
    for text in (ROOT / "docs/remote.md").read_text().partition("### Bytes")[2].split("Version 2, with two agents")
)


def shown(text: str) -> Any:
    """A message as the page shows it; a `bin` begins with that word."""
    values = json.loads(text)
    observation = values.get("observation")
    assert set(values.get("kinds", ())) <= set(STEPS)
    named = observation if isinstance(observation, dict) else values
    for name, value in named.items():
        if str(value).startswith("bin "):
            named[name] = bytes.fromhex(value.removeprefix("bin "))
    return values


@pytest.mark.parametrize(("direction", "text", "data"), ROWS + ROWS_2)
def test_the_bytes_on_the_page_are_those_of_its_messages(direction: str, text: str, data: str) -> None:
    if direction == ">":
        assert decode(bytes.fromhex(data)) == shown(text)
    else:
        assert encode(json.loads(text), text=False) == bytes.fromhex(data)
        assert decode(encode(json.loads(text), text=True)) == json.loads(text)


def test_the_server_takes_the_conversation_on_the_page() -> None:
    assert len(ROWS) == 11
    actions = Discrete(3, start=0)
    spec = dataclasses.replace(CARTPOLE, plane_shape=(2,), given_shape=(2,), actions=actions)
    hello, *said = [decode(bytes.fromhex(data)) for direction, _, data in ROWS[:-1] if direction == ">"]
    assert parse_hello(hello, spec, TOKEN) == Hello(True, "", None)
    requests = [parse_request(values, spec) for values in said]
    assert [(each.kind, each.sequence) for each in requests] == [
        ("reset", 0),
        ("step", 1),
        ("truncated", 2),
        ("bye", 3),
    ]
    assert [(step.kind, as_list(step.obs), step.reward) for each in requests for step in each.steps] == [
        ("reset", [0.5, -1.0], 0.0),
        ("step", [0.5, -1.0], 1.0),
        ("truncated", [0.0, 0.5], -0.5),
    ]
    hello, *said = [decode(bytes.fromhex(data)) for direction, _, data in ROWS_2 if direction == ">"]
    assert parse_hello(hello, spec, TOKEN) == Hello(True, "", 2)
    requests = [parse_request(values, spec, 2) for values in said]
    assert [(each.kind, each.sequence) for each in requests] == [("steps", 0), ("steps", 1), ("bye", 2)]
    assert [(step.kind, as_list(step.obs), step.reward) for each in requests for step in each.steps] == [
        ("reset", [0.5, -1.0], 0.0),
        ("wait", "", 0.0),
        ("terminated", [0.0, 0.5], 1.5),
        ("reset", [0.5, -1.0], 0.0),
    ]


def test_a_name_is_taken_without_the_token() -> None:
    hello = HELLO | {"version": 2, "agents": 2, "name": f"my {TOKEN}!"}
    assert parse_hello(hello, CARTPOLE, TOKEN).name == "my …!"
    with pytest.raises(RemoteError) as raised:
        parse_hello(hello | {"action": {"n": 3}}, CARTPOLE, TOKEN)
    assert raised.value.name == "my …!"
    with pytest.raises(RemoteError) as raised:
        parse_hello(hello | {"token": "a guess"}, CARTPOLE, TOKEN)
    assert raised.value.name == ""


def test_the_server_takes_the_parts_on_the_page() -> None:
    found = as_list(only(decode(bytes.fromhex(ROWS[-1][2])), MASKED).obs)
    camera = [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
    assert found == {"action_mask": [0, 1], "arm": [0.5, -1.0, 0.0], "camera": camera, "room": 5}
