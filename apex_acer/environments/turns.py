"""Games of two players who take turns, as one vector environment: a column is one player, an opponent moves for the other.

A step is the player's move and the opponent's reply, so a reply that wins pays −1 on that same step. A game is known by the
attributes of PettingZoo's AEC API (arXiv 2009.14471), so that one's own needs no package.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from apex_acer.config import ConfigError
from apex_acer.environments.agents import common_space
from apex_acer.protocol.actions import Actions
from apex_acer.protocol.messages import Row
from apex_acer.protocol.planes import find, is_legal
from apex_acer.protocol.specification import MASK, Array, EnvironmentSpec
from apex_acer.system import imports
from apex_acer.system.seeds import derive_seed

Move = Callable[[Any, np.random.Generator], Any]
"""A function from one observation of the game, and a source of random numbers, to an action of the game."""


class Opponent:
    """Moves for the other player of each of N games; a subclass needs `act` alone."""

    def reset(self, seed: int | None, num: int) -> None:
        """Begins `num` new games with this seed; `begin` follows for each."""

    def begin(self, game: int) -> None:
        """Begins a new game in place of the game with this index."""

    def act(self, games: Sequence[int], obs: Sequence[Any]) -> Sequence[Any]:
        """An action of the game for each of `games`, whose other players see `obs`."""
        raise NotImplementedError

    def end(self, game: int, episode_return: float) -> None:
        """Takes note of the player's return in a game that is over."""

    def metrics(self) -> Row:
        """Metrics since the last call."""
        return {}


class MoveOpponent(Opponent):
    """Moves by a function of the observation."""

    def __init__(self, move: Move) -> None:
        self._move = move

    def reset(self, seed: int | None, num: int) -> None:
        self._random = np.random.default_rng(seed)

    def act(self, games: Sequence[int], obs: Sequence[Any]) -> Sequence[Any]:
        return [self._move(each, self._random) for each in obs]


def random_move(actions: Actions, has_masks: bool) -> Move:
    """A function that moves at random, uniformly over the legal moves if observations have masks."""

    def move(obs: Any, rng: np.random.Generator) -> Any:
        legal = is_legal(np.ravel(find(obs, MASK)))[None] if has_masks else None
        return actions.for_user(actions.to_environment(actions.sample(rng, 1, legal=legal)))

    return move


class Match:
    """A game of two players, seen by the one whose moves are learned from."""

    reward: float
    """The player's rewards since the last `take_step`."""
    episode_return: float
    """The player's rewards since the reset."""

    def __init__(self, name: str, make: Callable[[], Any]) -> None:
        """The result of `make`, of the environment `name`; raises `ConfigError` if it has not two players."""
        self.env = imports.attempt("environment.id", name, make)
        num = len(getattr(self.env, "possible_agents", ()))
        if num != 2:
            allowed = "give a game of two players, or a function of a PettingZoo ParallelEnv"
            raise ConfigError(f"environment.id: {name!r}: {num} agents take turns; {allowed}")
        self.over = True
        self._random = np.random.default_rng()

    def reset(self, seed: int | None = None) -> None:
        """Begins anew; draws which of the two the player is, and with it who begins."""
        if seed is not None:
            self._random = np.random.default_rng(derive_seed(seed, "player"))  # not the game's own numbers
        first = int(self._random.integers(2))
        self.player, self.other = self.env.possible_agents[first], self.env.possible_agents[1 - first]
        self.env.reset(seed=seed)
        self.reward, self.episode_return, self.over = 0.0, 0.0, False

    @property
    def awaits_reply(self) -> bool:
        """Whether it is the other player's turn."""
        return not self.over and self.env.agent_selection == self.other

    def move(self, action: Any) -> None:
        """Makes a move for the one whose turn it is."""
        self.env.step(action)
        reward = float(self.env.rewards[self.player])
        self.reward += reward
        self.episode_return += reward
        self.over = any((*self.env.terminations.values(), *self.env.truncations.values()))

    def take_step(self) -> tuple[float, bool, bool]:
        """The player's rewards since the last call, and whether the game was terminated or else truncated."""
        reward, self.reward = self.reward, 0.0
        terminated = any(self.env.terminations.values())
        return reward, self.over and terminated, self.over and not terminated


