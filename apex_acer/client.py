"""A client of `apex-acer train` with remote environments, and of `apex-acer serve`.

It speaks docs/remote.md's protocol: version 2 if it has agents, else version 1.
The file can be copied: it needs only numpy, msgpack and websockets.
"""

from __future__ import annotations

import contextlib
import logging
import math
import random
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple

import msgpack
import numpy as np
import numpy.typing as npt
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage, InvalidURI
from websockets.sync.client import ClientConnection, connect

log = logging.getLogger(__name__)

ENDS = "terminated", "truncated"
CONNECT_S = 10.0  # for one attempt to connect
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0  # before an attempt; each is twice as long as the one before
JITTER = random.SystemRandom()  # an environment may draw from the shared generator, and forks repeat any other

Observation = npt.ArrayLike | Mapping[str, Any]


class RemoteError(Exception):
    """The server refused a message or cannot be reached; says why in one line."""


class EpisodeLost(RemoteError):
    """The connection was broken for too long, so the episode counts as truncated; begin a new one with `reset`."""


class Ended(RemoteError):
    """The server has sent its close message."""


class Summary(NamedTuple):
    """Episodes that a client has played."""

    episodes: int
    steps: int
    returns: list[float]
    """Sum of the rewards of each episode."""


class Client:
    """A connection for one environment, or for several agents, for code with its own loop. It reconnects by itself."""

    def __init__(
        self,
        url: str,
        token: str,
        *,
        observation: Mapping[str, Any],
        action: Mapping[str, Any],
        agents: int | None = None,
        name: str = "",
        train: bool = True,
        patience_s: float = 60.0,
    ) -> None:
        """Connects; raises `RemoteError` if the server refuses or cannot be reached.

        Args:
            url: `ws://…` or `wss://…`.
            token: the run's token.
            observation: `{"shape": [4], "dtype": "float32"}`, or such a description of each part by its name.
            action: `{"n": 2}`, `{"nvec": [3, 2]}` for several choices, or `{"low": […], "high": […]}` for a `Box`.
            agents: how many agents act together, through `steps`; None: one, through `reset`, `step` and `end`.
            name: a client with `agents` may have one; the run logs what it has done.
            train: whether the run learns from the steps.
            patience_s: seconds to try to connect, at the start and whenever the connection breaks.
        """
        self._url, self._patience_s = url, patience_s
        self._observation = observation
        self._hello: dict[str, Any] = {"type": "hello", "version": 2 if agents else 1, "token": token, "train": train}
        self._hello |= ({"agents": agents} if agents else {}) | ({"name": name} if name else {})
        self._hello |= {"observation": dict(observation), "action": dict(action)}
        self._action_dtype = np.float32 if "low" in action else np.int64
        self._session, self._sequence, self._server_has = "", -1, -1
        self._connection: ClientConnection | None = None
        self._pause_s = FIRST_PAUSE_S
        self._closing = contextlib.ExitStack()  # closes the connection
        self._connect()

    def reset(self, observation: Observation) -> Any:
        """Begins an episode; returns its first action: an int, an int64 array of choices, or a float32 array `[d]`."""
        return self._ask({"type": "reset", "observation": self._bytes(observation)})

    def step(self, observation: Observation, reward: float) -> Any:
        """Sends the result of the last action; returns the next one."""
        return self._ask({"type": "step", "observation": self._bytes(observation), "reward": float(reward)})

    def end(self, observation: Observation, reward: float, *, terminated: bool) -> None:
        """Sends the result of the last action, with which the episode was `terminated` or else truncated."""
        kind = "terminated" if terminated else "truncated"
        self._ask({"type": kind, "observation": self._bytes(observation), "reward": float(reward)})

    def steps(self, kinds: Sequence[str], observations: Observation, rewards: npt.ArrayLike) -> list[Any]:
        """Sends what is new of each agent; returns the next action of each, None for those that have asked for none.

        After `EpisodeLost` the episodes of all agents are over, so each begins a new one.

        Args:
            kinds: of each agent: `reset`, `step`, `terminated`, `truncated`, or `wait` if nothing is new.
            observations: `[agents, *shape]`, or such an array of each part; rows of agents that wait are not looked at.
            rewards: `[agents]` finite numbers; those of agents that wait or reset are not looked at.
        """
        values = {"type": "steps", "kinds": list(kinds), "observations": self._bytes(observations)}
        answer: list[Any] = self._ask(values | {"rewards": np.asarray(rewards, np.float64).tolist()})
        return answer

    def close(self) -> None:
        """Closes the connection; an episode that has not ended counts as truncated."""
        connection, self._connection = self._connection, None
        if connection:
            with contextlib.suppress(ConnectionClosed):
                connection.send(msgpack.packb({"type": "bye", "sequence": self._sequence + 1}))
        self._closing.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _bytes(self, observation: Any) -> Any:
        if isinstance(self._observation.get("dtype"), str):
            return _bytes(observation, self._observation)
        return {name: _bytes(_find(observation, name), part) for name, part in self._observation.items()}

    def _ask(self, values: dict[str, Any]) -> Any:
        """Sends a message until the server has it; returns the action in the answer, or those of all agents.

        An action is None after an episode's end.
        """
        self._sequence, self._pause_s = self._sequence + 1, FIRST_PAUSE_S
        begins = values["type"] == "reset" or set(values.get("kinds", ())) == {"reset"}
        while True:
            if self._connection is None:
                self._come_back(begins=begins)
            connection = self._connection
            assert connection is not None
            try:
                if self._server_has < self._sequence:
                    connection.send(msgpack.packb(values | {"sequence": self._sequence}))
                    self._server_has = self._sequence
                answer = _read(connection)
                while answer.get("sequence") != self._sequence:
                    answer = _read(connection)
                break
            except ConnectionClosed as error:
                self._connection = None
                with contextlib.suppress(ConnectionClosed):
                    while True:  # the server's close message may have come before
                        _read(connection)
                self._pause(error)
        if "actions" in answer:
            return [self._action(action) for action in answer["actions"]]
        return self._action(answer.get("action"))

    def _action(self, action: int | list[float] | None) -> Any:
        return np.array(action, self._action_dtype) if isinstance(action, list) else action

    def _come_back(self, *, begins: bool) -> None:
        """Reconnects; raises `EpisodeLost` if the session is a new one, unless the next message `begins` all episodes."""
        before = self._session
        self._connect()
        if self._session == before:
            return
        self._sequence = 0 if begins else -1
        if not begins:
            raise EpisodeLost("the connection was broken for too long; begin a new episode")

    def _connect(self) -> None:
        ends_at = time.monotonic() + self._patience_s
        while True:
            try:
                return self._try_to_connect()
            except (OSError, ConnectionClosed, InvalidHandshake, InvalidMessage) as error:
                if time.monotonic() + self._pause_s > ends_at:
                    raise RemoteError(f"{self._url}: {error or type(error).__name__}") from None
                self._pause(error)
            except InvalidURI as error:
                raise RemoteError(str(error)) from None

    def _pause(self, error: Exception) -> None:
        """Waits before an attempt to connect: twice as long as before the one before, until a message is answered."""
        if self._pause_s == 2 * FIRST_PAUSE_S:  # the first may just have come too early
            log.warning("%s: %s; trying again for %g s", self._url, error, self._patience_s)
        # clients that were cut off together do not return together
        time.sleep(self._pause_s * JITTER.uniform(0.5, 1.0))
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)

    def _try_to_connect(self) -> None:
        self._closing.close()
        options: dict[str, Any] = {"compression": None, "open_timeout": CONNECT_S, "close_timeout": 1, "max_size": None}
        with contextlib.ExitStack() as stack:
            connection = stack.enter_context(connect(self._url, **options))
            connection.send(msgpack.packb(self._hello | ({"session": self._session} if self._session else {})))
            welcome = _read(connection)
            self._closing = stack.pop_all()
        self._connection, self._session, self._server_has = connection, welcome["session"], welcome["sequence"]


