"""ZeroMQ sockets: DEALER, the link of each peer, and ROUTER, by which a thread serves the learner's inbox."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections import deque
from collections.abc import Callable

import zmq
from zmq.utils.monitor import recv_monitor_message

from apex_acer.engines.local.wire import WireError, decode_message, decode_reply, encode_message, encode_reply
from apex_acer.learner.inbox import Inbox
from apex_acer.protocol.messages import Link, Message, Peer, Reply
from apex_acer.system.signals import Waker

MOST_AT_ONCE = 64  # messages read before replies are sent
MAX_PART_BYTES = 1 << 28  # far above any unroll; the socket drops what is larger
SERVER_WAKES_MS = 1000


class DealerLink(Link):
    """A peer's link to the inbox at `address`."""

    def __init__(self, address: str, peer: Peer, heartbeat: Callable[[], None] = lambda: None) -> None:
        """`heartbeat` is called after each step of the environments."""
        self._heartbeat = heartbeat
        self.socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        # a ROUTER ignores a second peer of the same identity, so the identity contains the incarnation
        self.socket.setsockopt(zmq.IDENTITY, f"{peer.name}.{peer.incarnation}".encode())
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.connect(address)

    def send(self, message: Message) -> None:
        """Queues `message`; a peer has only a few unanswered ones, which always fit."""
        self.socket.send_multipart(encode_message(message), zmq.NOBLOCK, copy=message.unroll is None)

    def receive(self, timeout_s: float) -> Reply | None:
        if not self.socket.poll(int(1000 * timeout_s)):
            return None
        return decode_reply(self.socket.recv_multipart())

    def heartbeat(self) -> None:
        self._heartbeat()

    def close(self) -> None:
        self.socket.close()


class InboxServer:
    """Serves `inbox` at `address` from its own thread; only that thread touches the socket."""

    def __init__(self, inbox: Inbox, address: str) -> None:
        self._inbox = inbox
        self._outgoing: deque[tuple[bytes, Reply]] = deque()
        self._waker = Waker()
        self._closing = False
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_PART_BYTES)
        self._socket.bind(address)
        # if a part is too large, the socket drops it and the peer's connection; only this event tells of it
        self._events: zmq.Socket[bytes] = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="inbox", daemon=True)
        self._thread.start()

    def close(self, timeout_s: float = 2.0) -> None:
        """Sends the remaining replies, and ends the thread."""
        self._closing = True
        self._waker.wake()
        self._thread.join(timeout_s)
        self._waker.close()

    def check(self) -> None:
        """Raises the exception that ended the thread, if there was one."""
        if self._failure:
            raise self._failure

    def _run(self) -> None:
        try:
            self._serve()
        except Exception as error:
            self._failure = error
        finally:
            self._socket.disable_monitor()
            self._events.close()
            self._socket.close()

    def _serve(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._events, zmq.POLLIN)
        poller.register(self._waker.woken, zmq.POLLIN)
        while not self._closing:
            ready = dict(poller.poll(SERVER_WAKES_MS))
            if self._waker.woken in ready:
                self._waker.clear()
            self._send_replies()
            if self._socket in ready:
                self._receive_waiting()
            if self._events in ready:
                recv_monitor_message(self._events)
                if not self._inbox.stop_reason:
                    limit = f"a part was above {MAX_PART_BYTES} bytes, or the peer died"
                    self._inbox.count_refused(f"a connection ended: {limit}")
        self._send_replies()

    def _receive_waiting(self) -> None:
        with contextlib.suppress(zmq.Again):
            for _ in range(MOST_AT_ONCE):
                identity, *frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
                self._post(identity.bytes, [frame.buffer for frame in frames])

    def _post(self, name: bytes, parts: list[memoryview]) -> None:
        try:
            message = decode_message(parts)
            if name != f"{message.peer.name}.{message.peer.incarnation}".encode():
                raise WireError(f"a message of {message.peer.name}.{message.peer.incarnation}")
        except WireError as error:
            self._inbox.count_refused(f"from {name!r}: {error}")
            return
        self._inbox.post(message, functools.partial(self._queue_reply, name))

    def _queue_reply(self, name: bytes, reply: Reply) -> None:
        self._outgoing.append((name, reply))
        if len(self._outgoing) == 1:  # else the thread is being woken already
            self._waker.wake()

    def _send_replies(self) -> None:
        while self._outgoing:
            name, reply = self._outgoing.popleft()
            with contextlib.suppress(zmq.ZMQError):  # the peer has left
                self._socket.send_multipart([name, *encode_reply(reply)], zmq.NOBLOCK)
