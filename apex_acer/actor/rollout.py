"""The loop of environments and policy, which actors, the evaluator and `evaluate` share."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from apex_acer.actor.overlap import Overlap
from apex_acer.actor.policy import Policy
from apex_acer.algorithms.algorithm import Action
from apex_acer.config import EvaluationConfig
from apex_acer.environments.check import require_unchanged
from apex_acer.environments.vector import Environments, Step
from apex_acer.protocol.messages import Link, Reply
from apex_acer.protocol.metrics import Timers
from apex_acer.protocol.planes import random_action
from apex_acer.protocol.specification import Array
from apex_acer.protocol.unroll import Unroll

log = logging.getLogger(__name__)

NOTICE_S = 60.0  # without the end of an episode, before the user is told what is waited for


class Episode(NamedTuple):
    """A whole game from reset to reset; lost lives do not end it."""

    column: int
    """Index of the environment."""
    episode_return: float
    """Sum of the unclipped rewards."""
    length: int
    """Environment steps, autoreset steps not counted."""


class Rollout:
    """Steps N environments with a policy, and gives unrolls and the episodes that ended."""

    def __init__(
        self,
        environments: Environments,
        policy: Policy,
        *,
        seed: int,
        greedy: bool = False,
        actor: int | None = None,
        stall_steps: int = 0,
        timers: Timers | None = None,
        heartbeat: Callable[[], None] = lambda: None,
    ) -> None:
        """With an `actor`'s index it explores as that actor does, and its unrolls are complete (`Algorithm.complete`).

        `heartbeat` is called after each step of the environments.

        Raises `ConfigError` if the policy was trained in environments of another specification.
        """
        require_unchanged(environments.id, environments.spec, policy.spec)
        self._environments, self._policy = environments, policy
        self._greedy, self._stall_steps = greedy, stall_steps
        self.exploration = policy.exploration(environments.num, actor)
        """How much each environment explores, `[N]`."""
        self.slot = 0
        """The environment of an unroll's first column."""
        self.unlearned_steps = 0
        """Environment steps that the newest unroll took beside its own, after the end of an episode; no autoreset steps."""
        self._num_steps = 0  # of the newest unroll, its own or not
        self._completes = actor is not None
        self._whole_episodes = actor is not None and policy.sampling.whole_episodes
        self._overlap = Overlap(policy.sampling.burn_in if self._completes else 0)
        self._ahead: Action | None = None  # chosen for the observation after the last unroll
        self._timers, self._heartbeat = timers or Timers(), heartbeat
        self._generator = torch.Generator(policy.device).manual_seed(seed)
        self._random = np.random.default_rng(seed)
        self._episodes: list[Episode] = []

        self._begin(seed)

    def _begin(self, seed: int) -> None:
        """Resets all environments."""
        spec, num = self._environments.spec, self._environments.num
        self._obs = np.zeros((spec.stack, num, *spec.plane_shape), spec.dtype)  # the newest S planes
        self._obs[-1] = self._environments.reset(seed)
        self._episode_step = np.zeros((spec.stack, num), np.int32)
        self._state = self._policy.initial_state(num)
        self._return = np.zeros(num, np.float64)
        self._length = np.zeros(num, np.int64)
        self._since_reward = np.zeros(num, np.int64)
        self._counts = np.ones(num, bool)  # false once an environment has played its only episode

    @property
    def version(self) -> int:
        """Version of the weights with which the newest unroll began."""
        return self._policy.version

    def unroll(self, length: int) -> Unroll:
        """The next `length` steps (k) of all environments; of whole episodes, steps after the end of each are masked.

        If unrolls of the algorithm overlap, those of an actor begin with the last steps of the unroll before (`Overlap`).
        """
        self._num_steps = 0
        if self._whole_episodes:
            self._begin(int(self._random.integers(2**31)))
        (stack, num), spec = self._obs.shape[:2], self._policy.spec.actions
        obs = np.zeros((stack + length, *self._obs.shape[1:]), self._obs.dtype)
        episode_step = np.zeros((stack + length, num), np.int32)
        obs[:stack], episode_step[:stack] = self._obs, self._episode_step
        action = np.zeros((length, num, *spec.shape), spec.dtype)
        reward = np.zeros((length, num), np.float32)
        terminated, truncated, mask = np.zeros((3, length, num), bool)
        extras: dict[str, list[Array]] = {}
        state = late_state = self._remembered()
        for t in range(length):
            if t == length - self._overlap.num:
                late_state = self._remembered()
            with self._timers.phase("policy"):
                chosen = self._ahead or self._choose(obs[t : t + stack], episode_step[t : t + stack])
                action[t] = self._take(chosen, extras, obs[t + stack - 1])
            with self._timers.phase("environment"):
                step = self._environments.step(action[t])
            self._heartbeat()
            obs[t + stack] = step.obs
            episode_step[t + stack] = np.where(step.reset, 0, episode_step[t + stack - 1] + 1)
            reward[t], terminated[t], truncated[t] = step.reward, step.terminated, step.truncated
            mask[t] = self._count(step)
            if not self._counts.any():
                break
        if self._whole_episodes and ((terminated[-1] | truncated[-1]) & self._counts).any():
            with self._timers.phase("environment"):  # only a reset tells the end of a game from a lost life
                self._count(self._environments.step(action[-1]))
        self._obs, self._episode_step = obs[length:], episode_step[length:]
        mu = {name: _padded(parts, length) for name, parts in extras.items()}
        unroll = Unroll(obs, episode_step, action, reward, terminated, truncated, mask, mu, state)
        self.unlearned_steps = self._num_steps - unroll.num_steps
        return self._complete(self._overlap.extend(unroll, late_state)) if self._completes else unroll

    def take_episodes(self) -> list[Episode]:
        """The episodes that ended since the last call."""
        episodes, self._episodes = self._episodes, []
        return episodes

    def receive(self, link: Link, wait_s: float, length: int) -> Reply | None:
        """The learner's next answer; waits up to `wait_s` seconds for it, in which no environment is stepped."""
        del length
        with self._timers.phase("waiting"):
            return link.receive(wait_s)

    def _remembered(self) -> dict[str, Array]:
        return {name: value.cpu().numpy() for name, value in self._state.items()}

    def _complete(self, unroll: Unroll) -> Unroll:
        if not self._policy.looks_ahead:
            return self._policy.complete(unroll, {})
        with self._timers.phase("policy"):
            self._ahead = self._choose(self._obs, self._episode_step)
        return self._policy.complete(unroll, _arrays(self._ahead))

    def _choose(self, planes: Array, episode_step: Array) -> Action:
        return self._policy.step(
            planes,
            episode_step,
            self._state,
            greedy=self._greedy,
            exploration=self.exploration,
            generator=self._generator,
        )

    def _take(self, chosen: Action, extras: dict[str, list[Array]], planes: Array) -> Array:
        self._state, self._ahead = chosen.state, None
        for name, part in _arrays(chosen).items():
            extras.setdefault(name, []).append(part)
        action: Array = chosen.action.numpy().copy()
        if self._stall_steps:
            stalled = self._since_reward >= self._stall_steps
            action[stalled] = random_action(self._policy.spec, self._random, planes)[stalled]
            self._since_reward[stalled] = 0
        return action

    def _count(self, step: Step) -> Array:
        """Counts returns, and the episodes that ended; returns which environments made a step `[N]` that is no dummy."""
        reset, reward = step.reset, step.reward
        for column in np.flatnonzero(reset & self._counts):
            self._episodes.append(Episode(int(column), float(self._return[column]), int(self._length[column])))
        if self._whole_episodes:
            self._counts = self._counts & ~reset
        self._return = np.where(reset, 0.0, self._return + reward)
        self._length = np.where(reset, 0, self._length + 1)
        self._since_reward = np.where(reset | (reward != 0), 0, self._since_reward + 1)
        self._num_steps += int(np.count_nonzero(~reset))
        return ~reset & self._counts


