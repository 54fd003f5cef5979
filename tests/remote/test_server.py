"""The server, over real sockets: conversations, those that break, and those that break a rule."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame, Opcode

from apex_acer.config import ListenConfig
from apex_acer.remote import server as server_module
from apex_acer.remote.listener import Listener, listen_at, network
from apex_acer.remote.server import Server
from tests.conftest import config_error
from tests.remote.conftest import HELLO, LOST, OBS, TOKEN, Acting, Peer, Serve, until
from tests.runs import CARTPOLE

RESET = {"type": "reset", "sequence": 0, "observation": OBS}


def test_an_episode_in_json(serve: Serve) -> None:
    acting = serve()
    peer = Peer(acting.server.url)
    assert peer.welcome | {"session": ""} == {"type": "welcome", "version": 1, "session": "", "sequence": -1}
    assert peer.reset() == {"type": "action", "sequence": 0, "action": 0}
    assert peer.step(1, first=1.0) == {"type": "action", "sequence": 1, "action": 1}
    assert peer.step(2, "terminated") == {"type": "ended", "sequence": 2}
    assert peer.reset(3)["type"] == "action"
    assert peer.step(4, "truncated") == {"type": "ended", "sequence": 4}
    peer.say({"type": "bye", "sequence": 5})
    assert peer.closed() == 1000
    until(lambda: acting.kinds() == ["reset", "step", "terminated", "reset", "truncated"])
    assert acting.server.num == 0


WRONG: dict[str, tuple[list[dict[str, Any] | str], str]] = {
    "an action before a reset": (
        [{"type": "step", "sequence": 0, "observation": OBS, "reward": 0}],
        "step came outside an episode; send reset first",
    ),
    "a reset during an episode": (
        [RESET, RESET | {"sequence": 1}],
        "reset came during an episode; send terminated or truncated first",
    ),
    "a message again": ([RESET, RESET], "reset has sequence 0, expected 1"),
    "a message that skips one": ([RESET | {"sequence": 1}], "reset has sequence 1, expected 0"),
    "no JSON": (["hello?"], "not JSON: Expecting value: line 1 column 1 (char 0)"),
}


@pytest.mark.parametrize(("said", "message"), WRONG.values(), ids=WRONG)
def test_who_breaks_a_rule_is_told_and_harms_nobody(
    serve: Serve, said: list[dict[str, Any] | str], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    acting = serve()
    other, peer = Peer(acting.server.url), Peer(acting.server.url)
    other.reset()
    for values in said[:-1]:
        peer.ask(values)
    assert peer.ask(said[-1]) == {"type": "error", "message": message, "retry": False}
    assert peer.closed() == 1008
    assert peer.socket.close_reason == message
    assert f"refused a client at 127.0.0.1: {message}" in caplog.messages
    assert other.step(1)["sequence"] == 1


def test_a_page_must_come_from_a_known_origin(serve: Serve) -> None:
    url = serve(origins=("https://known.org",)).server.url
    assert Peer(url, origin="https://known.org").reset()["type"] == "action"
    stranger = Peer(url, None, origin="https://other.org")
    assert stranger.ask(HELLO)["message"] == "origin 'https://other.org' is not among serve.origins"
    assert stranger.closed() == 1008


def test_the_reason_of_a_close_is_as_much_of_the_line_as_fits(serve: Serve) -> None:
    peer = Peer(serve().server.url, None)
    line = peer.ask(HELLO | {"é" * 50: 1})["message"]
    assert peer.closed() == 1008
    assert len(line.encode()) > 123
    reason = peer.socket.close_reason
    assert line.startswith(str(reason))
    assert len(str(reason).encode()) in (122, 123)


def test_who_says_no_hello_or_a_wrong_one_is_disconnected(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server_module, "HELLO_S", 0.2)
    url = serve().server.url
    peer = Peer(url, None)
    assert peer.hear() == {"type": "error", "message": "no hello within 0.2 s", "retry": False}
    assert peer.closed() == 1008
    with_token_as_key = Peer(url, None).ask(HELLO | {TOKEN: 1})
    assert with_token_as_key["message"].startswith("hello: unknown key '…'; allowed: type, ")
    assert TOKEN not in caplog.text


def test_connections_beyond_a_rate_wait_for_their_turn(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apex_acer.remote.listener.PER_SECOND", 1.0)
    monkeypatch.setattr("apex_acer.remote.listener.BURST", 5.0)
    url = serve(clients=30).server.url
    started = time.monotonic()
    for _ in range(20):
        Peer(url)  # they say hello
    silent_at = time.monotonic()
    assert silent_at - started < 10.0  # 15 s if they counted
    silent = [Peer(url, None) for _ in range(5)]
    assert Peer(url).reset()["type"] == "action"
    assert 0.9 < time.monotonic() - silent_at < 5.0  # the sixth waits a second; 6 s if the five before it did, too
    assert silent


@pytest.mark.parametrize("encode", [json.dumps, msgpack.packb])
def test_who_speaks_either_format_is_answered_in_it_and_refused_in_one_line_if_a_message_is_too_large(
    serve: Serve, encode: Callable[[Any], str | bytes], caplog: pytest.LogCaptureFixture
) -> None:
    peer = Peer(serve().server.url, None)

    def ask(values: dict[str, Any]) -> Any:
        peer.say(encode(values))
        data = peer.socket.recv(timeout=5)
        assert isinstance(data, type(encode(values)))
        return json.loads(data) if isinstance(data, str) else msgpack.unpackb(data)

    assert ask(HELLO)["type"] == "welcome"
    assert ask(RESET) == {"type": "action", "sequence": 0, "action": 0}
    message = "a message is too large; require at most 65664 bytes"
    too_large = RESET | {"sequence": 1, "observation": [0] * 100_000}
    assert ask(too_large) == {"type": "error", "message": message, "retry": False}
    assert peer.closed() == 1009
    until(lambda: any("exceeds limit" in line for line in caplog.messages))


def test_there_is_a_limit_of_clients_and_those_who_are_away_make_room(serve: Serve) -> None:
    acting = serve(clients=2, grace_s=60.0)
    first, second = Peer(acting.server.url), Peer(acting.server.url)
    first.reset()
    third = Peer(acting.server.url, None)
    message = "2 clients are connected, serve.clients allows no more; try again later"
    assert third.ask(HELLO) == {"type": "error", "message": message, "retry": True}
    assert third.closed() == 1013
    first.cut()
    until(lambda: acting.server.num == 1)
    assert Peer(acting.server.url).reset()["type"] == "action"
    until(lambda: acting.kinds() == ["reset", LOST, "reset"])
    assert second.reset()["type"] == "action"


# ── connections that break ──


def test_a_message_that_comes_before_the_answer_to_the_last_is_refused(serve: Serve) -> None:
    acting = serve()
    peer = Peer(acting.server.url)
    acting.holds = True
    peer.say(RESET)
    too_early = peer.ask(RESET | {"type": "step", "sequence": 1, "reward": 0})
    assert too_early["message"] == "step came before the answer to message 0"
    until(lambda: acting.kinds() == ["reset", LOST])


def test_a_client_comes_back_while_its_old_connection_looks_alive_and_hears_its_answer_again(serve: Serve) -> None:
    acting = serve()
    peer = Peer(acting.server.url)
    peer.reset()
    again = Peer(acting.server.url, HELLO | {"session": peer.welcome["session"]})
    assert (again.welcome["sequence"], again.hear()["sequence"]) == (0, 0)
    assert peer.closed() == 1000
    assert again.step(1)["sequence"] == 1
    until(lambda: acting.kinds() == ["reset", "step"])


def test_what_still_comes_on_an_old_connection_is_not_heard(serve: Serve) -> None:
    """The client sends it again on its new one."""
    acting = serve()
    step = {"type": "step", "sequence": 1, "observation": OBS, "reward": 1}
    with raw(acting) as stream:

        def say(values: dict[str, Any]) -> None:
            stream.sendall(Frame(Opcode.TEXT, json.dumps(values).encode()).serialize(mask=True))

        say(HELLO)
        heard = stream.recv(4096)
        welcome = json.loads(heard[heard.index(b"{") :])
        say({"type": "reset", "sequence": 0, "observation": OBS})
        until(lambda: acting.kinds() == ["reset"])
        again = Peer(acting.server.url, HELLO | {"session": welcome["session"]})
        assert again.hear()["sequence"] == 0
        say(step)
        time.sleep(0.3)
        assert [again.ask(step)["sequence"], again.step(2)["sequence"]] == [1, 2]
    until(lambda: acting.kinds() == ["reset", "step", "step"])


def test_who_is_served_by_a_role_that_failed_is_not_told_that_the_run_has_ended(serve: Serve) -> None:
    """The client connects again, to the role's successor."""
    acting = serve()
    peer = Peer(acting.server.url)
    acting.server.close(failed=True)
    with pytest.raises(ConnectionClosed):
        peer.hear()
    assert peer.closed() == 1001