def _read(connection: ClientConnection) -> dict[str, Any]:
    """The next message, for which it waits as long as the server answers pings.

    Raises `Ended` for a close message, `ConnectionError` if the server asks to try again, `RemoteError` for other errors.
    """
    values: dict[str, Any] = msgpack.unpackb(connection.recv())
    if values["type"] == "bye":
        raise Ended(values["message"])
    if values["type"] == "error":
        raise (ConnectionError if values["retry"] else RemoteError)(values["message"])
    return values


def _bytes(array: npt.ArrayLike, space: Mapping[str, Any]) -> bytes:
    return np.ascontiguousarray(array, np.dtype(space["dtype"]).newbyteorder("<")).tobytes()


def _find(observation: Any, name: str) -> Any:
    """The part `name`, such as `camera.1`, of nested dictionaries and tuples."""
    if isinstance(observation, Mapping) and name in observation:
        return observation[name]
    for key in name.split("."):
        observation = observation[key] if isinstance(observation, Mapping) else observation[int(key)]
    return observation


def spaces(env: Any) -> dict[str, Any]:
    """Arguments `observation` and `action` of `Client` for a gymnasium environment, or for each copy of a vector of them."""
    single = "single_" if hasattr(env, "num_envs") else ""
    observation, action = (getattr(env, f"{single}{name}_space") for name in ("observation", "action"))
    return {"observation": _observation(observation), "action": _actions(action)}


