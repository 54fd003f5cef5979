"""Whatever a remote client sends is taken as a valid message or refused in one line, and other clients notice nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import resource
import socket
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from websockets.frames import Frame, Opcode

from apex_acer.client import Client
from apex_acer.protocol.actions import Box
from apex_acer.protocol.specification import MASK, EnvironmentSpec
from apex_acer.remote import server as server_module
from apex_acer.remote.messages import Hello, RemoteError, decode, encode, most_bytes, parse_hello, parse_request
from apex_acer.remote.session import Session
from checks.chaos.floods import UPGRADE
from checks.chaos.fuzz import Mutator
from tests.programs import report
from tests.remote.conftest import HELLO, TOKEN, Acting, Peer, Serve, serve, until
from tests.runs import BOX, CARTPOLE, PARTS

assert serve  # the fixture
Values = dict[str, Any]
MILLION = 1_000_000
SPECS = {
    "vector": CARTPOLE,
    "image": dataclasses.replace(CARTPOLE, plane_shape=(3, 6, 6), given_shape=(6, 6, 3), dtype="uint8"),
    "bool": dataclasses.replace(CARTPOLE, plane_shape=(2, 3), given_shape=(2, 3), dtype="bool"),
    "Box": BOX,
    "parts": PARTS,
}


def conversation(spec: EnvironmentSpec, *, text: bool, agents: int | None) -> list[Values]:
    """Messages that a server takes, one after the other: a hello, and two episodes, perhaps of several agents."""
    random = np.random.default_rng(0)
    actions = spec.actions
    action = {"low": [*actions.low], "high": [*actions.high]} if isinstance(actions, Box) else {"n": 2, "start": 0}
    boxes = spec.boxes or {"": spec}
    described = {name: {"shape": [*box.given_shape], "dtype": box.given_dtype} for name, box in boxes.items()}
    observation = described if spec.parts else described[""]
    hello = HELLO | {"observation": observation, "action": action, "train": True, "session": ""}
    hello |= {"version": 2, "agents": agents, "name": "unity"} if agents else {}
    requests, lead = list[Values](), (agents,) if agents else ()
    for sequence, kind in enumerate(("reset", "step", "terminated", "reset", "truncated", "bye")):
        arrays = {
            name: random.integers(0, 2, (*lead, *box.given_shape)) + sum(box.first) for name, box in boxes.items()
        }
        if MASK in arrays:
            arrays[MASK][..., 0] = 1
        arrays = {name: array.astype(boxes[name].given_dtype) for name, array in arrays.items()}
        sent = {name: array.tolist() if text or sequence % 2 else array.tobytes() for name, array in arrays.items()}
        given = {"observation": sent if spec.parts else sent[""]} if kind != "bye" else {}
        reward = {"reward": 1.5} if kind not in ("reset", "bye") else {}
        values = {"type": kind, **given, **reward}
        if agents and kind != "bye":
            kinds = [kind] * (agents - 1) + ["wait"]
            values = {"type": "steps", "kinds": kinds, "observations": given["observation"], "rewards": [1.5] * agents}
        requests.append({"sequence": sequence, **values})
    return [hello, *requests]


CONVERSATIONS = {
    (name, text, agents): conversation(spec, text=text, agents=agents)
    for name, spec in SPECS.items()
    for text in (False, True)
    for agents in (None, 3)
}


def converse(session: Session, requests: list[Values], spec: EnvironmentSpec) -> list[list[str] | None]:
    """The kinds of events that each message gives, all of which are answered; None for `bye`."""
    kinds: list[list[str] | None] = []
    for values in requests:
        events = session.take(parse_request(values, spec, session.agents))
        for event in events or ():
            if event.kind in ("reset", "step"):
                session.decide(event.slot, 0)
        kinds.append(None if events is None else [event.kind for event in events])
    return kinds


# ── in this process ──


class Fuzz:
    """Injures messages, always the same way for one `seed`, and counts what comes of them."""

    def __init__(self, seed: int) -> None:
        self.outcomes, self.slowest_s, self.longest = Counter[str](), 0.0, 0
        self._mutator = Mutator(seed)

    def run(self, count: int) -> Fuzz:
        """Delivers so many messages; fails if one is neither taken nor refused as it should be."""
        for _ in range(count):
            name, text, agents = self._mutator.random.choice([*CONVERSATIONS])
            messages = CONVERSATIONS[name, text, agents]
            at = self._mutator.random.randrange(len(messages))
            data = injure(self._mutator, messages[at], text=text)
            if len(data) <= most_bytes(SPECS[name], agents or 1):  # a longer one is not read
                session = Session(range(agents or 1), agents)
                converse(session, messages[1:at], SPECS[name])
                self._deliver(SPECS[name], session, data, hello=at == 0)
        return self

    def _deliver(self, spec: EnvironmentSpec, session: Session, data: str | bytes, *, hello: bool) -> None:
        began, stage = time.process_time(), "malformed"
        try:
            values = decode(data)
            stage = "refused"
            if hello:
                train, wanted, agents, name = parse_hello(values, spec, TOKEN)
                assert list(map(type, (train, wanted, name))) == [bool, str, str]
                assert name.isprintable()
                assert agents is None or agents > 0
            else:
                request = parse_request(values, spec, session.agents)
                stage = "out of turn"
                for event in session.take(request) or ():
                    assert event.obs is not None
                    arrays = event.obs if isinstance(event.obs, dict) else {"": event.obs}
                    for name, box in (spec.boxes or {"": spec}).items():
                        assert (arrays[name].shape, str(arrays[name].dtype)) == (box.given_shape, box.given_dtype)
                        assert np.isfinite(arrays[name]).all()
                    assert MASK not in arrays or arrays[MASK].any()
                    assert abs(event.reward) < 1e39
                    json.loads(str(encode({"sequence": session.sequence}, text=True)))
            stage = "taken"
        except RemoteError as error:
            line = str(error)
            assert line.isprintable(), line
            assert len(line) < 700, line
            encode({"message": line}, text=True), encode({"message": line}, text=False)
            self.longest = max(self.longest, len(line))
        self.slowest_s = max(self.slowest_s, time.process_time() - began)
        self.outcomes[stage] += 1


def injure(mutator: Mutator, values: Values, *, text: bool) -> str | bytes:
    """`values` with a thing in it changed, or its frame's bytes."""
    name = "observations" if "observations" in values else "observation"
    match mutator.random.randrange(10):
        case 0 | 1 | 2:
            frame = encode(values, text=text)
            injured = mutator.data(frame.encode() if isinstance(frame, str) else frame)
            return injured.decode(errors="replace") if text else injured
        case 3 | 4 if isinstance(values.get(name), bytes):
            return encode(values | {name: mutator.elements(values[name])}, text=text)
        case 3 | 4 if name in values:
            return encode(values | {name: mutator.value(values[name])}, text=text)
    return encode(mutator.value(values), text=text)


