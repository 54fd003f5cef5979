"""Remote clients of a simulated run, and the real server, whose connections and clock are the world's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

from websockets.exceptions import ConnectionClosedError

from apex_acer.remote.server import Server
from apex_acer.remote.session import Event
from tests.simulation import task
from tests.simulation.world import Broken, Killed, World

LATENCY_S, STEP_S, AWAY_S, LOOK_S = 0.002, 0.05, 0.5, 0.5  # mean virtual seconds; the last one exact
UNNOTICED_S = 3.0  # for a server to see that a connection is broken, at most


class SimulatedServer(Server):
    """A server without a socket or a thread."""

    def __init__(self, clients: Clients, *arguments: Any, **options: Any) -> None:
        listener: Any = SimpleNamespace(authenticated=lambda connection: None)
        super().__init__(*arguments, **options, listener=listener)
        self._world, self.open = clients.world, True
        self._connections: list[Connection] = []
        clients.server = self
        self._look()

    def _run(self, started: asyncio.Future[None]) -> None:  # type: ignore[override]
        started.set_result(None)

    def connect(self, connection: Connection) -> None:
        self._connections.append(connection)
        self._later(self._welcome_and_hear(connection))
        self.go_on()

    def take(self, timeout_s: float) -> list[Event]:
        """The events since the last call; while there is none, what happens in the world meanwhile happens."""
        until = self._world.now + timeout_s
        while self._events.empty() and self._world.go_on(until):
            if not self.open:
                raise Killed
        return super().take(0)

    def answer(self, decisions: Any) -> None:
        super().answer(decisions)
        self.go_on()

    def go_on(self) -> None:
        """Has the coroutines go on as far as they can."""
        while self.open:
            self._loop.call_soon(self._loop.stop)
            self._loop.run_forever()
            if not self._loop._ready:  # type: ignore[attr-defined]
                return

    def _look(self) -> None:
        """Has timers expire."""
        if self.open:
            self.go_on()
            self._world.after(LOOK_S, self._look)

    def close(self, *, failed: bool = False) -> None:
        del failed
        if self.open:
            for each in asyncio.all_tasks(self._loop):
                each.cancel()
            self.go_on()
            self.open = False
            self._loop.close()
            for connection in self._connections:
                connection.cut()


class Connection:
    """A client's connection, as the server's coroutines use it; what they send arrives late and in order."""

    request = None
    remote_address = ("127.0.0.1", 1)

    def __init__(self, server: SimulatedServer, client: Client) -> None:
        self.protocol = SimpleNamespace(text=True, parser_exc=None)
        self._server, self._client, self._world = server, client, client.world
        self._inbox: asyncio.Queue[str | None] = asyncio.Queue()
        self._heard_at = self._told_at = 0.0
        self.broken = False

    # ── the server's end ──

    async def recv(self) -> str:
        if (data := await self._inbox.get()) is None:
            raise ConnectionClosedError(None, None)
        return data

    async def __aiter__(self) -> AsyncIterator[str]:
        while (data := await self._inbox.get()) is not None:
            yield data

    async def send(self, data: str) -> None:
        self._told_at = self._world.in_order(self._told_at, LATENCY_S, lambda: self._tell(data))

    async def close(self, code: int = 1000, reason: str = "") -> None:
        self.cut()

    def _tell(self, data: str) -> None:
        if not self.broken:
            self._client.hear(self, json.loads(data))

    # ── the client's end ──

    def say(self, values: dict[str, Any]) -> None:
        self._heard_at = self._world.in_order(self._heard_at, LATENCY_S, lambda: self._hear(json.dumps(values)))

    def _hear(self, data: str | None) -> None:
        if self._server.open and not (self.broken and data):
            self._inbox.put_nowait(data)
            self._server.go_on()

    def cut(self) -> None:
        """Breaks the connection; each end sees that after a time of its own."""
        if not self.broken:
            self.broken = True
            self._world.after(self._world.random.uniform(0, UNNOTICED_S), lambda: self._hear(None))
            self._world.after(self._world.some(AWAY_S), lambda: self._client.lose(self))


class Agent:
    """An environment as in `task.Numbered`."""

    def __init__(self) -> None:
        self.number, self._made, self.in_episode = next(task.numbers), 0, -1

    def go_on(self) -> str:
        """Makes a step of the environment, or resets it; returns what it was."""
        self._made += 1
        self.in_episode = (self.in_episode + 1) % (task.EPISODE + 1)
        if self.in_episode == task.EPISODE:
            self.in_episode = -1
            return "terminated" if self._made % 2 else "truncated"
        return "step" if self.in_episode else "reset"

    @property
    def observation(self) -> list[int]:
        return [self.number, self._made]


class Client:
    """Speaks the protocol of docs/remote.md, for one agent in version 1 or for several in version 2."""

    def __init__(self, clients: Clients, agents: int | None) -> None:
        self.world, self._clients, self._num = clients.world, clients, agents
        self._hello = {"type": "hello", "version": 1, "token": clients.token, "action": {"n": 2, "start": 0}}
        self._hello["observation"] = {"shape": [2], "dtype": "float32"}
        self._hello |= {"version": 2, "agents": agents} if agents else {}
        self._agents = [Agent() for _ in range(agents or 1)]
        self._session = ""
        self._request: dict[str, Any] = {"sequence": -1}
        self._connection: Connection | None = None
        self.frozen = self.gone = False
        self.world.after(self.world.some(AWAY_S), self._connect)

    def cut(self) -> None:
        if self._connection:
            self._connection.cut()

    def leave(self, *, quietly: bool) -> None:
        """Ends; another client comes in its place."""
        self.gone = True
        if self._connection and not quietly:
            self._connection.say({"type": "bye", "sequence": self._request["sequence"] + 1})
        self.cut()
        self._clients.all[self._clients.all.index(self)] = Client(self._clients, self._num)

    def lose(self, connection: Connection) -> None:
        if connection is self._connection:
            self._connection = None
            self.world.after(self.world.some(AWAY_S), self._connect)

    def hear(self, connection: Connection, values: dict[str, Any]) -> None:
        if self.frozen:
            self.world.after(AWAY_S, lambda: self.hear(connection, values))
        elif not self.gone and connection is self._connection:
            getattr(self, f"_hear_{values['type']}")(values)

    def _connect(self) -> None:
        server = self._clients.server
        if self.gone or self._connection:
            return
        if self.frozen or not (server and server.open):
            self.world.after(self.world.some(AWAY_S), self._connect)
            return
        self._connection = Connection(server, self)
        server.connect(self._connection)
        self._connection.say(self._hello | ({"session": self._session} if self._session else {}))

    def _hear_welcome(self, values: dict[str, Any]) -> None:
        sequence, server_has = self._request["sequence"], values["sequence"]
        if values["session"] != self._session:  # what was played of the episode is over
            self._session, self._request = values["session"], {"sequence": -1}
            for agent in self._agents:
                agent.in_episode = -1
            self._play()
        elif server_has == sequence - 1:
            self._say()
        elif server_has != sequence:
            raise Broken(f"client {self._name} has sent message {sequence}, the server has {server_has}")

    def _hear_action(self, values: dict[str, Any]) -> None:
        if values["sequence"] == self._request["sequence"]:
            self.world.after(self.world.some(STEP_S), self._play_once(values["sequence"]))

    _hear_ended = _hear_actions = _hear_action

    def _hear_error(self, values: dict[str, Any]) -> None:
        if not values["retry"]:
            raise Broken(f"client {self._name} was refused: {values['message']}")

    def _play_once(self, sequence: int) -> Any:
        """Plays on, unless the answer has come twice."""
        return lambda: self._play() if self._request["sequence"] == sequence and not self.gone else None

    def _play(self) -> None:
        """Makes a step of each environment, of which all but the first may wait, and sends what came of it."""
        if self._num is None:
            (agent,) = self._agents
            kind = agent.go_on()
            request = {"type": kind, "observation": agent.observation, **({} if kind == "reset" else {"reward": 1.0})}
        else:
            waits = [at > 0 and self.world.random.random() < 0.3 for at in range(self._num)]
            kinds = ["wait" if waits else agent.go_on() for agent, waits in zip(self._agents, waits, strict=True)]
            observations = [agent.observation for agent in self._agents]
            request = {"type": "steps", "kinds": kinds, "observations": observations, "rewards": [1.0] * self._num}
        self._request = {**request, "sequence": self._request["sequence"] + 1}
        self._say()

    @property
    def _name(self) -> str:
        return "+".join(str(agent.number) for agent in self._agents)

    def _say(self) -> None:
        if self._connection:
            self._connection.say(self._request)


class Clients:
    """The clients of a run, which come back to whatever server there is; of three, two are agents of one client."""

    def __init__(self, world: World, count: int, token: str) -> None:
        self.world, self.token = world, token
        self.server: SimulatedServer | None = None
        self.all = [Client(self, agents) for agents in ([None, 2] if count == 3 else [None] * count)]

    def serve(self, *arguments: Any, **options: Any) -> SimulatedServer:
        """What the actor makes its server with."""
        return SimulatedServer(self, *arguments, **options)

    def close(self) -> None:
        """Closes the newest server, whose actor something that is wrong may have kept from doing so."""
        if self.server:
            self.server.close()