def test_the_close_message_waits_for_nobody_who_does_not_listen(serve: Serve) -> None:
    acting = serve()
    peer = Peer(acting.server.url)
    with raw(acting) as stream:
        stream.sendall(Frame(Opcode.TEXT, json.dumps(HELLO).encode()).serialize(mask=True))
        until(lambda: acting.server.num == 2)
        started = time.monotonic()
        acting.server.close()
        assert time.monotonic() - started < 3
    assert peer.hear() == {"type": "bye", "message": "the run has ended"}
    assert peer.closed() == 1001
    with pytest.raises(OSError, match="refused"):
        Peer(acting.server.url)


# ── clients that are not learned from ──


def test_clients_that_are_not_learned_from_are_passed_on(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "evaluator").write_text(str(tmp_path / "socket"))
    evaluating = serve(listener=listen_at(tmp_path / "socket"))
    acting = serve(evaluator=tmp_path / "evaluator")
    peer = Peer(acting.server.url, HELLO | {"train": False})
    assert peer.reset()["type"] == "action"
    until(lambda: (evaluating.kinds(), acting.kinds()) == (["reset"], []))
    peer.cut()
    until(lambda: evaluating.kinds() == ["reset", LOST])
    other = Peer(acting.server.url, HELLO | {"train": False})
    acting.server.close()
    assert other.hear() == {"type": "bye", "message": "the run has ended"}


