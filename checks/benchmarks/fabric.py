"""Measures what one learner's inbox takes in over real sockets, without learning: unrolls and bytes per second.

`python -m checks.benchmarks.fabric` prints JSON; `make bench` holds the same figures. Clients are processes of their own.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from apex_acer.engines.local.transport import DealerLink, InboxServer
from apex_acer.learner.inbox import Inbox
from apex_acer.protocol.actions import Discrete
from apex_acer.protocol.messages import Message, Peer, Reply
from apex_acer.protocol.specification import EnvironmentSpec
from apex_acer.protocol.unroll import Layout, Unroll, layout

SECONDS = 4.0
UNANSWERED = 2  # per client, as actors have
RUN_ID = "fabric"
MU: dict[str, tuple[int, ...]] = {"log_probs": (6,)}
SPECS = {  # spec, unroll length, environments: 2.7 MB and 6 KB an unroll
    "large": (EnvironmentSpec((1, 84, 84), "uint8", Discrete(6, 0), 4, False, 4, (84, 84)), 20, 16),
    "small": (EnvironmentSpec((4,), "float32", Discrete(6, 0), 1, False, 1, (4,)), 10, 8),
}


def make_unroll(shapes: Layout, num: int) -> Unroll:
    """An unroll of zeros that fits."""
    fields = {
        field.name: value
        for field in dataclasses.fields(shapes)
        if isinstance(value := getattr(shapes, field.name), tuple)
    }
    arrays = {name: np.zeros((shape[0], num, *shape[1:]), dtype) for name, (shape, dtype) in fields.items()}
    extras = {name: np.zeros((shape[0], num, *shape[1:]), dtype) for name, (shape, dtype) in shapes.extras.items()}
    arrays["mask"][:] = True
    return Unroll(**arrays, extras=extras, state={})


def size(unroll: Unroll) -> int:
    """Bytes of its arrays."""
    arrays = [value for value in vars(unroll).values() if isinstance(value, np.ndarray)]
    return sum(array.nbytes for array in (*arrays, *unroll.extras.values()))


def send(address: str, index: int, kind: str) -> None:
    """A client: sends the same unroll again and again until it is told to stop."""
    spec, k, num = SPECS[kind]
    peer = Peer("actor", index, 0)
    link, unroll = DealerLink(address, peer), make_unroll(layout(spec, k, MU), num)
    for sequence in range(10**9):
        link.send(Message(RUN_ID, peer, sequence, unroll=unroll))
        reply = link.receive(10.0) if sequence >= UNANSWERED - 1 else Reply(0)
        if reply is None or reply.stop:
            return


def measure(kind: str, clients: int) -> dict[str, float]:
    """Unrolls and bytes per second that the inbox takes from `clients` processes."""
    spec, k, num = SPECS[kind]
    shapes = layout(spec, k, MU)
    inbox = Inbox(RUN_ID, shapes, num, spec, clients * UNANSWERED)
    inbox.post(
        Message(RUN_ID, Peer("manager", 0, 0), 0, incarnations={f"actor_{i}": 0 for i in range(clients)}),
        lambda _: None,
    )
    with tempfile.TemporaryDirectory(prefix="fabric-", dir="/tmp") as folder:
        server = InboxServer(inbox, f"ipc://{folder}/inbox")
        command = [sys.executable, "-m", "checks.benchmarks.fabric", f"ipc://{folder}/inbox"]
        processes = [subprocess.Popen([*command, str(index), kind]) for index in range(clients)]
        try:
            rate = _take(inbox, clients)
            inbox.stop("measured")
            for process in processes:
                process.wait(20)
        finally:
            for process in processes:
                process.kill()
            server.close()
    return {"unrolls_per_s": rate, "bytes_per_s": rate * size(make_unroll(shapes, num))}


def _take(inbox: Inbox, clients: int) -> float:
    """Answers whatever comes; unrolls per second once everybody speaks."""
    heard: set[str] = set()
    start, count = 0.0, 0
    deadline = time.monotonic() + 60
    while not start or time.monotonic() - start < SECONDS:
        post = inbox.take_unroll(1.0)
        if time.monotonic() > deadline:
            raise TimeoutError("the clients say nothing")
        if post is None:
            continue
        post.answer(Reply(post.message.sequence))
        heard.add(post.message.peer.name)
        count += bool(start)
        if not start and len(heard) == clients:
            start = time.monotonic()
    return count / (time.monotonic() - start)


def main() -> dict[str, dict[str, float]]:
    """Large unrolls by one client and two, small ones by 1 to 8."""
    cases = [("large", 1), ("large", 2), ("small", 1), ("small", 2), ("small", 4), ("small", 8)]
    return {f"{kind} unrolls, {clients} clients": measure(kind, clients) for kind, clients in cases}


if __name__ == "__main__":
    if len(sys.argv) > 1:
        send(sys.argv[1], int(sys.argv[2]), sys.argv[3])
    else:
        assert Path.cwd().joinpath("apex_acer").is_dir(), "run it in the repository"
        print(json.dumps(main(), indent=2))
