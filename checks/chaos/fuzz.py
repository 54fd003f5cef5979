"""Bad input by the million: good messages and files, injured with a seed, and what may come of them."""

from __future__ import annotations

import copy
import math
import random
import struct
from collections import Counter
from typing import Any

import msgpack
import numpy as np

from apex_acer.engines.local.wire import DTYPES, WireError, decode_message, decode_reply, encode_message, encode_reply
from apex_acer.learner.inbox import Inbox
from apex_acer.protocol.messages import Message, Peer, Reply
from apex_acer.protocol.planes import unpack
from apex_acer.protocol.specification import EnvironmentSpec
from apex_acer.protocol.unroll import ARRAY_FIELDS, Layout, Unroll
from tests.runs import BOX, CARTPOLE, PARTS, RUN_ID, known_speakers, made_up_unroll, tiny_layout, tiny_run

TOKENS = (
    *(b"\xc0", b"\xc1", b"\xc2", b"\xc3", b"\xc4\x00", b"\xc7\x00\xff", b"\xd6\xff\0\0\0\1", b"\x81" * 90),
    *(b"\xcb\x7f\xf8" + b"\0" * 6, b"\xcf" + b"\xff" * 8, b"\xd3\x80" + b"\0" * 7, b"\xff", b"\x00", b"\x90", b"\x80"),
    *(kind + b"\xff\xff\xff\xff" for kind in (b"\xdb", b"\xdd", b"\xdf", b"\xc6", b"\xc9")),
    *(b"NaN", b"-Infinity", b"1e999", b"9" * 30, b"9" * 5000, b"null"),
    *(b"[" * 90, b"{", b"}", b'"', b"'", b"\n", b"=", b"."),
)
"""What means something to msgpack, JSON or TOML."""

ELEMENTS = (
    *(struct.pack("<q", value) for value in (-1, 0, 1, 2, 2**32, 2**63 - 1, -(2**63))),
    *(struct.pack("<ff", *values) for values in ((math.nan, 0), (0, -math.inf), (-0.0, 3e38), (1, -1), (1.5, -1.0001))),
    *(b"\x01" * 8, b"\x02" * 8, b"\xff" * 8),
)
"""Eight bytes of an array."""

JUNK: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, 2**31, 2**63 - 1, 2**63, 2**64 - 1, -(2**63), 1.5, -0.0, 1e300, math.inf, math.nan),
    *("", "x", "a\nb", "\0", "x" * 70_000, "acer", "float32", "object", "obs", "eval_return"),
    *([], [0], [[]], [[[[[]]]]], [1, 2, 3]),
    *({}, {"": 0}, {"a\nb": 1}, {"loss": math.nan}, {"actor_1": 2}, {"x": {"y": []}}),
)
"""Values of every kind that msgpack and JSON can hold."""

NAMES = (*ARRAY_FIELDS, "extras.log_probs", "state.cell", "extras.", "x", "")
LENGTHS = (*range(-1, 8), 2**31, 2**32, 2**62, 2**63, "", "٣")
KINDS = (*sorted(DTYPES), "object", "<f9", "")
"""What a header may say of an array: its name, the lengths in its shape and its type."""