def _observation(space: Any, name: str = "") -> dict[str, Any]:
    """The description of an observation space, or of each of its parts by name."""
    inner = getattr(space, "spaces", None)  # of a Dict or Tuple
    if inner is None:
        dtype = "int64" if (hasattr(space, "n") and not space.shape) or hasattr(space, "nvec") else space.dtype.name
        described = {"shape": list(space.shape), "dtype": dtype}
        return {name: described} if name else described
    named = inner.items() if isinstance(inner, Mapping) else enumerate(inner)
    parts = (_observation(part, f"{name}.{key}".removeprefix(".")) for key, part in named)
    return dict(pair for part in parts for pair in part.items())


def _actions(space: Any) -> dict[str, Any]:
    if hasattr(space, "low"):
        return {"low": space.low.ravel().tolist(), "high": space.high.ravel().tolist()}
    if hasattr(space, "nvec"):
        return {"nvec": space.nvec.ravel().tolist(), "start": space.start.ravel().tolist()}
    if space.shape:  # a MultiBinary
        return {"nvec": [2] * math.prod(space.shape)}
    return {"n": int(space.n), "start": int(space.start)}


def run(
    env: Any,
    url: str,
    token: str,
    *,
    episodes: int | None = None,
    train: bool = True,
    seed: int | None = None,
    patience_s: float = 60.0,
) -> Summary:
    """Plays a gymnasium environment, or a vector of them at once, until the server closes or `episodes` have ended.

    Args:
        env: an environment, or a `VectorEnv` with NEXT_STEP autoreset (gymnasium's default), that has
            `Discrete`, `MultiDiscrete`, `MultiBinary` or `Box` actions.
        url: `ws://…` or `wss://…`.
        token: the run's token.
        episodes: how many to play; None: no limit.
        train: whether the run learns from the steps.
        seed: of the environment's first reset.
        patience_s: seconds to try to connect, at the start and whenever the connection breaks.

    Raises:
        ValueError: if the vector has another autoreset.
        RemoteError: if the server refuses or cannot be reached.
    """
    if hasattr(env, "num_envs"):
        mode = (env.metadata or {}).get("autoreset_mode")
        if getattr(mode, "name", None) in ("SAME_STEP", "DISABLED"):
            raise ValueError(f"env has autoreset mode {mode}; require NEXT_STEP")
        return _run_vector(env, url, token, episodes=episodes, train=train, seed=seed, patience_s=patience_s)
    returns, steps, shape = list[float](), 0, env.action_space.shape
    with Client(url, token, **spaces(env), train=train, patience_s=patience_s) as client, contextlib.suppress(Ended):
        while episodes is None or len(returns) < episodes:
            obs, _ = env.reset(seed=seed)
            seed, total, over = None, 0.0, False
            with contextlib.suppress(EpisodeLost):
                action = client.reset(obs)
                while not over:
                    if not isinstance(action, int):
                        action = action.astype(env.action_space.dtype).reshape(shape)
                    obs, reward, terminated, truncated, _ = env.step(action)
                    total, steps, over = total + float(reward), steps + 1, terminated or truncated
                    if over:
                        client.end(obs, reward, terminated=terminated)
                        returns.append(total)
                    else:
                        action = client.step(obs, reward)
    return Summary(len(returns), steps, returns)


def _run_vector(envs: Any, url: str, token: str, *, episodes: int | None, seed: int | None, **options: Any) -> Summary:
    """`run` for a `VectorEnv`, whose copies are the agents of one client."""
    returns, steps, num, space = list[float](), 0, envs.num_envs, envs.single_action_space
    with Client(url, token, **spaces(envs), agents=num, **options) as client, contextlib.suppress(Ended):
        while episodes is None or len(returns) < episodes:
            obs, _ = envs.reset(seed=seed)
            seed, kinds, rewards, totals = None, ["reset"] * num, np.zeros(num), np.zeros(num)
            actions: list[Any] = [None] * num
            with contextlib.suppress(EpisodeLost):
                while True:
                    answers = client.steps(kinds, obs, rewards)
                    over = np.array([kind in ENDS for kind in kinds])
                    returns += totals[over].tolist()
                    if episodes is not None and len(returns) >= episodes:
                        break
                    # an environment that resets itself ignores its action, but must get one
                    actions = [old if new is None else new for new, old in zip(answers, actions, strict=True)]
                    obs, rewards, terminated, truncated, _ = envs.step(
                        np.array(actions, space.dtype).reshape(num, *space.shape)
                    )
                    totals = np.where(over, 0.0, totals + rewards)
                    steps += int((~over).sum())
                    kinds = np.select([over, terminated, truncated], ["reset", *ENDS], "step").tolist()
    return Summary(len(returns), steps, returns)
