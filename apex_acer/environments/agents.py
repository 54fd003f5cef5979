"""Games of several agents as one vector environment, of which each agent is a column.

A game is known by the attributes of PettingZoo's parallel API (arXiv 2009.14471), so that one's own needs no package.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Space
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from apex_acer.config import ConfigError
from apex_acer.protocol.specification import Array
from apex_acer.system import imports

WAITS = "waits"
"""In `info`: whose next action is ignored, because the agent is gone or has not come, or its game is over; `[N]` bool."""


class Game:
    """A game of A agents. Who is gone, or has not come, keeps the last observation that there was."""

    obs: list[Any]
    """What each agent sees."""

    def __init__(self, name: str, make: Callable[[], Any]) -> None:
        """The result of `make` with PettingZoo's parallel API, of the environment `name`; raises `ConfigError`."""
        self.env = _parallel(name, make)
        self.agents = list(self.env.possible_agents)
        self.plays = np.zeros(len(self.agents), bool)
        """Whether an agent's next action counts, `[A]`."""

    def reset(self, seed: int | None = None) -> None:
        """Begins anew; raises ValueError if nobody plays."""
        obs, _ = self.env.reset(seed=seed)
        self.obs = [next(iter(obs.values()), None)] * len(self.agents)
        self._look(obs)
        if not self.plays.any():
            raise ValueError("nobody plays after reset: agents is empty")

    def step(self, actions: Sequence[Any]) -> Array:
        """Rewards, and who was terminated and truncated, `[3, A]`; if nobody plays, the game begins anew instead."""
        values = np.zeros((3, len(self.agents)))
        if not self.plays.any():
            self.reset()
            return values
        acting = [(index, agent) for index, agent in enumerate(self.agents) if agent in self.env.agents]
        obs, *dicts, _ = self.env.step({agent: actions[index] for index, agent in acting})
        for index, agent in acting:
            values[:, index] = [values_of[agent] for values_of in dicts]
        self._look(obs)
        if not (self.plays & ~values[1:].any(0)).any():  # some games list their agents for ever
            self.plays[:] = False
        return values

    def _look(self, obs: dict[Any, Any]) -> None:
        self.obs = [obs.get(agent, before) for agent, before in zip(self.agents, self.obs, strict=True)]
        self.plays = np.array([agent in self.env.agents for agent in self.agents])


class AgentsVector(VectorEnv[Any, Any, Any]):
    """Games of equal agents: the columns are the agents of the first game, of the second, …; NEXT_STEP autoreset.

    A game begins anew once nobody plays.
    """

    def __init__(self, name: str, make: Callable[[], Any], count: int) -> None:
        """As many games as have `count` agents or a few more (`Game`); raises `ConfigError`."""
        game = Game(name, make)
        self.num_agents = len(game.agents)
        self.games = [game, *(Game(name, make) for _ in range((count - 1) // self.num_agents))]
        self.num_envs = len(self.games) * self.num_agents
        self.single_observation_space = common_space(name, "observation", game.env.observation_space, game.agents)
        self.single_action_space = common_space(name, "action", game.env.action_space, game.agents)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.metadata = {**(getattr(game.env, "metadata", None) or {}), "autoreset_mode": AutoresetMode.NEXT_STEP}

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begins the games with `seed`, `seed + 1`, …; returns observations and `info`."""
        del options
        for index, game in enumerate(self.games):
            game.reset(None if seed is None else seed + index)
        return self._batch(), {WAITS: self._waits()}

    def step(self, actions: Any) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """Steps the games with an action for each column, which is ignored where nobody plays."""
        each = [*iterate(self.action_space, actions)]
        parts = [each[start : start + self.num_agents] for start in range(0, self.num_envs, self.num_agents)]
        values = np.concatenate([game.step(part) for game, part in zip(self.games, parts, strict=True)], 1)
        return self._batch(), values[0], values[1] > 0, values[2] > 0, {WAITS: self._waits()}

    def render(self) -> tuple[Any, ...]:
        """A picture of each game."""
        return tuple(game.env.render() for game in self.games)

    def close_extras(self, **options: Any) -> None:
        del options
        for game in self.games:
            game.env.close()

    def _waits(self) -> Array:
        return ~np.concatenate([game.plays for game in self.games])

    def _batch(self) -> Any:
        space, obs = self.single_observation_space, [each for game in self.games for each in game.obs]
        out: Any = create_empty_array(space, self.num_envs)
        return concatenate(space, obs, out)


def _parallel(name: str, make: Callable[[], Any]) -> Any:
    """The result of `make` with PettingZoo's parallel API; raises `ConfigError`."""
    env = imports.attempt("environment.id", name, make)
    if hasattr(env, "agent_iter") and (env.metadata or {}).get("is_parallelizable"):
        from pettingzoo.utils.conversions import aec_to_parallel

        env = aec_to_parallel(env)
    if not getattr(env, "possible_agents", None):
        allowed = "give a function of a PettingZoo ParallelEnv, or of an AECEnv of two players"
        raise ConfigError(f"environment.id: {name!r}: it gave {type(env).__name__}; {allowed}")
    return env


def common_space(name: str, what: str, space_of: Callable[[Any], Space[Any]], agents: list[Any]) -> Space[Any]:
    """The space that all agents have; raises `ConfigError` if they differ."""
    first = space_of(agents[0])
    for agent in agents:
        if space_of(agent) != first:
            have = f"the {what} space of {agents[0]} is {first}, of {agent} {space_of(agent)}"
            line = f"environment.id: {name!r}: {have}; agents share a policy: give all the same"
            raise ConfigError(" ".join(line.split()))
    return first