class Mutator:
    """Injures what it is given, always the same way for one `seed`."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def data(self, data: bytes) -> bytes:
        """One to four injuries of `data`: overwritten, inserted, removed, repeated or cut."""
        draw, injured = self.random, bytearray(data)
        for _ in range(draw.choice((1, 1, 2, 4))):
            start = draw.randrange(len(injured) + 1)
            end = start + draw.choice((1, 1, 2, 4, 8, 64))
            match draw.randrange(12):
                case 0:
                    del injured[start:]
                case 1 | 2:
                    del injured[start:end]
                case 3 | 4:
                    injured[start:start] = injured[start:end]
                case 5 | 6:
                    injured[start:start] = draw.choice(TOKENS)
                case 7 | 8:
                    injured[start:end] = draw.choice(TOKENS)
                case _:
                    injured[start:end] = draw.randbytes(end - start)
        return bytes(injured)

    def elements(self, data: bytes) -> bytes:
        """`data` with eight bytes of another meaning, at the place of one or two elements."""
        start = 8 * self.random.randrange(len(data) // 8 + 1)
        return data[:start] + self.random.choice(ELEMENTS)[: len(data) - start] + data[start + 8 :]

    def value(self, value: Any) -> Any:
        """A copy of `value`, plain nested dicts and lists, with one thing in it replaced, removed or added."""
        draw = self.random
        if not isinstance(value, dict | list) or not value or draw.random() < 0.15:
            near = type(value) is int and draw.random() < 0.3
            return draw.choice((value + 1, value - 1, -value)) if near else self.junk()
        changed: Any = copy.copy(value)
        keys: list[Any] = list(value) if isinstance(value, dict) else list(range(len(value)))
        key = draw.choice(keys)
        match draw.randrange(8):
            case 0:
                del changed[key]
            case 1 if isinstance(changed, dict):
                changed[self.junk_name()] = changed.pop(key)
            case 1:
                changed.append(changed[key])
            case 2:
                changed[key] = value[draw.choice(keys)]
            case _:
                changed[key] = self.value(value[key])
        return changed

    def junk(self) -> Any:
        """Any value."""
        return self.random.choice(JUNK)

    def junk_name(self) -> str:
        """Any text."""
        return self.random.choice([value for value in JUNK if isinstance(value, str)])

    def header(self, header: Any) -> Any:
        """`header` with one thing in it changed, or the description of one of its arrays."""
        arrays = header["arrays"].split(" ") if header.get("arrays") else []
        if not arrays or self.random.random() < 0.7:
            return self.value(header)
        at = self.random.randrange(len(arrays))
        name, kind, shape = arrays[at].split(":")
        lengths = [str(self.random.choice(LENGTHS)) for _ in range(self.random.randrange(10))]
        if self.random.random() < 0.5:  # as many elements as there are
            lengths = self.random.sample(whole := [*shape.split(","), "1"], len(whole))
        name, kind = self.random.choice((name, *NAMES)), self.random.choice((kind, kind, *KINDS))
        arrays[at] = f"{name}:{kind}:{','.join(lengths)}"
        return header | {"arrays": " ".join(arrays)}

    def parts(self, parts: list[bytes]) -> list[bytes]:
        """A message's parts with their header, an array or their number injured."""
        draw, injured = self.random, list(parts)
        at = draw.randrange(len(injured))
        match draw.randrange(12):
            case 0 | 1 | 2 | 3 | 4:
                injured[0] = msgpack.packb(self.header(msgpack.unpackb(injured[0])))
            case 5 | 6:
                injured[0] = self.data(injured[0])
            case 7:
                injured[at] = self.data(injured[at])
            case 8 | 9:
                injured[at] = self.elements(injured[at])
            case 10:
                injured.insert(draw.randrange(len(injured) + 1), draw.choice((b"", injured[at], draw.randbytes(96))))
            case _:
                other = draw.randrange(len(injured))
                injured[at], injured[other] = injured[other], injured[at]
                del injured[draw.randrange(len(injured)) :]
        return injured


# ── messages ──

RUNS = {
    "feed-forward": tiny_run(),
    "recurrent": tiny_run(network__lstm=8),
    "continuous": tiny_run(algorithm__name="ddpg", algorithm__noise="ornstein_uhlenbeck"),
    "parts": tiny_run(),
}
SPECS = dict.fromkeys(RUNS, CARTPOLE) | {"continuous": BOX, "parts": PARTS}
LAYOUTS = {name: tiny_layout(config, SPECS[name]) for name, config in RUNS.items()}
INTRODUCER = Peer("manager", 0, 0)  # who told the inbox of the others
ACTOR, EVALUATOR, MANAGER = Peer("actor", 1, 2), Peer("evaluator", 0, 1), Peer("manager", 0, 3)


def good_messages(run: str) -> list[list[bytes]]:
    """The parts of messages that the inbox of `make_inbox` takes."""
    row = {"episode_return": 1.5, "time_waiting": 0.5, "episodes": 2}
    unroll = made_up_unroll(RUNS[run], spec=SPECS[run])
    said: tuple[tuple[Peer, dict[str, Any]], ...] = (
        (ACTOR, {"unroll": unroll, "rows": [row], "clients": {"robot": row}, "weights_version": 4, "acting_s": 1.25}),
        (ACTOR, {"wants_weights": True}),
        (EVALUATOR, {"wants_weights": True, "rows": [{"eval_return": 3.0}]}),
        (MANAGER, {"stop": "SIGINT", "incarnations": {"actor_1": 2, "evaluator": 1}}),
    )
    messages = [Message(RUN_ID, peer, 0, **fields) for peer, fields in said]
    return [[bytes(part) for part in encode_message(message)] for message in messages]


def make_inbox(run: str) -> Inbox:
    """An inbox that knows the peers of `good_messages`."""
    inbox = Inbox(RUN_ID, LAYOUTS[run], 4, SPECS[run], max_waiting=2)
    known_speakers(inbox, ACTOR, EVALUATOR)
    return inbox