class TurnsVector(VectorEnv[Any, Any, Any]):
    """N games of two players who take turns; a column is the player of a game. NEXT_STEP autoreset."""

    opponent: Opponent
    """Who moves for the other players; it must be set before the first reset."""

    def __init__(self, name: str, make: Callable[[], Any], count: int) -> None:
        """`count` games (`Match`); raises `ConfigError`."""
        self.games = [Match(name, make) for _ in range(count)]
        env, self.num_envs = self.games[0].env, count
        self.single_observation_space = common_space(name, "observation", env.observation_space, env.possible_agents)
        self.single_action_space = common_space(name, "action", env.action_space, env.possible_agents)
        self.observation_space = batch_space(self.single_observation_space, count)
        self.action_space = batch_space(self.single_action_space, count)
        self.metadata = {**(getattr(env, "metadata", None) or {}), "autoreset_mode": AutoresetMode.NEXT_STEP}

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begins the games with `seed`, `seed + 1`, …; returns the players' observations before their first moves."""
        del options
        self.opponent.reset(None if seed is None else derive_seed(seed, "opponent"), self.num_envs)
        for index in range(self.num_envs):
            self._begin(index, None if seed is None else seed + index)
        self._reply(range(self.num_envs))
        return self._batch(), {}

    def step(self, actions: Any) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """Makes the players' moves and the replies to them; a game that is over begins anew instead."""
        actions = [*iterate(self.action_space, actions)]
        played = [index for index, game in enumerate(self.games) if not game.over]
        begun = [index for index, game in enumerate(self.games) if game.over]
        for index in played:
            self.games[index].move(actions[index])
        for index in begun:
            self._begin(index)
        self._reply(begun)
        values = np.zeros((3, self.num_envs))
        for index in played:
            values[:, index] = self.games[index].take_step()
            if self.games[index].over:
                self.opponent.end(index, self.games[index].episode_return)
        return self._batch(), values[0], values[1] > 0, values[2] > 0, {}

    def render(self) -> tuple[Any, ...]:
        """A picture of each game."""
        return tuple(game.env.render() for game in self.games)

    def close_extras(self, **options: Any) -> None:
        del options
        for game in self.games:
            if hasattr(game.env, "close"):
                game.env.close()

    def _begin(self, index: int, seed: int | None = None) -> None:
        self.games[index].reset(seed)
        self.opponent.begin(index)

    def _reply(self, begun: Collection[int]) -> None:
        """Has the opponent move until no game awaits it; games just `begun` that end before the player moves begin again."""
        while waiting := [index for index, game in enumerate(self.games) if game.awaits_reply]:
            obs = [self.games[index].env.observe(self.games[index].other) for index in waiting]
            for index, action in zip(waiting, self.opponent.act(waiting, obs), strict=True):
                self.games[index].move(action)
                if self.games[index].over and index in begun:
                    self._begin(index)

    def _batch(self) -> Any:
        obs = [game.env.observe(game.player) for game in self.games]
        out: Any = create_empty_array(self.single_observation_space, self.num_envs)
        return concatenate(self.single_observation_space, obs, out)


def takes_turns(env: Any) -> bool:
    """Whether the agents of a game take turns and PettingZoo cannot have them act together."""
    is_parallelizable = (getattr(env, "metadata", None) or {}).get("is_parallelizable", False)
    return (hasattr(env, "agent_iter") or hasattr(env, "agent_selection")) and not is_parallelizable


def player_metrics(spec: EnvironmentSpec, returns: Array) -> Row:
    """Metrics of games with these `returns` of players: a team's mean return, or the shares won, drawn and lost."""
    if spec.agents > 1:
        return {"team_return": spec.agents * float(returns.mean())}
    if not spec.takes_turns:
        return {}
    signs = np.sign(returns)
    return {f"{name}_share": float((signs == sign).mean()) for name, sign in (("win", 1), ("draw", 0), ("loss", -1))}
