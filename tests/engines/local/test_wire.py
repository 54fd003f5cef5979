from __future__ import annotations

import dataclasses
import tracemalloc
from typing import Any

import msgpack
import numpy as np
import pytest

from apex_acer.engines.local import wire
from apex_acer.engines.local.wire import (
    MAX_HEADER_BYTES,
    WireError,
    decode_message,
    decode_reply,
    encode_message,
    encode_reply,
)
from apex_acer.protocol.messages import Message, Peer, Reply
from apex_acer.protocol.unroll import ARRAY_FIELDS, Unroll
from tests.conftest import assert_equal_unrolls
from tests.runs import BOX, RUN_ID, made_up_unroll, tiny_run

CONFIG = tiny_run()
MESSAGE = Message(
    RUN_ID,
    Peer("actor", 1, 2),
    3,
    weights_version=4,
    wants_weights=True,
    rows=[{"episode_return": 1.5, "episodes": 2}],
    unroll=made_up_unroll(CONFIG),
    acting_s=1.25,
)


def as_bytes(message: Message) -> list[bytes]:
    return [bytes(part) for part in encode_message(message)]


DATA = as_bytes(MESSAGE)[1]
DESCRIBED = str(msgpack.unpackb(as_bytes(MESSAGE)[0])["arrays"])
OBS_BYTES = 4 * 6 * 4 * 4


def changed(*parts: bytes, **header: Any) -> list[bytes]:
    """MESSAGE with other header fields and, where given, other `parts` after it."""
    first, *rest = as_bytes(MESSAGE)
    return [msgpack.packb(msgpack.unpackb(first) | header), *(parts or rest)]


def without(name: str) -> list[bytes]:
    first, *rest = as_bytes(MESSAGE)
    header = msgpack.unpackb(first)
    del header[name]
    return [msgpack.packb(header), *rest]


def with_array(described: str, data: bytes = b"\0" * 8) -> list[bytes]:
    """MESSAGE with one more array."""
    return changed(DATA + data, arrays=f"{DESCRIBED} {described}")


def with_first(described: str, data: bytes | None = None) -> list[bytes]:
    """MESSAGE with another description of its first array."""
    return changed(*([] if data is None else [data]), arrays=" ".join([described, *DESCRIBED.split(" ")[1:]]))


UNROLLS = {
    "discrete": made_up_unroll(CONFIG),
    "recurrent": made_up_unroll(tiny_run(network__lstm=3)),
    "continuous": made_up_unroll(tiny_run(algorithm__name="sac"), spec=BOX),
    "not contiguous": made_up_unroll(CONFIG, obs=np.asfortranarray(made_up_unroll(CONFIG).obs)),
}


@pytest.mark.parametrize("unroll", UNROLLS.values(), ids=UNROLLS)
def test_a_message_with_an_unroll_comes_back_as_aligned_views(unroll: Unroll) -> None:
    parts = as_bytes(dataclasses.replace(MESSAGE, unroll=unroll))
    back = decode_message(parts)
    assert back.unroll is not None
    assert_equal_unrolls(back.unroll, unroll)
    assert dataclasses.replace(back, unroll=None) == dataclasses.replace(MESSAGE, unroll=None)
    whole = np.frombuffer(parts[1], np.uint8)
    arrays = [getattr(back.unroll, name) for name in ARRAY_FIELDS]
    for array in [*arrays, *back.unroll.extras.values(), *back.unroll.state.values()]:
        assert np.shares_memory(whole, array)
        assert (array.ctypes.data - whole.ctypes.data) % 8 == 0


@pytest.mark.parametrize(
    "message",
    [
        Message(RUN_ID, Peer("evaluator", 0, 0), 0, wants_weights=True),
        Message(RUN_ID, Peer("manager", 0, 0), 7, stop="SIGINT", incarnations={"actor_0": 1}),
        Message(RUN_ID, Peer("actor", 0, 0), 0, rows=[{"a": float("inf"), "b": -5, "c": 2**63}]),
    ],
)
def test_message_without_unroll_comes_back(message: Message) -> None:
    assert decode_message(as_bytes(message)) == message


def test_a_header_beyond_the_limit_is_not_unpacked() -> None:
    rows = [{f"metric_{number}": 1.5 for number in range(100)}] * 1000
    parts = as_bytes(Message(RUN_ID, Peer("actor", 0, 0), 0, rows=rows))
    assert len(parts[0]) > MAX_HEADER_BYTES
    with pytest.raises(WireError, match="1 parts, the first of"):
        decode_message(parts)


@pytest.mark.parametrize(
    "reply",
    [
        Reply(3),
        Reply(4, stop=True, weights_version=9, weights=b"\x00tensors", refused="", status={"rows": {"actor_0": {}}}),
        Reply(5, refused="sequence 5, expected 4"),
    ],
)
def test_reply_comes_back(reply: Reply) -> None:
    assert decode_reply([bytes(part) for part in encode_reply(reply)]) == reply


