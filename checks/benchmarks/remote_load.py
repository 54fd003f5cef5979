"""Remote clients that cost little, so that the server is what is measured: many in a process, each plays CartPole.

`python -m checks.benchmarks.remote_load URL TOKEN --clients 16 --warm-up 5 --seconds 20` prints JSON: the steps of each
client (or of each of its agents, with `--agents 16`), the milliseconds from observation to action of each step, and what a
step cost these processes.
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


class Cart:
    """A CartPole that resets itself."""

    def __init__(self, seed: int) -> None:
        self.steps = 0
        self._env, self._seed, self._length = CartPoleEnv(), seed, -1  # -1: an episode is to begin

    def go_on(self, action: int | None) -> tuple[str, bytes, float]:
        """Makes a step, or resets after an episode's end; returns its kind, the observation and the reward."""
        self._length += 1
        if self._length == 0:
            obs, _ = self._env.reset(seed=self._seed if self.steps == 0 else None)
            return "reset", obs.tobytes(), 0.0
        self.steps += 1
        obs, reward, terminated, _, _ = self._env.step(action)  # type: ignore[no-untyped-call]
        kind = "terminated" if terminated else "truncated" if self._length == LONGEST_EPISODE else "step"
        if kind != "step":
            self._length = -1
        return kind, obs.tobytes(), float(reward)


class Player:
    """One client, perhaps of several agents; speaks WebSocket itself, which takes a tenth of a library's time."""

    def __init__(self, token: str, seed: int, agents: int) -> None:
        """Without `agents` it speaks version 1."""
        self.carts = [Cart(seed + number) for number in range(agents or 1)]
        self.waits_ms: list[float] = []
        """From observation to action, since they were last cleared."""
        self._token, self._agents, self._sequence = token, agents, -1

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
        version = {"version": 2, "agents": self._agents} if self._agents else {"version": 1}
        write(writer, BINARY, msgpack.packb({"type": "hello", **version, "token": self._token, **space}))
        while True:
            asked_at = time.perf_counter()
            values = await hear(reader, writer)
            if values["type"] not in ("welcome", "action", "ended", "actions"):
                raise RuntimeError(f"the server ended: {values}")
            if "action" in values or "actions" in values:
                self.waits_ms.append(1000 * (time.perf_counter() - asked_at))
            actions = values.get("actions") or [values.get("action")] * len(self.carts)
            self._sequence += 1
            message = self._message([cart.go_on(action) for cart, action in zip(self.carts, actions, strict=True)])
            write(writer, BINARY, msgpack.packb(message | {"sequence": self._sequence}))

    def _message(self, steps: list[tuple[str, bytes, float]]) -> dict[str, Any]:
        kinds, observations, rewards = zip(*steps, strict=True)
        if self._agents:
            return {"type": "steps", "kinds": kinds, "observations": b"".join(observations), "rewards": rewards}
        reward = {} if kinds[0] == "reset" else {"reward": rewards[0]}
        return {"type": kinds[0], "observation": observations[0], **reward}


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


async def load(
    url: str, token: str, clients: int, agents: int, warm_up: float, seconds: float, seed: int
) -> dict[str, Any]:
    """What so many clients, each of so many agents, saw in `seconds` after the warm-up."""
    address = urlsplit(url)
    players = [Player(token, seed + number * (agents or 1), agents) for number in range(clients)]
    carts = [cart for player in players for cart in player.carts]
    assert address.hostname
    assert address.port
    tasks = [asyncio.create_task(player.play(address.hostname, address.port)) for player in players]
    await asyncio.sleep(warm_up)
    for player in players:
        player.waits_ms.clear()
    before, cpu_s, began = [cart.steps for cart in carts], cpu_seconds(), time.monotonic()
    await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
    elapsed = time.monotonic() - began
    steps = [cart.steps - num for cart, num in zip(carts, before, strict=True)]
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
    agents: int = 0,
    warm_up: float = 5.0,
    seconds: float = 20.0,
    seed: int = 0,
) -> int:
    """Plays and prints the figures."""
    print(json.dumps(asyncio.run(load(url, token, clients, agents, warm_up, seconds, seed))))
    return 0


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
