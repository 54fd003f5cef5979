"""Whatever arrives is taken as a valid message or refused, and the conversation beside it goes on."""

from __future__ import annotations

import contextlib
import logging
import math
import shutil
import socket
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from apex_acer.engines.local.transport import DealerLink, InboxServer
from apex_acer.engines.local.wire import DTYPES, encode_message
from apex_acer.learner.inbox import Inbox
from apex_acer.protocol.messages import Message, Reply
from apex_acer.protocol.unroll import ARRAY_FIELDS
from checks.chaos.fuzz import (
    ACTOR,
    RUNS,
    Mutator,
    decoded,
    deliver,
    fuzz_messages,
    fuzz_replies,
    good_messages,
    make_inbox,
)
from tests.runs import RUN_ID, made_up_unroll

MILLION = 1_000_000


@pytest.fixture(autouse=True, scope="module")
def _quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)  # every inbox logs its first refusal
    yield
    logging.disable(logging.NOTSET)


# ── the decoder and the inbox ──


@pytest.mark.parametrize("run", RUNS)
def test_good_messages_are_taken(run: str) -> None:
    assert [deliver(run, parts) for parts in good_messages(run)] == ["taken"] * 4


def test_injured_messages_are_refused_or_valid() -> None:
    outcomes = fuzz_messages(seed=0, count=20_000)
    assert outcomes["malformed"] > 5_000
    assert min(outcomes["refused"], outcomes["taken"]) > 400, "the injuries do not reach the inbox"


