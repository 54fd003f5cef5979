"""Small environments whose every number is known beforehand; importing this module registers them."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers.vector import TransformReward

from apex_acer.wrappers import pixels

FLOATS = Box(-1.0, 1.0, (2,), np.float32)


class Countdown(gymnasium.Env[Any, Any]):
    """Episodes of `lengths[seed % len(lengths)]` steps; a step pays `reward`.

    An observation's elements count up from `clock`, the observations given so far, so that no two are alike.
    """

    def __init__(
        self,
        lengths: Sequence[int] = (5,),
        shape: Sequence[int] = (3,),
        dtype: str = "float32",
        num_actions: int = 2,
        first_action: int = 0,
        reward: float = 1.0,
        truncate: bool = False,
    ) -> None:
        self.observation_space = Box(0, 255, tuple(shape), np.dtype(dtype).type)
        self.action_space = Discrete(num_actions, start=first_action)
        self._lengths, self._reward, self._truncate = lengths, reward, truncate
        self._length, self._step, self._clock = lengths[0], 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self._length = self._lengths[seed % len(self._lengths)]
        self._step = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if not self.action_space.contains(action):
            raise ValueError(f"{action} is not in {self.action_space}")
        self._step += 1
        ended = self._step >= self._length
        return self._observe(), self._reward, ended and not self._truncate, ended and self._truncate, {}

    def _observe(self) -> Any:
        self._clock += 1
        return countdown_observation(self._clock, self.observation_space)


def countdown_observation(clock: int, space: Any) -> np.ndarray:
    """What `Countdown` gives as its observation number `clock` (from 1)."""
    numbers = np.arange(int(np.prod(space.shape))).reshape(space.shape)
    return ((numbers + 7 * clock) % 251).astype(space.dtype)


class Clock(gymnasium.Env[Any, Any]):
    """Pays 1 at every one of `length` steps, whatever is done, and then ends; truncated, or else terminated.

    It shows the time from −1 to 1. The final observation, on which nothing is ever trained, looks like the one before.
    """

    def __init__(self, length: int = 20, truncate: bool = False) -> None:
        self.observation_space = Box(-1.0, 1.0, (1,), np.float32)
        self.action_space = Discrete(2)
        self._length, self._truncate, self._step = length, truncate, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._step = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._step += 1
        ended = self._step == self._length
        return self._observe(), 1.0, ended and not self._truncate, ended and self._truncate, {}

    def _observe(self) -> Any:
        return clock_observations(self._length)[min(self._step, self._length - 1)]


def clock_observations(length: int) -> np.ndarray:
    """What `Clock` shows at its steps, `[length, 1]`."""
    return np.linspace(-1, 1, length, dtype=np.float32)[:, None]


class Aim(gymnasium.Env[Any, Any]):
    """Pays −Σ ((action − best) / range)² at each step, so that the best return is 0; any Box of actions, by default of two.

    `obs` has a number in [−1, 1] for each of the action's, and is drawn anew at each step; the best action is the middle of
    the bounds plus a quarter of their range times `obs`. Episodes have `length` steps, and end by turns in the two ways.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(
        self,
        low: Any = (-1.0, 0.0),
        high: Any = (3.0, 10.0),
        dtype: str = "float32",
        length: int = 4,
        render_mode: str | None = None,
    ) -> None:
        self.action_space = self._box = Box(np.array(low, dtype), np.array(high, dtype), dtype=np.dtype(dtype).type)
        self.observation_space = Box(-1.0, 1.0, (max(1, np.size(low)),), np.float32)
        self.render_mode, self._length, self._step, self._episodes = render_mode, length, 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._step = 0
        self._episodes += 1
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if np.asarray(action).dtype != self.action_space.dtype or not self.action_space.contains(np.asarray(action)):
            raise ValueError(f"{action!r} is not in {self.action_space}")
        low, high = (bound.astype(np.float64).ravel() for bound in (self._box.low, self._box.high))
        normalised = (np.asarray(action, np.float64).ravel() - (low + high) / 2) / (high - low) * 2
        reward = float(aim_reward(normalised, self._obs))
        self._step += 1
        ended, by_time = self._step == self._length, self._episodes % 2 == 0
        return self._observe(), reward, ended and not by_time, ended and by_time, {}

    def render(self) -> Any:
        return np.full((32, 48, 3), int(127 * (1 + self._obs[0])), np.uint8)

    def _observe(self) -> Any:
        self._obs = self.np_random.uniform(-1, 1, self.observation_space.shape).astype(np.float32)
        return self._obs


