"""Vector environments: gymnasium's, and ALE's own for Atari. They run with NEXT_STEP autoreset, some with SAME_STEP.

On an autoreset step an environment was reset: the action is ignored, the reward is 0, and the observation is the first of
the next episode. In Atari training a lost life sets `terminated`, but no autoreset step follows. With SAME_STEP none ever
does: the observation after an episode's last step is the first of the next one. In Atari the steps after a lost life are
the environments' own (`LIFE_START`).
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple, cast

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from apex_acer.config import EnvironmentConfig
from apex_acer.environments.agents import WAITS, AgentsVector
from apex_acer.environments.registry import autoreset_mode, make_atari_vector, make_vector
from apex_acer.environments.spaces import specify
from apex_acer.environments.turns import MoveOpponent, Opponent, TurnsVector, random_move
from apex_acer.protocol.actions import has_choice
from apex_acer.protocol.messages import Row
from apex_acer.protocol.planes import is_legal, to_planes, unpack, with_mask
from apex_acer.protocol.specification import MASK, Array, EnvironmentSpec, unusable

LIFE_START = (0, 1, 2)
"""Actions played after a lost life where FIRE is the second one, as in OpenAI baselines: NOOP, FIRE and one more."""


class Step(NamedTuple):
    """One step of N environments."""

    obs: Array  # [N, *plane], observed after the step
    reward: Array  # [N] float32
    terminated: Array  # [N] bool
    truncated: Array  # [N] bool
    reset: Array  # [N] bool: whether this was an autoreset step, or a step that an agent waits
    begins: Array  # [N] bool: whether an episode begins at `obs`
    forced: Array  # [N] bool: whether the action was one of `LIFE_START`; a life begins at `obs` after the last of them


class Environments:
    """N copies of a gymnasium environment, with observations as planes and actions as a policy gives them."""

    def __init__(
        self,
        vector: VectorEnv[Any, Any, Any],
        config: EnvironmentConfig,
        action_repeat: int = 1,
        *,
        masks: bool | None = None,
    ) -> None:
        """`masks`: whether masks in `info` are used; None: a mask in `info` is an error."""
        self._vector, self._masks_in_info = vector, masks
        self._same_step = autoreset_mode(vector) == AutoresetMode.SAME_STEP
        self.info_has_masks = False
        """Whether any `info` had an action mask, used or not."""
        self._ended = np.zeros(vector.num_envs, bool)  # whose next action is ignored
        self._steps = 0
        self.id = config.id
        observations = vector.single_observation_space
        self.spec = specify(config, vector.single_action_space, observations, action_repeat, masks_in_info=bool(masks))
        self.num = vector.num_envs
        if isinstance(vector, AgentsVector):
            self.spec = dataclasses.replace(self.spec, agents=vector.num_agents)
        if isinstance(vector, TurnsVector):
            self.spec = dataclasses.replace(self.spec, takes_turns=True)
            self.face(MoveOpponent(random_move(self.spec.actions, self.spec.has_masks)))

    def reset(self, seed: int) -> Array:
        """Seeds the environments with `seed`, `seed + 1`, … and starts new episodes; returns observations `[N, *plane]`.

        Raises FloatingPointError if a number is not usable (`unusable`), and ValueError if no action is legal.
        """
        obs, info = self._vector.reset(seed=seed)
        self._ended[:] = info.get(WAITS, False)
        self._resets(info)
        self._steps = 0
        return self._planes(obs, info)

    def step(self, action: Array) -> Step:
        """Steps all environments with a policy's `action` `[N, *actions.shape]`.

        Raises FloatingPointError if a number is not usable (`unusable`), and ValueError if no action is legal.
        """
        obs, reward, terminated, truncated, info = self._vector.step(self.spec.actions.to_environment(action))
        reset, over = self._resets(info), terminated | truncated
        self._ended = np.zeros(self.num, bool) if self._same_step else over | info.get(WAITS, False)
        self._steps += 1
        return Step(
            self._planes(obs, info),
            self._usable("the reward", np.asarray(reward, np.float64)).astype(np.float32),
            terminated,
            truncated,
            reset,
            over if self._same_step else reset,
            np.zeros(self.num, bool),
        )

    def face(self, opponent: Opponent) -> None:
        """Has `opponent` move for the other players from the next reset on; until then it is one that moves at random."""
        assert isinstance(self._vector, TurnsVector), "a game of two players who take turns"
        self._vector.opponent = opponent

    def close(self) -> None:
        self._vector.close()

    def metrics(self) -> Row:
        """Metrics of an actor besides its episodes: the opponent's, if two players take turns."""
        return self._vector.opponent.metrics() if isinstance(self._vector, TurnsVector) else {}

    def _planes(self, obs: Any, info: dict[str, Any]) -> Array:
        if MASK in info and self.spec.actions.branches:
            self._note_mask()
        if self.spec.has_masks:
            obs = with_mask(obs, self._mask(info if self._masks_in_info else obs))
        planes = to_planes(self.spec, obs, self.num)
        for name, part in unpack(self.spec, planes, self.spec.float_parts).items():
            self._usable(f"{name} in an observation with", part)
        return self._usable("an observation with", planes)

    def _note_mask(self) -> None:
        self.info_has_masks = True
        if self._masks_in_info is None:
            has = f"gives info[{MASK!r}], which it did not when it was checked"
            raise ValueError(f"environment.id: {self.id!r} {has}; give --environment.action-masks True")

    def _mask(self, source: Any) -> Array:
        """The mask of legal choices `[N, choices]` in `info` or observations; all True without one, or after an episode."""
        mask = np.ones((self.num, self.spec.num_choices), bool)
        rows = source.get(MASK, ())
        for index in np.flatnonzero(source.get(f"_{MASK}", np.ones(len(rows)))).tolist():
            mask[index] = self._row(rows[index], index)
        none = ~has_choice(mask, self.spec.actions.branches)
        stuck = np.flatnonzero(none & ~self._ended).tolist()
        if stuck:
            where = self._place(stuck[0])
            raise ValueError(f"environment.id: {self.id!r} has an action mask with no legal action: {where}")
        return mask | none[:, None]

    def _row(self, mask: Any, index: int) -> Array:
        """Environment `index`'s mask as `[choices]` bool; for several branches it may be a tuple of masks."""
        row = np.concatenate([np.ravel(part) for part in mask]) if isinstance(mask, tuple) else np.ravel(mask)
        if row.shape != (self.spec.num_choices,):
            has = f"has an action mask of {row.size} numbers"
            raise ValueError(f"environment.id: {self.id!r} {has}, for {self.spec.num_choices} choices")
        try:
            return is_legal(row)
        except ValueError as error:
            raise ValueError(f"environment.id: {self.id!r} has {error}: {self._place(index)}") from None

    def _usable(self, what: str, values: Array) -> Array:
        if values.dtype.kind != "f" or not (problem := unusable(values)):
            return values
        index = next(index for index, value in enumerate(values) if unusable(value))
        raise FloatingPointError(f"environment.id: {self.id!r} has {what} {problem}: {self._place(index)}")

    def _place(self, index: int) -> str:
        return f"environment {index} of {self.num}, {self._steps} steps after the first reset"

    def _resets(self, info: dict[str, Any]) -> Array:
        del info
        return self._ended