@pytest.mark.parametrize("address", ["", "socket"])
def test_while_the_evaluator_is_not_there_they_are_refused(serve: Serve, tmp_path: Path, address: str) -> None:
    if address:
        (tmp_path / "evaluator").write_text(str(tmp_path / address))
    peer = Peer(serve(evaluator=tmp_path / "evaluator").server.url, None)
    message = "the evaluator is not there yet; try again later"
    assert peer.ask(HELLO | {"train": False}) == {"type": "error", "message": message, "retry": True}
    assert peer.closed() == 1013


def test_without_an_evaluator_they_are_refused_for_good(serve: Serve) -> None:
    peer = Peer(serve(evaluates=False).server.url, None)
    message = server_module.NO_EVALUATOR
    assert peer.ask(HELLO | {"train": False}) == {"type": "error", "message": message, "retry": False}
    assert peer.closed() == 1008


# ── what it needs to listen ──


def test_a_port_in_use_or_a_certificate_that_is_none_is_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        message = config_error(lambda: Server(ListenConfig(listen=listen), CARTPOLE, TOKEN))
    assert message == f"serve.listen: '{listen}': Address already in use; give an address and a free port"
    (tmp_path / "chain.pem").write_text("no certificate")
    chain, key = str(tmp_path / "chain.pem"), str(tmp_path / "key.pem")
    message = config_error(lambda: Server(ListenConfig(certificate=chain, private_key=key), CARTPOLE, TOKEN))
    assert message.startswith(f"serve.certificate: '{tmp_path}/chain.pem' and '{tmp_path}/key.pem' cannot be used")


# ── those who do nothing ──