def _padded(parts: list[Array], length: int) -> Array:
    """The `parts` of steps as `[length, …]`, with zeros after the last one."""
    padded = np.zeros((length, *parts[0].shape), parts[0].dtype)
    padded[: len(parts)] = parts
    return padded


def _arrays(chosen: Action) -> dict[str, Array]:
    return {name: part.numpy() for name, part in chosen.extras.items()}


class Patience:
    """Says once that no episode ends, for those who wait until some have ended."""

    def __init__(self, name: str) -> None:
        """`name` is the environment's."""
        self._name, self._since, self._steps, self._has_said = name, time.monotonic(), 0, False

    def note(self, steps: int, episodes: list[Episode]) -> None:
        """Notes that each environment has made `steps` more, and which `episodes` ended on them."""
        if episodes:
            self._since, self._steps = time.monotonic(), 0
        self._steps += steps
        waited_s = time.monotonic() - self._since
        if waited_s >= NOTICE_S and not self._has_said:
            self._has_said = True
            silent = f"has ended no episode for {waited_s:.0f} s and {self._steps:,} steps"
            how = "if it never does, register it with max_episode_steps"
            log.warning("environment.id: %r %s; %s", self._name, silent, how)


def evaluate(
    environments: Environments,
    policy: Policy,
    settings: EvaluationConfig,
    seed: int,
    heartbeat: Callable[[], None] = lambda: None,
) -> list[Episode]:
    """Plays `settings.episodes` whole games; `heartbeat` is called after each step.

    Each environment has a fixed share of the episodes: taking the first ones to finish would favour short ones.
    """
    slots = environments.num
    share = [settings.episodes // slots + (slot < settings.episodes % slots) for slot in range(slots)]
    rollout = Rollout(
        environments,
        policy,
        seed=seed,
        greedy=settings.greedy,
        stall_steps=settings.stall_steps,
        heartbeat=heartbeat,
    )
    episodes: list[Episode] = []
    patience = Patience(environments.id)
    while any(share):
        rollout.unroll(8)
        ended = rollout.take_episodes()
        patience.note(8, ended)
        for episode in ended:
            if share[episode.column]:
                share[episode.column] -= 1
                episodes.append(episode)
    return episodes