class AtariEnvironments(Environments):
    """ALE's vector environment without its frame stack; `networks/frames.py` builds stacks."""

    def __init__(self, vector: VectorEnv[Any, Any, Any], config: EnvironmentConfig, action_repeat: int) -> None:
        self._frames_before_episode: Array | None = None
        has_fire = cast("Any", vector).ale.get_action_set()[1].name == "FIRE"
        self._starts_lives = has_fire and config.atari.fire_reset
        super().__init__(vector, config, action_repeat, masks=config.action_masks)

    def reset(self, seed: int) -> Array:
        self._lives = self._to_play = np.zeros(self.num, np.int64)  # actions of `LIFE_START` still to be played
        return super().reset(seed)

    def step(self, action: Array) -> Step:
        forced = self._to_play > 0
        step = super().step(self.played(action))
        return step._replace(forced=forced & ~step.reset)

    def played(self, action: Array) -> Array:
        """The actions that the games get for a policy's `action` `[N]`: after a lost life those of `LIFE_START`."""
        return np.where(self._to_play > 0, np.take(LIFE_START, -self._to_play), action)

    def _resets(self, info: dict[str, Any]) -> Array:
        # `terminated` may be a lost life; but only a reset changes the number of frames played before the episode
        frames = info["frame_number"] - info["episode_frame_number"]
        before, self._frames_before_episode = self._frames_before_episode, frames
        reset = self._ended if before is None else self._ended & (frames != before)
        self._note_lives(info["lives"], reset)
        return reset

    def _note_lives(self, lives: Array, reset: Array) -> None:
        is_lost = (lives > 0) & (lives < self._lives) & self._starts_lives
        self._lives = lives
        self._to_play = np.where(is_lost, len(LIFE_START), np.maximum(self._to_play - 1, 0)) * ~reset


def make_environments(
    config: EnvironmentConfig, count: int, *, training: bool, threads: int = 1, found: EnvironmentSpec | None = None
) -> Environments:
    """`count` environments; raises `ConfigError` if they cannot be made or are not supported.

    Args:
        config: the environment.
        count: number of copies, or of agents: games have as many together, or a few more.
        training: whether a lost life ends an episode and games are shorter, in Atari.
        threads: number of threads of Atari's emulators.
        found: specification from the check of the environment, if there was one.
    """
    config = config.local
    if config.is_atari:
        vector = make_atari_vector(config, count, training=training, num_threads=threads)
        return AtariEnvironments(vector, config, config.atari.frame_skip)
    return Environments(make_vector(config, count), config, masks=uses_masks(config, found))


def uses_masks(config: EnvironmentConfig, found: EnvironmentSpec | None) -> bool | None:
    """Whether masks in `info` are used: if the check has `found` some, otherwise as `environment.action_masks` says."""
    return True if found is not None and found.masks_in_info else config.action_masks


def environment_spec(config: EnvironmentConfig) -> EnvironmentSpec:
    """The specification of an environment; raises `ConfigError` if it cannot be made or is not supported."""
    environments = make_environments(config, 1, training=True)
    environments.close()
    return environments.spec