@pytest.mark.parametrize("encrypted", [False, True], ids=["hello", "TLS handshake"])
def test_the_oldest_that_never_ends_its_greeting_makes_room(
    serve: Serve, request: pytest.FixtureRequest, encrypted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apex_acer.remote.listener.UNAUTHENTICATED", 3)
    chain, key = request.getfixturevalue("certificate") if encrypted else ("", "")
    monkeypatch.setenv("SSL_CERT_FILE", chain)
    acting = serve(certificate=chain, private_key=key)
    peer = Peer(acting.server.url)
    with contextlib.ExitStack() as stack:
        address = ("127.0.0.1", int(acting.server.url.rpartition(":")[2]))
        silent = [stack.enter_context(socket.create_connection(address)) for _ in range(5)]
        assert [stream_ends(each, 5.0 if at < 2 else 0.2) for at, each in enumerate(silent)] == [True] * 2 + [False] * 3
        assert peer.reset()["type"] == "action"
        others = [Peer(acting.server.url) for _ in range(5)]
        assert [other.reset()["type"] for other in others] == ["action"] * 5


def test_the_address_with_the_most_silent_connections_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apex_acer.remote.listener.UNAUTHENTICATED", 3)
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(Listener(socket.create_server(("127.0.0.1", 0))))
        silent = []
        for source in ("127.0.0.1", "127.0.0.2", "127.0.0.2", "127.0.0.2"):
            silent.append(stack.enter_context(socket.create_connection(listener.getsockname(), 5, (source, 0))))
            stack.enter_context(listener.accept()[0])
        assert [stream_ends(each, 0.1) for each in silent] == [False, True, False, False]


def test_what_counts_as_one_address() -> None:
    assert network(("192.0.2.1", 5)) == b"\xc0\0\2\1"
    assert network(("2001:db8::1", 5, 0, 0)) == b" \1\r\xb8\0\0\0\0"
    assert network(("fe80::1%eth0", 5, 0, 2)) == b"\xfe\x80\0\0\0\0\0\0"
    assert network("") == b""


PING = Frame(Opcode.PING, b"").serialize(mask=True)
FRAGMENT = Frame(Opcode.CONT, b"", fin=False).serialize(mask=True)


@pytest.mark.parametrize("flood", [PING, FRAGMENT], ids=["pings", "fragments"])
def test_a_flood_of_small_frames_ends_the_connection(
    serve: Serve, flood: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    acting = serve()
    with raw(acting) as stream:
        stream.sendall(Frame(Opcode.TEXT, b"", fin=False).serialize(mask=True) + flood * 8)
        assert not stream_ends(stream, 0.5)
        with contextlib.suppress(OSError):
            stream.sendall(flood * 100_000)
        assert stream_ends(stream, 5)
    until(lambda: "refused a client at 127.0.0.1: more than 10 pings or small fragments per second" in caplog.messages)
    assert len(caplog.messages) == 1


def test_who_does_not_read_is_disconnected(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apex_acer.remote.connections.WRITE_S", 0.3)
    monkeypatch.setattr("apex_acer.remote.connections.SMALL_BURST", 1e9)
    acting = serve()
    with raw(acting, receives=4096) as stream:
        stream.settimeout(5)
        with pytest.raises(ConnectionError):  # rather than a timeout
            stream.sendall(Frame(Opcode.PING, b"x" * 125).serialize(mask=True) * 1_000_000)


@contextlib.contextmanager
def raw(acting: Acting, receives: int = 0) -> Iterator[socket.socket]:
    """A connection after its handshake, perhaps with a small buffer of what it `receives`."""
    host, port = acting.server.url.removeprefix("ws://").split(":")
    with socket.socket() as stream:
        if receives:
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receives)
        stream.settimeout(5)
        stream.connect((host, int(port)))
        stream.sendall(UPGRADE)
        assert stream.recv(4096).startswith(b"HTTP/1.1 101")
        yield stream


def stream_ends(stream: socket.socket, within_s: float) -> bool:
    """Whether the peer ends it in time; what it still says is dropped."""
    stream.settimeout(within_s)
    try:
        while stream.recv(1 << 16):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    return True


UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: here\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The files of a new one and of its private key."""
    if not shutil.which("openssl"):
        pytest.skip("no openssl to make a certificate with")
    folder = tmp_path_factory.mktemp("certificate")
    chain, key = str(folder / "chain.pem"), str(folder / "key.pem")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=here"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-out", chain, "-keyout", key]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return chain, key


def test_tls_sends_nothing_between_its_handshake_and_the_answer(
    serve: Serve, certificate: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    chain, key = certificate
    url = serve(certificate=chain, private_key=key).server.url
    assert url.startswith("wss://")
    with pytest.raises(ssl.SSLCertVerificationError):
        Peer(url)
    monkeypatch.setenv("SSL_CERT_FILE", chain)
    assert Peer(url).reset()["type"] == "action"
    address, context = ("127.0.0.1", int(url.rpartition(":")[2])), ssl.create_default_context(cafile=chain)
    with (
        socket.create_connection(address, timeout=5) as plain,
        context.wrap_socket(plain, server_hostname=address[0]) as peer,
    ):
        peer.sendall(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
        assert peer.recv(4096).startswith(b"HTTP/1.1 ")
        assert peer.version() == "TLSv1.3"
        assert peer.session is not None
        assert not peer.session.has_ticket