def test_good_messages_are_taken_and_injured_ones_are_or_are_refused_in_one_line() -> None:
    for (name, text, agents), conversation in CONVERSATIONS.items():
        hello, *requests = (decode(encode(values, text=text)) for values in conversation)
        assert parse_hello(hello, SPECS[name], TOKEN) == Hello(True, "", agents, "unity" if agents else "")
        kinds = converse(Session(range(agents or 1), agents), requests, SPECS[name])
        each = [
            [kind] * (agents - 1 if agents else 1) for kind in ("reset", "step", "terminated", "reset", "truncated")
        ]
        assert kinds == [*each, None]
    fuzz = Fuzz(0).run(4_000)
    assert min(fuzz.outcomes[name] for name in ("malformed", "refused", "taken")) > 200, fuzz.outcomes
    assert fuzz.outcomes["out of turn"] > 40
    assert fuzz.slowest_s < 1.0


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_a_million_injured_messages_are_taken_or_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    began, outcomes, slowest_s, longest = time.monotonic(), Counter[str](), 0.0, 0
    warm = peak_mb()
    for seed in range(1, 12):
        fuzz = Fuzz(seed).run(MILLION // 10)
        outcomes += fuzz.outcomes
        slowest_s, longest = max(slowest_s, fuzz.slowest_s), max(longest, fuzz.longest)
        warm = peak_mb() if seed == 1 else warm
    grown = peak_mb() - warm
    found = {"slowest_ms": round(1000 * slowest_s, 2), "longest_line": longest, "grown_mb": round(grown, 1)}
    report(capsys, "remote messages", **outcomes, **found, wall_s=round(time.monotonic() - began))
    assert outcomes.total() >= MILLION
    assert min(outcomes.values()) > MILLION // 200
    assert slowest_s < 1.0
    assert grown < 50


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


# ── over sockets ──


class Beside:
    """A client that behaves, and must never notice the others."""

    def __init__(self, url: str) -> None:
        self._client = Client(url, TOKEN, observation=HELLO["observation"], action=HELLO["action"])
        self.steps, self.slowest_s = 0, 0.0
        self._failure: BaseException | None = None
        self._stops = threading.Event()
        self._thread = threading.Thread(target=self._guard)
        self._thread.start()

    def assert_goes_on(self) -> None:
        """Whether it gets further by a hundred steps, in one session."""
        goal = self.steps + 100
        until(lambda: self.steps >= goal or self._failure, 30)
        if self._failure:
            raise self._failure

    def close(self) -> None:
        self._stops.set()
        self._thread.join()
        self._client.close()

    def _guard(self) -> None:
        try:
            while not self._stops.is_set():
                self._play()
        except BaseException as error:
            self._failure = error

    def _play(self) -> None:
        """An episode; `Acting` answers with the parity of an observation's first number."""
        for at in range(20):
            obs, began = np.array([self.steps % 1000, 0, 0, 0], np.float32), time.monotonic()
            action = self._client.step(obs, 1.0) if at else self._client.reset(obs)
            assert action == self.steps % 2
            self.slowest_s = max(self.slowest_s, time.monotonic() - began)
            self.steps += 1
        self._client.end(np.zeros(4, np.float32), 1.0, terminated=True)


class Strangers:
    """Connections that say what they should not, always the same for one `seed`."""

    def __init__(self, acting: Acting, seed: int) -> None:
        self.sent = Counter[str]()
        self._port = int(acting.server.url.rpartition(":")[2])
        self._mutator = Mutator(seed)

    def visit(self) -> None:
        """One connection."""
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port), 5) as stream:
            stream.settimeout(5)
            talk = (self._noise, self._frames, self._frames, self._messages, self._messages)
            self._mutator.random.choice(talk)(stream)

    def _noise(self, stream: socket.socket) -> None:
        """No WebSocket at all."""
        draw = self._mutator.random
        noise = draw.randbytes(draw.randrange(1, 5000)) if draw.random() < 0.5 else self._mutator.data(UPGRADE)
        self.sent["noise"] += 1
        stream.sendall(noise)

    def _frames(self, stream: socket.socket) -> None:
        """Frames that are none, perhaps after good ones."""
        draw = self._mutator.random
        if not shake_hands(stream):
            return
        text = draw.random() < 0.5
        frames = [
            self._frame(encode(values, text=text)) for values in CONVERSATIONS["vector", text, draw.choice((None, 3))]
        ]
        for good in frames[: draw.randrange(3)]:
            stream.sendall(good)
            stream.recv(4096)
        for _ in range(20):
            self.sent["frames"] += 1
            match draw.randrange(4):
                case 0:
                    data = draw.randbytes(draw.randrange(1, 300))
                case 1:
                    data = Frame(Opcode.PING, draw.randbytes(draw.randrange(126))).serialize(mask=True)
                case 2:
                    data = b"\x81\xff" + (1 << 62).to_bytes(8, "big") + draw.randbytes(20)
                case _:
                    data = self._mutator.data(draw.choice(frames))
            stream.sendall(data)

    def _messages(self, stream: socket.socket) -> None:
        """Good frames; the messages in them are good until one is not."""
        draw = self._mutator.random
        if not shake_hands(stream):
            return
        text = draw.random() < 0.5
        messages = CONVERSATIONS["vector", text, draw.choice((None, 3))]
        at = draw.randrange(len(messages))
        for values in messages[:at]:
            self.sent["good messages"] += 1
            stream.sendall(self._frame(encode(values, text=text)))
            stream.recv(4096)
        for _ in range(draw.randrange(1, 6)):
            self.sent["messages"] += 1
            stream.sendall(self._frame(injure(self._mutator, messages[at], text=text)))

    def _frame(self, data: str | bytes) -> bytes:
        opcode, payload = (Opcode.TEXT, data.encode()) if isinstance(data, str) else (Opcode.BINARY, data)
        return Frame(opcode, payload).serialize(mask=True)