MALFORMED = {
    "no parts": [],
    "not msgpack": [b"\xc1"],
    "cut short": [as_bytes(MESSAGE)[0][:-5], DATA],
    "deeply nested": [b"\x91" * 5000],
    "bytes after the end": [as_bytes(MESSAGE)[0] + b"\x00", DATA],
    "not UTF-8": [b"\x81\xa1\xff\x01"],
    "not a map": [msgpack.packb([1, 2])],
    "a list as key": [b"\x81\x90\x01"],
    "header too large": [b"\x00" * (MAX_HEADER_BYTES + 1)],
    "part more": [*as_bytes(MESSAGE), b""],
    "header key unknown": changed(surprise=1),
    "arrays missing": as_bytes(MESSAGE)[:1],
    "arrays not described": changed(arrays=""),
    "arrays a list": changed(arrays=[["obs", "float32", [6, 4, 4]]]),
    "data cut short": changed(DATA[:-1]),
    "data longer": changed(DATA + b"\0" * 8),
    "data not aligned": changed(DATA + b"\0", arrays=f"{DESCRIBED} state.x:uint8:1"),
    "field missing": changed(DATA[OBS_BYTES:], arrays=DESCRIBED.partition(" ")[2]),
    "field unknown": with_first("surprise:float32:6,4,4"),
    "first array twice": changed(DATA[:OBS_BYTES] + DATA, arrays=f"obs:float32:6,4,4 {DESCRIBED}"),
    "two parts of one name": with_array("state.x:float32:1 state.x:float32:1", b"\0" * 16),
    "array more": with_array("surprise:float32:1"),
    "shape": with_first("obs:float32:6,4,5"),
    "object dtype": with_first("obs:object:6,4,4"),
    "negative shape": with_first("obs:float32:-6,-4,4"),
    "shape missing": with_first("obs:float32"),
    "shape beyond memory": with_first(f"obs:float32:0,{10**11}", DATA[OBS_BYTES:]),
    "no columns": with_first("obs:float32:6,0,4", DATA[OBS_BYTES:]),
    "neither true nor false": with_array("extras.x:bool:1", b"\x02" + b"\0" * 7),
    "too many dimensions": with_first("obs:float32:96" + ",1" * 8),
    "a line's end": with_first("obs:float32:6,4,4\n"),
    "index negative": changed(peer=["actor", -1, 0]),
    "index a flag": changed(peer=["actor", True, 0]),
    "incarnation negative": changed(peer=["actor", 0, -1]),
    "a second manager": changed(peer=["manager", 1, 0]),
    "rows no list": changed(rows={"a": 1.0}),
    "row of text": changed(rows=[{"a": "1.0"}]),
    "row name not text": changed(rows=[{b"a": 1.0}]),
    "run id a number": changed(run_id=5),
    "row of flags": changed(rows=[{"a": True}]),
    "run id an extension": changed(run_id=msgpack.ExtType(5, b"x")),
    "sequence negative": changed(sequence=-1),
    "sequence beyond 63 bits": changed(sequence=2**63),
    "version below none": changed(weights_version=-2),
    "wants_weights a number": changed(wants_weights=1),
    "stop a number": changed(stop=1),
    "acting_s text": changed(acting_s="now"),
    "acting_s nan": changed(acting_s=float("nan")),
    "acting_s negative": changed(acting_s=-1.0),
    "incarnations a number": changed(incarnations=5),
    "incarnations of text": changed(incarnations={"actor_0": "first"}),
} | {f"without {name}": without(name) for name in msgpack.unpackb(as_bytes(MESSAGE)[0])}


@pytest.mark.parametrize("parts", MALFORMED.values(), ids=MALFORMED)
def test_malformed_message_raises_wire_error_only(parts: list[bytes]) -> None:
    with pytest.raises(WireError) as raised:
        decode_message(parts)
    assert str(raised.value).isprintable()
    assert 5 < len(str(raised.value)) < 300


def reply(**header: Any) -> list[bytes]:
    return [msgpack.packb(msgpack.unpackb(bytes(encode_reply(Reply(1))[0])) | header)]


MALFORMED_REPLIES: list[list[bytes]] = [
    [],
    [b""],
    [b"\x80"],
    reply(sirup=2),
    [*reply(), b"weights", b""],
    reply(sequence=-1),
    reply(stop=1),
    reply(refused=True),
    reply(status=[]),
    reply(weights="x"),
]


@pytest.mark.parametrize("parts", MALFORMED_REPLIES)
def test_malformed_reply_raises_wire_error_only(parts: list[bytes]) -> None:
    with pytest.raises(WireError) as raised:
        decode_reply(parts)
    assert str(raised.value).isprintable()


def test_every_field_is_checked() -> None:
    for kind, fields, other in ((Message, wire.MESSAGE, {"unroll", "arrays"}), (Reply, wire.REPLY, {"weights"})):
        assert {field.name for field in dataclasses.fields(kind)} ^ fields.keys() == other


def test_lengths_that_lie_take_no_memory() -> None:
    tracemalloc.start()
    try:
        for promise in (b"\xdd\x00\x0f\xff\xff", b"\xdf\x00\x0f\xff\xff\xa1x", b"\xdd\x00\x00\x0f\xff"):
            with pytest.raises(WireError):
                decode_message([promise * (MAX_HEADER_BYTES // len(promise))])
        assert tracemalloc.get_traced_memory()[1] < 64e6
    finally:
        tracemalloc.stop()


def test_flipped_bytes_give_a_message_or_a_wire_error() -> None:
    random = np.random.default_rng(0)
    parts, refused = as_bytes(MESSAGE), 0
    for _ in range(2000):
        flipped = [bytearray(part) for part in parts]
        for _ in range(random.integers(1, 4)):
            part = flipped[0] if random.random() < 0.8 else flipped[random.integers(len(flipped))]
            part[random.integers(len(part))] ^= random.integers(1, 256)
        try:
            assert isinstance(decode_message([bytes(part) for part in flipped]), Message)
        except WireError:
            refused += 1
    assert 500 < refused < 2000