def small_pixels(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """Pictures that are as quick to learn from as vectors."""
    return pixels(env, 12)


def aim_reward(action: Any, obs: Any) -> Any:
    """What `Aim` pays for actions `[..., d]` in [−1, 1] at `obs` `[..., d]`, arrays or tensors."""
    return -(((action - 0.5 * obs) / 2) ** 2).sum(-1)


class Dials(gymnasium.Env[Any, Any]):
    """Dials of `nvec` positions each, to be set at once; pays the share of them that are set to their best position.

    That is the one whose number in `obs` is largest; they are drawn anew at each step. Episodes have `length` steps. If
    `masked`, about half of the positions are forbidden at each step, of which the mask in `info` tells; a forbidden one
    ends the episode and costs 1, or raises if the variable `DIALS_RAISE` is set. A single number is a `Discrete` space,
    and twos alone are a `MultiBinary` if `binary`.
    """

    def __init__(
        self, nvec: Any = (3, 2, 4), start: int = 0, length: int = 4, masked: bool = False, binary: bool = False
    ) -> None:
        self._sizes, self._start, self._length, self._masked = np.atleast_1d(nvec).ravel(), start, length, masked
        self.action_space = (
            MultiBinary(np.shape(nvec))
            if binary
            else MultiDiscrete(nvec, start=np.full(np.shape(nvec), start))
            if np.ndim(nvec)
            else Discrete(nvec, start=start)
        )
        self.observation_space = Box(0.0, 1.0, (int(self._sizes.sum()),), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._step = 0
        return self._observe()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if not self.action_space.contains(action):
            raise ValueError(f"{action!r} is not in {self.action_space}")
        chosen = np.ravel(action).astype(int) - self._start
        splits = np.cumsum(self._sizes)[:-1]
        rated = np.split(np.where(self._legal, self._obs, -1.0), splits)
        self._step += 1
        if not all(legal[choice] for legal, choice in zip(np.split(self._legal, splits), chosen, strict=True)):
            if os.environ.get("DIALS_RAISE"):
                raise ValueError(f"{action!r} is forbidden by {self._legal}")
            obs, info = self._observe()
            return obs, -1.0, True, False, info
        reward = float(np.mean([part.argmax() == choice for part, choice in zip(rated, chosen, strict=True)]))
        obs, info = self._observe()
        return obs, reward, False, self._step == self._length, info

    def _observe(self) -> tuple[Any, dict[str, Any]]:
        self._obs = self.np_random.uniform(0, 1, self.observation_space.shape).astype(np.float32)
        self._legal = np.ones(len(self._obs), bool)
        if not self._masked:
            return self._obs, {}
        for part in np.split(self._legal, np.cumsum(self._sizes)[:-1]):  # views
            part[:] = self.np_random.random(len(part)) < 0.5
            part[self.np_random.integers(len(part))] = True
        return self._obs, {"action_mask": self._legal.astype(np.int8)}


class Throw(gymnasium.Env[Any, Any]):
    """A lane of three, a hand and a strength, all seen in the observation; `of` says which of them an action has.

    Pays 1 for the lane, 1 for the hand, and 1 less the square of the miss. If `masked`, another lane is closed, and raises:
    the mask in `info` says so. Episodes have four steps.
    """

    def __init__(self, of: Any = ("lane", "hand", "strength"), masked: bool = False) -> None:
        throw = {"strength": Box(0.0, 10.0, (1, 2), np.float64), "hand": MultiBinary(1)}
        inner = [space for name, space in throw.items() if name in of]
        lane = {"lane": Discrete(3, start=1)} if "lane" in of else {}
        self.action_space = Dict({**lane, **({"throw": Tuple(inner)} if inner else {})})
        self.observation_space, self._of, self._masked = Box(-1.0, 1.0, (6,), np.float32), of, masked

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._step = 0
        return self._observe()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if not self.action_space.contains(action):
            raise ValueError(f"{action!r} is not in {self.action_space}")
        reward, (*throw,) = 0.0, action.get("throw", ())
        if "strength" in self._of:
            reward += 1.0 - float(np.square(throw.pop(0) / 5 - 1 - 0.5 * self._obs[4:]).mean())
        if "hand" in self._of:
            reward += float(throw[0][0] == (self._obs[3] > 0))
        if "lane" in self._of:
            if self._masked and action["lane"] == self._closed + 1:
                raise ValueError("the lane is closed")
            reward += float(action["lane"] == self._obs[:3].argmax() + 1)
        self._step += 1
        obs, info = self._observe()
        return obs, reward, False, self._step == 4, info

    def _observe(self) -> tuple[Any, dict[str, Any]]:
        self._obs = self.np_random.uniform(-1, 1, 6).astype(np.float32)
        self._closed = self._obs[:3].argmin()
        mask = [*(np.arange(3) != self._closed), *([True, True] * ("hand" in self._of))]
        return self._obs, {"action_mask": np.array(mask)} if self._masked else {}


class Spaces(gymnasium.Env[Any, Any]):
    """Has the spaces it is given and never ends."""

    def __init__(self, observation: Space[Any] = FLOATS, action: Space[Any] | None = None) -> None:
        self.observation_space = observation
        self.action_space = Discrete(2) if action is None else action

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.observation_space.sample(), 0.0, False, False, {}


class Broken(Spaces):
    """Raises when it is made, on two lines."""

    def __init__(self) -> None:
        raise RuntimeError("the emulator\nis missing")


class Eager(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """A vector class of `Clock`'s that begins the next episode on the step that ends one, and does not say so."""

    metadata = {}  # noqa: RUF012

    def __init__(self, num_envs: int, length: int = 3) -> None:
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = Box(-1.0, 1.0, (1,), np.float32), Discrete(2)
        self.observation_space = Box(-1.0, 1.0, (num_envs, 1), np.float32)
        self.action_space = MultiDiscrete([2] * num_envs)
        self._length, self._steps = length, 0

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._steps = 0
        return np.zeros((self.num_envs, 1), np.float32), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self._steps += 1
        ended, num = np.full(self.num_envs, self._steps % self._length == 0), self.num_envs
        return np.zeros((num, 1), np.float32), np.ones(num), ended, np.zeros(num, bool), {}


def clocks(num_envs: int, mode: str = "NEXT_STEP", least: int = 1, truncate: bool = False) -> SyncVectorEnv:
    """A vector of at least so many clocks, of 3 steps, 4, …; their class is nowhere registered."""
    made = [functools.partial(Clock, 3 + index, truncate) for index in range(max(num_envs, least))]
    return SyncVectorEnv(made, autoreset_mode=AutoresetMode[mode])


def doubled(vector: VectorEnv[Any, Any, Any]) -> TransformReward:
    return TransformReward(vector, lambda reward: 2 * reward)


class Spoilt(Clock):
    """Gives a `field` that is not finite at step `at` of an episode; 0 is the reset."""

    def __init__(self, field: str = "observation", at: int = 2, value: float = float("nan")) -> None:
        super().__init__()
        self._field, self._at, self._value = field, at, value

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, *rest = super().step(action)
        return (obs, self._value if (self._field, self._step) == ("reward", self._at) else reward, *rest)

    def _observe(self) -> Any:
        obs = super()._observe()
        return np.full_like(obs, self._value) if (self._field, self._step) == ("observation", self._at) else obs


class Told(Clock):
    """Gives the `infos` one after another, the first with a reset; lists in them are arrays. A seed of 1 skips one."""

    def __init__(self, infos: Any, length: int = 20) -> None:
        super().__init__(length)
        self._infos, self._skipped = infos, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._skipped = seed or 0
        return super().reset(seed=seed)[0], self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        *rest, _ = super().step(action)
        return (*rest, self._info())

    def _info(self) -> dict[str, Any]:
        info = self._infos[(self._skipped + self._step) % len(self._infos)]
        return {name: np.array(value) if isinstance(value, list) else value for name, value in info.items()}


class Rooms(gymnasium.Env[Any, Any]):
    """Pays 1 for the one of 8 actions whose binary digits the parts of the observation show, one each; 8 steps.

    They are a camera, of which the left or the right half is bright, a vector whose sum is above 0 or below, and a room.
    """

    def __init__(self, spoilt: str = "", kind: str = "Dict", size: int = 42) -> None:
        """The part `spoilt` is not finite from the third step on."""
        camera = Box(0, 255, (size, size, 1), np.uint8)
        parts = {"camera": camera, "room": Discrete(2, start=3), "arm": Dict({"joints": Box(-9, 9, (5,), np.float32)})}
        self.observation_space = Dict(parts) if kind == "Dict" else Tuple(tuple(parts.values()))
        self.action_space = Discrete(8)
        self._spoilt, self._kind, self._size = spoilt, kind, size

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._step = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = float(action == self._digits @ [4, 2, 1])
        self._step += 1
        return self._observe(), reward, self._step == 8, False, {}

    def _observe(self) -> Any:
        self._digits = self.np_random.integers(2, size=3)
        right, above, room = self._digits
        camera = self.np_random.integers(0, 100, (self._size, self._size, 1), np.uint8)
        half = self._size // 2
        camera[:, half * right : half * (right + 1)] += 150
        joints = self.np_random.normal(2 * above - 1, 0.3, 5).astype(np.float32)
        if self._spoilt == "joints" and self._step > 2:
            joints[1] = np.nan
        parts = {"camera": camera, "room": np.int64(3 + room), "arm": {"joints": joints}}
        return parts if self._kind == "Dict" else tuple(parts.values())


def scaled(environment: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    return gymnasium.wrappers.TransformReward(environment, lambda reward: 3 * float(reward))


def shifted(environment: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    return gymnasium.wrappers.TransformReward(environment, lambda reward: float(reward) + 1)


def short(environment: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """Truncates episodes at 30 steps."""
    return gymnasium.wrappers.TimeLimit(environment, 30)


def box_with_nan() -> Box:
    """A box as an environment might spoil it: gymnasium itself refuses such bounds."""
    space = Box(-1.0, 1.0, (1,))
    space.low[:], space.low_repr = np.nan, "nan"
    return space


def register(name: str, entry_point: Any, vector: Any = None, *, checked: bool = False, **kwargs: Any) -> None:
    """Makes an environment known, which gymnasium checks only if it is to be `checked`; `vector` makes vectors of it."""
    gymnasium.register(name, entry_point, vector_entry_point=vector, kwargs=kwargs, disable_env_checker=not checked)


register("Countdown-v0", Countdown)
register("Clock-v0", Clock)
register("Eager-v0", Clock, Eager, length=3)
register("EagerAlone-v0", None, Eager)
register("Aim-v0", Aim)
register("Dials-v0", Dials)
register("Throw-v0", Throw)
register("Spoilt-v0", Spoilt)
register("Told-v0", Told)
register("Rooms-v0", Rooms)
register("SmallRooms-v0", Rooms, size=10)
register("Broken-v0", Broken)
register("EmptyObservation-v0", Spaces, observation=Box(-1.0, 1.0, (0,)))
register("NestedObservation-v0", Spaces, observation=Dict({"x": FLOATS, "y": Tuple([spaces.Sequence(Discrete(2))])}))
register("NoObservation-v0", Spaces, observation=Dict({}))
register("DottedObservation-v0", Spaces, observation=Dict({"a.b": FLOATS}))
register("NumberedObservation-v0", Spaces, observation=Dict({1: FLOATS, 2: FLOATS}))  # type: ignore[dict-item]
register("MaskedWrongly-v0", Spaces, observation=Dict({"observation": FLOATS, "action_mask": MultiBinary(3)}))
register("SequenceObservation-v0", Spaces, observation=spaces.Sequence(Discrete(2)))
register("ManyRooms-v0", Spaces, observation=Discrete(20_000))
register("BoxAction-v0", Spaces, action=FLOATS)
register("WideBoxAction-v0", Spaces, action=Box(-1.0, 1.0, (4,)))
register("HalfBoundedAction-v0", Spaces, action=Box(0.0, np.inf, (2,)))
register("NoNumberAction-v0", Spaces, action=box_with_nan())
register("WholeNumberAction-v0", Spaces, action=Box(0, 9, (2,), np.int64))
register("EmptyAction-v0", Spaces, action=Box(-1.0, 1.0, (0,)))
register("TooManyActions-v0", Spaces, action=MultiBinary(63))
register("NestedAction-v0", Spaces, action=Dict({"x": FLOATS, "y": Tuple([Discrete(2), Box(0, 9, (2,), np.int64)])}))
register("NoAction-v0", Spaces, action=Tuple([]))
register("DottedAction-v0", Spaces, action=Dict({"a.b": Discrete(2)}))
register("NumberedAction-v0", Spaces, action=Dict({"0": Discrete(2)}))
register("TooManyTogether-v0", Spaces, action=Tuple([MultiBinary(53), Discrete(2)]))


class Party:
    """A game with PettingZoo's parallel API, whose agents come and go: agent i plays the steps of `plays[i]`.

    A step pays agent i i + 1. An observation is the agent's number, the step and the number of the game, which begins with
    the seed; a mask forbids the first action.
    """

    def __init__(
        self,
        plays: Sequence[Sequence[int]] = ((0, 3), (0, 1), (2, 5)),
        truncate: bool = False,
        masks: bool = False,
        lists_all: bool = False,
        one_differs: bool = False,
        render_mode: str | None = None,
    ) -> None:
        self.possible_agents = [f"guest_{index}" for index in range(len(plays))]
        self.agents: list[str] = []
        self._plays, self._truncate, self._masks, self._one_differs = plays, truncate, masks, one_differs
        self._lists_all = lists_all  # also those who have ended, which the API forbids
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": 5}
        self._step, self._game = 0, 0

    def observation_space(self, agent: str) -> Space[Any]:
        obs = Box(0, np.inf, (4 if self._one_differs and agent == self.possible_agents[-1] else 3,), np.float32)
        return Dict({"observation": obs, "action_mask": MultiBinary(2)}) if self._masks else obs

    def action_space(self, agent: str) -> Space[Any]:
        return Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self._step, self._game = 0, self._game + 1 if seed is None else 10 * (seed % 10) + 1
        self.agents = self._present()
        return {agent: self._observe(agent) for agent in self.agents}, {}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        assert set(actions) == set(self.agents)
        assert not (self._masks and 0 in actions.values()), "a forbidden action"
        self._step += 1
        acted, ends = self.agents, {agent: self._bounds(agent)[1] <= self._step for agent in self.agents}
        self.agents = acted if self._lists_all else [agent for agent in self._present() if not ends.get(agent)]
        seen = {agent: self._observe(agent) for agent in {*acted, *self.agents}}
        rewards = {agent: self.possible_agents.index(agent) + 1.0 for agent in acted}
        no = dict.fromkeys(acted, False)
        return seen, rewards, no if self._truncate else ends, ends if self._truncate else no, {}

    def render(self) -> np.ndarray:
        return np.full((16, 16, 3), 50 * self._step % 256, np.uint8)

    def close(self) -> None:
        pass

    def _bounds(self, agent: str) -> Sequence[int]:
        return self._plays[self.possible_agents.index(agent)]

    def _present(self) -> list[str]:
        return [a for a in self.possible_agents if self._bounds(a)[0] <= self._step < self._bounds(a)[1]]

    def _observe(self, agent: str) -> Any:
        obs = np.array([self.possible_agents.index(agent), self._step, self._game], np.float32)
        return {"observation": obs, "action_mask": np.array([0, 1], np.int8)} if self._masks else obs


class Race:
    """A game with PettingZoo's AEC API: in turn, players add 1 or 2 to a total; who reaches `target` gets 1, the other −1.

    After `limit` moves it is truncated. An observation is the agent's number, the total and the number of the game, which
    begins with the seed.
    """

    def __init__(
        self,
        target: int = 4,
        limit: int = 99,
        pays_first: float = 0.0,
        players: int = 2,
        render_mode: str | None = None,
    ) -> None:
        self.possible_agents = [f"runner_{index}" for index in range(players)]
        self.agent_selection = self.possible_agents[0]
        self.metadata = {"render_fps": 5}
        self._target, self._limit, self._pays_first, self._game = target, limit, pays_first, 0

    def observation_space(self, agent: str) -> Space[Any]:
        return Box(0, np.inf, (3,), np.float32)

    def action_space(self, agent: str) -> Space[Any]:
        return Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self._game = self._game + 1 if seed is None else 10 * (seed % 10) + 1
        self._total = self._moves = 0
        self.agent_selection = self.possible_agents[0]
        self.terminations = dict.fromkeys(self.possible_agents, False)
        self.truncations = dict.fromkeys(self.possible_agents, False)

    def observe(self, agent: str) -> Any:
        return np.array([self.possible_agents.index(agent), self._total, self._game], np.float32)

    def step(self, action: Any) -> None:
        mover = self.possible_agents.index(self.agent_selection)
        other = self.possible_agents[1 - mover]
        self._total, self._moves = self._total + 1 + int(action), self._moves + 1
        reward = self._pays_first if self._moves == 1 else 0.0
        if self._total >= self._target:
            reward = 1.0
            self.terminations = dict.fromkeys(self.possible_agents, True)
        elif self._moves >= self._limit:
            self.truncations = dict.fromkeys(self.possible_agents, True)
        self.rewards = {self.agent_selection: reward, other: -reward}
        self.agent_selection = other

    def render(self) -> np.ndarray:
        return np.full((16, 16, 3), 50 * self._total % 256, np.uint8)


def add_one(obs: np.ndarray, rng: np.random.Generator) -> int:
    """A slow runner."""
    return 0


def add_two(obs: np.ndarray, rng: np.random.Generator) -> int:
    """A fast runner."""
    return 1