def deliver(run: str, parts: list[bytes]) -> str:
    """What became of a message: `malformed`, `refused` or `taken`; anything else is an AssertionError."""
    try:
        message = decode_message(parts)
    except WireError as error:
        assert_one_line(str(error))
        return "malformed"
    inbox, answers = make_inbox(run), list[Reply]()
    inbox.post(message, answers.append)
    if answers and answers[0].refused:
        assert_one_line(answers[0].refused, limit=100_000)  # it tells the sender what it said
        assert len(answers) == inbox.num_refused == 1
        assert inbox.empty
        return "refused"
    assert inbox.num_refused == 0
    assert_valid(message, LAYOUTS[run], SPECS[run])
    waiting = (inbox.take_unroll(0) or inbox.take_other()) if not inbox.empty else None
    assert (waiting is None) == bool(answers) == (message.peer.role == "manager")
    return "taken"


def assert_valid(message: Message, layout: Layout, spec: EnvironmentSpec) -> None:
    """Whether the learner may work with `message` without looking at it."""
    assert message.peer in (ACTOR, EVALUATOR) or message.peer.role == "manager"
    assert message.sequence == (1 if message.peer == INTRODUCER else 0)
    if message.peer == EVALUATOR:  # the best is chosen by it; other figures are only written
        assert all(math.isfinite(row["eval_return"]) for row in message.rows)
    if message.unroll is not None:
        assert_valid_unroll(message.unroll, layout)
        floats = unpack(spec, message.unroll.obs, spec.float_parts).values()
        assert all(np.isfinite(array).all() for array in floats)


def assert_valid_unroll(unroll: Unroll, layout: Layout) -> None:
    expected = {name: getattr(layout, name) for name in ARRAY_FIELDS} | layout.extras
    arrays = {name: getattr(unroll, name) for name in ARRAY_FIELDS} | unroll.extras
    assert arrays.keys() == expected.keys()
    for name, ((length, *rest), dtype) in expected.items():
        assert arrays[name].shape == (length, 4, *rest)
        assert arrays[name].dtype == dtype
    states = {name: (array.shape, str(array.dtype)) for name, array in unroll.state.items()}
    assert states == {name: ((4, *shape), dtype) for name, (shape, dtype) in layout.state.items()}
    for array in (*arrays.values(), *unroll.state.values()):
        assert np.isfinite(array).all()
        if array.dtype == bool:
            assert array.view(np.uint8).max() <= 1
    if unroll.action.dtype == np.float32:
        assert np.abs(unroll.action).max() <= 1
    else:
        assert ((unroll.action == 0) | (unroll.action == 1)).all()


def fuzz_messages(seed: int, count: int) -> Counter[str]:
    """Delivers `count` injured messages; how many ended how."""
    mutator, outcomes = Mutator(seed), Counter[str]()
    good = {run: good_messages(run) for run in RUNS}
    for _ in range(count):
        run = mutator.random.choice(list(good))
        parts = mutator.random.choice([good[run][0], *good[run]])  # the one with an unroll more often
        outcomes[deliver(run, mutator.parts(parts))] += 1
    return outcomes


def fuzz_replies(seed: int, count: int) -> Counter[str]:
    """Decodes `count` injured replies; how many ended how."""
    status = {"env_steps": 5, "best": None, "rows": {"actor_0": {"episodes": 2.0}}}
    replies = (Reply(3), Reply(4, True, 9, b"weights"), Reply(5, refused="sequence 5, expected 4", status=status))
    good = [[bytes(part) for part in encode_reply(reply)] for reply in replies]
    mutator = Mutator(seed)
    return Counter(decoded(mutator.parts(mutator.random.choice(good))) for _ in range(count))


def decoded(parts: list[bytes]) -> str:
    """What became of a reply: `malformed` or `taken`; anything else is an AssertionError."""
    try:
        reply = decode_reply(parts)
    except WireError as error:
        assert_one_line(str(error))
        return "malformed"
    assert min(reply.sequence, reply.env_steps, reply.weights_version + 1) >= 0
    kinds = {"stop": bool, "refused": str, "status": dict, "weights": bytes if len(parts) == 2 else type(None)}
    assert {name: type(getattr(reply, name)) for name in kinds} == kinds
    return "taken"


def assert_one_line(text: str, limit: int = 400) -> None:
    """Whether a user can read `text` in a log."""
    assert text
    assert text.isprintable(), repr(text)
    assert len(text) <= limit, text