def test_injured_replies_are_refused_or_valid() -> None:
    outcomes = fuzz_replies(seed=0, count=5_000)
    assert min(outcomes.values()) > 500


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_a_million_injured_messages_are_refused_or_valid(capsys: pytest.CaptureFixture[str]) -> None:
    start, outcomes = time.monotonic(), Counter[str]()
    for seed in range(1, 11):
        outcomes += fuzz_messages(seed, MILLION // 10)
    replies = fuzz_replies(seed=1, count=MILLION // 10)
    with capsys.disabled():
        print(f"\n{outcomes.total():,} messages {dict(outcomes)}, {replies.total():,} replies {dict(replies)}", end=" ")
        print(f"in {time.monotonic() - start:.0f} s")
    assert outcomes.total() >= MILLION
    assert min(outcomes.values()) > MILLION // 100


# ── shapes of bad messages ──

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
names = st.sampled_from([*ARRAY_FIELDS, "extras.log_probs", "state.cell", "extras.", "x"]) | st.text(max_size=8)
lengths = st.integers(-1, 7) | st.sampled_from([2**31, 2**32, 2**62, 2**63, "", "٣"])
shapes = st.lists(lengths, max_size=10).map(lambda shape: ",".join(map(str, shape)))
dtypes = st.sampled_from(sorted(DTYPES)) | st.text(max_size=3)
arrays = st.tuples(names, dtypes, shapes).map(":".join) | st.text(max_size=8)
WHOLE = msgpack.unpackb(good_messages("feed-forward")[0][0])["arrays"].split(" ")
descriptions = (st.lists(arrays, max_size=9) | st.lists(st.sampled_from(WHOLE) | arrays, min_size=8)).map(" ".join)
peers = st.tuples(st.sampled_from(["actor", "evaluator", "manager", "x"]), st.integers(-1, 2), st.integers(-1, 3))
likely: dict[str, st.SearchStrategy[Any]] = {
    "run_id": st.just(RUN_ID),
    "peer": peers,
    "sequence": st.integers(-1, 1),
    "weights_version": st.integers(-2, 2),
    "wants_weights": st.booleans(),
    "rows": st.lists(st.dictionaries(st.sampled_from(["loss", "eval_return", "x"]), st.floats() | plain), max_size=2),
    "acting_s": st.floats(),
    "stop": st.sampled_from(["", "SIGINT"]),
    "incarnations": st.dictionaries(st.text(max_size=3), st.integers(-1, 2), max_size=2),
    "arrays": descriptions,
}
headers = st.fixed_dictionaries({name: strategy | plain for name, strategy in likely.items()})
odd_headers = headers | st.dictionaries(st.sampled_from(list(likely)) | st.text(max_size=3), plain, max_size=5) | plain
few = settings(
    max_examples=300, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
many = settings(few, max_examples=10_000, derandomize=False)


def made_up(header: Any, seed: int) -> list[bytes]:
    """A message with a part for the arrays described, of the right length where there is one."""
    described = header.get("arrays") if isinstance(header, dict) else None
    size = sum(-(-num_bytes(text) // 8) * 8 for text in described.split(" ")) if isinstance(described, str) else 0
    data = np.random.default_rng(seed).integers(0, 2, size, np.uint8).tobytes() if size < 1 << 16 else b""
    return [msgpack.packb(header), *([data] if described else [])]


def num_bytes(description: str) -> int:
    match description.split(":"):
        case (_, dtype, shape) if dtype in DTYPES and all(text.isdecimal() for text in shape.split(",")):
            return math.prod(map(int, shape.split(","))) * np.dtype(dtype).itemsize
    return 0


@few
@given(odd_headers, st.integers(0, 9))
def test_made_up_messages_are_refused_or_valid(header: Any, seed: int) -> None:
    deliver("feed-forward", made_up(header, seed))


@pytest.mark.chaos
@pytest.mark.timeout(3600)
@many
@given(odd_headers, st.integers(0, 9))
def test_many_made_up_messages_are_refused_or_valid(header: Any, seed: int) -> None:
    deliver("feed-forward", made_up(header, seed))


@few
@given(plain, st.binary(max_size=8))
def test_made_up_replies_are_refused_or_valid(header: Any, part: bytes) -> None:
    decoded([msgpack.packb(header), part])


@few
@given(st.lists(st.binary(max_size=64), max_size=4))
def test_noise_is_refused(parts: list[bytes]) -> None:
    assert deliver("feed-forward", parts) == "malformed"
    assert decoded(parts) == "malformed"


# ── what a stranger can make of memory and log ──


def test_refusals_fill_neither_memory_nor_log(monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[str] = []
    monkeypatch.setattr("apex_acer.learner.inbox.log.warning", lambda text, *values: logged.append(text % values))
    inbox, mutator = make_inbox("feed-forward"), Mutator(0)
    for _ in range(1000):
        word = "".join(mutator.random.choices("abcdefgh\n", k=3000))
        inbox.count_refused(f"from {word!r}: whatever")
    assert inbox.num_refused == 1000
    assert 1 <= len(logged) <= 100
    assert [len(line) for line in logged if len(line) > 500 or not line.isprintable()] == []
    assert max(len(str(value)) for value in vars(inbox).values()) < 100_000


# ── sockets ──


class Served:
    """An inbox behind a socket in a folder of its own, and an actor's conversation with it."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="fuzz-", dir="/tmp"))  # an ipc path is short
        self.path = self.folder / "inbox"
        self.inbox: Inbox = make_inbox("feed-forward")
        self.server = InboxServer(self.inbox, f"ipc://{self.path}")
        self.exchanged = 0
        self._failure: BaseException | None = None
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._guard, args=(role,)) for role in (self._speak, self._learn)]
        for thread in self._threads:
            thread.start()

    def send(self, identity: bytes, messages: list[list[bytes]]) -> None:
        """Sends `messages` as the peer that `identity` names."""
        stranger: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        stranger.setsockopt(zmq.IDENTITY, identity)
        stranger.setsockopt(zmq.LINGER, 5000)
        stranger.setsockopt(zmq.SNDTIMEO, 5000)
        with stranger:
            stranger.connect(f"ipc://{self.path}")
            for parts in messages:
                stranger.send_multipart(parts)

    def assert_goes_on(self) -> None:
        """Whether the conversation gets further by a hundred exchanges."""
        goal = self.exchanged + 100
        eventually(lambda: self.exchanged >= goal or self._failure is not None)
        if self._failure:
            raise self._failure
        self.server.check()

    def close(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(10)
        self.server.close()
        shutil.rmtree(self.folder)

    def _guard(self, role: Callable[[], None]) -> None:
        try:
            role()
        except BaseException as error:
            self._failure = error

    def _speak(self) -> None:
        link = DealerLink(f"ipc://{self.path}", ACTOR)
        with contextlib.closing(link):
            while not self._stop.is_set():
                unroll = made_up_unroll(RUNS["feed-forward"], self.exchanged)
                link.send(Message(RUN_ID, ACTOR, self.exchanged, unroll=unroll))
                assert link.receive(10) == Reply(self.exchanged, weights_version=self.exchanged)
                self.exchanged += 1

    def _learn(self) -> None:
        while not self._stop.is_set() or self._threads[0].is_alive():  # it waits for its last answer
            if post := self.inbox.take_unroll(0.1):
                assert post.message.unroll is not None
                expected = made_up_unroll(RUNS["feed-forward"], post.message.sequence)
                np.testing.assert_array_equal(post.message.unroll.obs, expected.obs)
                post.answer(Reply(post.message.sequence, weights_version=post.message.sequence))


@pytest.fixture
def served() -> Iterator[Served]:
    served = Served()
    yield served
    served.close()


def eventually(probe: Callable[[], bool], within_s: float = 20.0) -> None:
    deadline = time.monotonic() + within_s
    while not probe():
        assert time.monotonic() < deadline, f"not within {within_s} s"
        time.sleep(0.005)


def test_injured_messages_from_a_stranger_are_counted_beside_a_conversation(served: Served) -> None:
    served.assert_goes_on()
    mutator, good = Mutator(0), good_messages("feed-forward")
    messages = [mutator.parts(mutator.random.choice(good)) for _ in range(2000)]
    messages = [parts or [b""] for parts in messages]  # ZeroMQ has no message without a part
    served.send(b"stranger", messages)
    eventually(lambda: served.inbox.num_refused >= len(messages))
    served.assert_goes_on()
    assert served.inbox.num_refused - len(messages) in (0, 1), "the stranger's leaving may count"


def test_a_stranger_under_the_actor_s_name_is_not_heard(served: Served) -> None:
    served.assert_goes_on()
    forged = [bytes(part) for part in encode_message(Message(RUN_ID, ACTOR, served.exchanged))]
    served.send(b"actor_1.2", [forged] * 100)
    served.assert_goes_on()
    assert served.inbox.num_refused in (0, 1)


@pytest.mark.parametrize(
    "greeting", [b"", b"\xff" + b"\0" * 8 + b"\x7f\x03\x00NULL" + b"\0" * 48], ids=["noise", "ZMTP"]
)
def test_bytes_that_are_no_zeromq_disturb_nobody(served: Served, greeting: bytes) -> None:
    served.assert_goes_on()
    random = np.random.default_rng(0)
    for _ in range(50):
        with socket.socket(socket.AF_UNIX) as stranger, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            stranger.settimeout(5)
            stranger.connect(str(served.path))
            stranger.sendall(greeting + random.bytes(random.integers(1, 5000)))
    served.assert_goes_on()
