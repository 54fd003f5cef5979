"""Remote clients that cost little, so that the server is what is measured: many in a process, each plays CartPole.

`python -m checks.benchmarks.remote_load URL TOKEN --clients 16 --warm-up 5 --seconds 20` prints JSON: the steps of each
client, the milliseconds from observation to action of each step, and what a step cost these processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import sys
import time
from typing import Any
from urllib.parse import urlsplit

import msgpack
import tyro
from gymnasium.envs.classic_control import CartPoleEnv

PAUSE_S = 0.5  # before another attempt: a server admits so many connections a second
LONGEST_EPISODE = 500
BINARY, CLOSE, PING, PONG = 0x82, 0x88, 0x89, 0x8A
UPGRADE = (
    "GET / HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


class Player:
    """One client; speaks WebSocket itself, which takes a tenth of a library's time."""

    def __init__(self, token: str, seed: int) -> None:
        self.steps = 0
        self.waits_ms: list[float] = []
        """From observation to action, since they were last cleared."""
        self._token, self._seed, self._env, self._length = token, seed, CartPoleEnv(), 0
        self._sequence = -1

    async def play(self, host: str, port: int) -> None:
        """Plays without an end."""
        while True:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):  # it does not listen yet
                reader, writer = await asyncio.open_connection(host, port)
                with contextlib.closing(writer):
                    writer.write(UPGRADE.format(host=host).encode())
                    answer = await reader.readuntil(b"\r\n\r\n")
                    if b" 101 " in answer:
                        return await self._converse(reader, writer)
            await asyncio.sleep(PAUSE_S)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        space = {"observation": {"shape": [4], "dtype": "float32"}, "action": {"n": 2}}
        write(writer, BINARY, msgpack.packb({"type": "hello", "version": 1, "token": self._token, **space}))
        while True:
            asked_at = time.perf_counter()
            values = await hear(reader, writer)
            match values["type"]:
                case "action":
                    self.waits_ms.append(1000 * (time.perf_counter() - asked_at))
                    message = self._step(values["action"])
                case "welcome" | "ended":
                    message = self._reset()
                case _:
                    raise RuntimeError(f"the server ended: {values}")
            self._sequence += 1
            write(writer, BINARY, msgpack.packb(message | {"sequence": self._sequence}))

    def _reset(self) -> dict[str, Any]:
        obs, _ = self._env.reset(seed=self._seed if self.steps == 0 else None)
        self._length = 0
        return {"type": "reset", "observation": obs.tobytes()}

    def _step(self, action: int) -> dict[str, Any]:
        obs, reward, terminated, _, _ = self._env.step(action)  # type: ignore[no-untyped-call]
        self.steps, self._length = self.steps + 1, self._length + 1
        kind = "terminated" if terminated else "truncated" if self._length == LONGEST_EPISODE else "step"
        return {"type": kind, "observation": obs.tobytes(), "reward": float(reward)}


def write(writer: asyncio.StreamWriter, opcode: int, payload: bytes) -> None:
    """Sends a frame of up to 64 KiB; a mask of zeros leaves it as it is."""
    num = len(payload)
    length = bytes([0x80 | num]) if num < 126 else b"\xfe" + num.to_bytes(2, "big")
    writer.write(bytes([opcode]) + length + bytes(4) + payload)


async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> dict[str, Any]:
    """The next message; answers pings."""
    while True:
        opcode, num = await reader.readexactly(2)
        if num == 126:
            num = int.from_bytes(await reader.readexactly(2), "big")
        payload = await reader.readexactly(num)
        if opcode == PING:
            write(writer, PONG, payload)
        elif opcode == BINARY:
            return dict(msgpack.unpackb(payload))
        elif opcode == CLOSE:
            raise RuntimeError("the server closed the connection")


async def load(url: str, token: str, clients: int, warm_up: float, seconds: float, seed: int) -> dict[str, Any]:
    """What so many clients saw in `seconds` after the warm-up."""
    address = urlsplit(url)
    players = [Player(token, seed + number) for number in range(clients)]
    assert address.hostname
    assert address.port
    tasks = [asyncio.create_task(player.play(address.hostname, address.port)) for player in players]
    await asyncio.sleep(warm_up)
    for player in players:
        player.waits_ms.clear()
    before, cpu_s, began = [player.steps for player in players], cpu_seconds(), time.monotonic()
    await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
    elapsed = time.monotonic() - began
    steps = [player.steps - num for player, num in zip(players, before, strict=True)]
    cost_us = 1e6 * (cpu_seconds() - cpu_s) / max(1, sum(steps))
    for task in tasks:
        if task.done():
            task.result()
        task.cancel()
    waits = [wait for player in players for wait in player.waits_ms]
    return {"seconds": elapsed, "steps": steps, "cpu_us_per_step": cost_us, "waits_ms": waits}


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main(
    url: tyro.conf.Positional[str],
    token: tyro.conf.Positional[str],
    clients: int = 16,
    warm_up: float = 5.0,
    seconds: float = 20.0,
    seed: int = 0,
) -> int:
    """Plays and prints the figures."""
    print(json.dumps(asyncio.run(load(url, token, clients, warm_up, seconds, seed))))
    return 0


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
