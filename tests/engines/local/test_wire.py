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


def with_array(described: str, data: bytes = b"\0" * 8) -> list[bytes]:
    """MESSAGE with one more array."""
    return changed(DATA + data, arrays=f"{DESCRIBED} {described}")


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
        Message(RUN_ID, Peer("actor", 0, 0), 0, rows=[{"a": 1.0}], clients={"robot": {"clients": 3, "a": 0.5}}),
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
    "header key unknown": changed(surprise=1),
    "header keys missing": [msgpack.packb({}), DATA],
    "arrays missing": as_bytes(MESSAGE)[:1],
    "arrays not described": changed(arrays=""),
    "data longer": changed(DATA + b"\0" * 8),
    "data not aligned": changed(DATA + b"\0", arrays=f"{DESCRIBED} state.x:uint8:1"),
    "field missing": changed(DATA[OBS_BYTES:], arrays=DESCRIBED.partition(" ")[2]),
    "two parts of one name": with_array("state.x:float32:1 state.x:float32:1", b"\0" * 16),
    "array more": with_array("surprise:float32:1"),
    "shape beyond memory": changed(DATA[OBS_BYTES:], arrays=f"obs:float32:0,{10**11} {DESCRIBED.partition(' ')[2]}"),
    "neither true nor false": with_array("extras.x:bool:1", b"\x02" + b"\0" * 7),
    "index negative": changed(peer=["actor", -1, 0]),
    "index a flag": changed(peer=["actor", True, 0]),
    "incarnation negative": changed(peer=["actor", 0, -1]),
    "a second manager": changed(peer=["manager", 1, 0]),
    "rows no list": changed(rows={"a": 1.0}),
    "row name not text": changed(rows=[{b"a": 1.0}]),
    "clients a list": changed(clients=[{"a": 1.0}]),
    "row of a client not of numbers": changed(clients={"robot": {"a": "b"}}),
    "run id a number": changed(run_id=5),
    "row of flags": changed(rows=[{"a": True}]),
    "sequence beyond 63 bits": changed(sequence=2**63),
    "version below none": changed(weights_version=-2),
    "wants_weights a number": changed(wants_weights=1),
    "stop a number": changed(stop=1),
    "acting_s nan": changed(acting_s=float("nan")),
    "acting_s negative": changed(acting_s=-1.0),
    "incarnations a number": changed(incarnations=5),
    "incarnations of text": changed(incarnations={"actor_0": "first"}),
}


@pytest.mark.parametrize("parts", MALFORMED.values(), ids=MALFORMED)
def test_malformed_message_raises_wire_error_only(parts: list[bytes]) -> None:
    """Thousands more, and replies, are in checks/chaos/test_fuzz.py."""
    with pytest.raises(WireError) as raised:
        decode_message(parts)
    assert str(raised.value).isprintable()
    assert 5 < len(str(raised.value)) < 300


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