def shake_hands(stream: socket.socket) -> bool:
    stream.sendall(UPGRADE)
    return stream.recv(4096).startswith(b"HTTP/1.1 101")


class Unexpected(logging.Handler):
    """Keeps what the libraries say of errors, except that an opening handshake failed.

    The library wants to end a connection twice if a bad handshake and a bad frame come together, and closes it then.
    """

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        _, error, trace = record.exc_info or (None, None, None)
        twice = isinstance(error, AssertionError) and traceback.extract_tb(trace)[-1].name == "send_eof"
        if record.getMessage() != "opening handshake failed" and not twice:
            self.said.append(f"{record.getMessage()} {error!r}")


@pytest.fixture
def unexpected(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    handler, silent = Unexpected(), logging.Logger("silent")
    silent.addHandler(handler)
    monkeypatch.setattr(server_module, "NO_LOG", silent)
    logging.getLogger("asyncio").addHandler(handler)
    yield handler.said
    logging.getLogger("asyncio").removeHandler(handler)


@pytest.mark.parametrize("seconds", [1.0, pytest.param(120.0, marks=pytest.mark.chaos)])
@pytest.mark.timeout(600)
def test_strangers_disturb_nobody(
    seconds: float,
    serve: Serve,
    unexpected: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("apex_acer.remote.listener.PER_SECOND", 1e6)
    monkeypatch.setattr("apex_acer.remote.listener.BURST", 1e6)
    acting = serve(clients=8, grace_s=0.1)
    beside, strangers, visits = Beside(acting.server.url), Strangers(acting, seed=0), 0
    try:
        beside.assert_goes_on()
        files, ends_at = open_files(), time.monotonic() + seconds
        while time.monotonic() < ends_at:
            strangers.visit()
            visits += 1
            del acting.events[:]
        beside.assert_goes_on()
    finally:
        beside.close()
    until(lambda: acting.server.num == 0)
    until(lambda: open_files() <= files, 15)
    others = [Peer(acting.server.url) for _ in range(8)]  # every place is free again
    assert [peer.reset()["type"] for peer in others] == ["action"] * 8
    assert unexpected == []
    figures = {"connections": visits, **strangers.sent, "beside": beside.steps}
    report(capsys, "strangers", **figures, slowest_ms=round(1000 * beside.slowest_s, 1), seconds=seconds)
    assert strangers.sent.total() > 100 * seconds
    assert beside.slowest_s < 2.0


def test_a_bad_handshake_and_a_bad_frame_together_disturb_nobody(serve: Serve, unexpected: list[str]) -> None:
    acting = serve()
    _, _, port = acting.server.url.rpartition(":")
    with socket.create_connection(("127.0.0.1", int(port)), 5) as stream:
        stream.sendall(UPGRADE.replace(b"dGhlIHNhbXBsZSBub25jZQ==", b"x") + 8 * b"\xff")
        assert stream.recv(4096) == b""
    assert Peer(acting.server.url).reset()["type"] == "action"
    assert unexpected == []


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))
