"""The loop of environments and policy, shared by actors, the evaluator, `apex-acer evaluate` and `apex-acer play`."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch

from apex_acer.actor.overlap import overlap
from apex_acer.actor.policy import Policy
from apex_acer.algorithms.algorithm import Action
from apex_acer.config import EvaluationConfig
from apex_acer.environments.check import require_unchanged
from apex_acer.environments.vector import Environments, Step
from apex_acer.protocol.actions import Actions
from apex_acer.protocol.metrics import Timers
from apex_acer.protocol.specification import Array
from apex_acer.protocol.unroll import Unroll

log = logging.getLogger(__name__)

NOTICE_S = 60.0  # without the end of an episode, before a warning


class Episode(NamedTuple):
    """A whole game from reset to reset; a lost life does not end it."""

    column: int
    """Index of the environment."""
    episode_return: float
    """Sum of the unclipped rewards."""
    length: int
    """Environment steps, autoreset steps not counted."""


class Rollout:
    """Steps N environments with a policy; returns unrolls and the episodes that ended."""

    def __init__(
        self,
        environments: Environments,
        policy: Policy,
        *,
        seed: int,
        greedy: bool = False,
        actor: int | None = None,
        timers: Timers | None = None,
        heartbeat: Callable[[], None] = lambda: None,
    ) -> None:
        """Starts the environments; raises `ConfigError` if their specification is not the policy's.

        With an `actor`'s index it explores as that actor does, and its unrolls are ready to send (`Agent.complete`).
        `heartbeat` is called after each step of the environments.
        """
        require_unchanged(environments.id, environments.spec, policy.spec)
        self._environments, self._policy = environments, policy
        self._actor = actor
        self.exploration = policy.exploration(environments.num, actor)
        """Exploration of each environment, `[N]` (`Agent.exploration`)."""
        self.slot = 0
        """Slot of an unroll's first column."""
        self.unlearned_steps = 0
        """Environment steps of the newest unroll that are masked in it: they start a life, or follow a whole episode."""
        self._num_steps = 0  # environment steps during the newest unroll, masked or not
        self._completes = actor is not None
        self._whole_episodes = actor is not None and policy.sampling.whole_episodes
        self._burn_in = policy.sampling.burn_in if self._completes else 0
        self._tail: Unroll | None = None  # burn-in of the next unroll
        self._ahead: Action | None = None  # for the observation after the newest unroll
        self._timers, self._heartbeat = timers or Timers(), heartbeat
        generator = torch.Generator(policy.device).manual_seed(seed)
        self._choose = functools.partial(policy.step, greedy=greedy, generator=generator)
        self._random = np.random.default_rng(seed)
        self._episodes: list[Episode] = []
        self._begin(seed)

    def _begin(self, seed: int) -> None:
        spec, num = self._environments.spec, self._environments.num
        self._obs = np.zeros((spec.stack, num, *spec.plane_shape), spec.dtype)  # the newest S planes
        self._obs[-1] = self._environments.reset(seed)
        self._episode_step = np.zeros((spec.stack, num), np.int32)
        self._state = self._policy.initial_state(num)
        self._return = np.zeros(num, np.float64)
        self._length = np.zeros(num, np.int64)
        self._counts = np.ones(num, bool)  # false once an environment has played its only episode

    @property
    def version(self) -> int:
        """Version of the policy's weights."""
        return self._policy.version

    def explore(self, env_steps: int) -> None:
        """Explores as the actor does once the run has made `env_steps`."""
        self.exploration = self._policy.exploration(len(self.exploration), self._actor, env_steps)

    def unroll(self, length: int) -> Unroll:
        """The next `length` steps (k) of all environments; an actor's unroll has its burn-in in front (`overlap`).

        If the algorithm learns from whole episodes, all environments are reset first, and each column is masked after the
        end of its episode.
        """
        self._num_steps = 0
        if self._whole_episodes:
            self._begin(int(self._random.integers(2**31)))
        state = late_state = self._state_arrays()
        unroll = start_unroll(length, self._obs, self._episode_step, self._policy.spec.actions, state)
        obs, episode_step, stack = unroll.obs, unroll.episode_step, len(self._obs)
        for t in range(length):
            if t == length - self._burn_in:
                late_state = self._state_arrays()
            with self._timers.phase("policy"):
                chosen = self._ahead or self._act(obs[t : t + stack], episode_step[t : t + stack])
                self._state, self._ahead = chosen.state, None
                put_choice(unroll, t, chosen.action.numpy(), _arrays(chosen))
            with self._timers.phase("environment"):
                step = self._environments.step(unroll.action[t])
            self._heartbeat()
            obs[t + stack] = step.obs
            episode_step[t + stack] = np.where(step.begins | step.forced, 0, episode_step[t + stack - 1] + 1)
            unroll.reward[t], unroll.mask[t] = step.reward, self._count(step)
            unroll.terminated[t], unroll.truncated[t] = step.terminated, step.truncated
            if not self._counts.any():
                break
        if self._whole_episodes and ((unroll.terminated[-1] | unroll.truncated[-1]) & self._counts).any():
            with self._timers.phase("environment"):  # only a reset tells the end of a game from a lost life
                self._count(self._environments.step(unroll.action[-1]))
        self._obs, self._episode_step = obs[length:], episode_step[length:]
        self.unlearned_steps = self._num_steps - unroll.num_steps
        if not self._completes:
            return unroll
        unroll, self._tail = overlap(unroll, self._burn_in, late_state, self._tail)
        return self._complete(unroll)

    def play(self, length: int) -> Iterator[list[Episode]]:
        """Steps the environments without end; yields the episodes that ended on each `length` steps.

        Warns once if no episode ends for a minute, in which the caller's own work between steps does not count.
        """
        waited_s, steps, has_warned = 0.0, 0, False
        while True:
            began_at = time.monotonic()
            self.unroll(length)
            waited_s, steps = waited_s + time.monotonic() - began_at, steps + length
            if episodes := self.take_episodes():
                waited_s, steps = 0.0, 0
            if waited_s >= NOTICE_S and not has_warned:
                has_warned = True
                problem = f"has ended no episode for {waited_s:.0f} s and {steps:,} steps"
                advice = "if it never does, register it with max_episode_steps"
                log.warning("environment.id: %r %s; %s", self._environments.id, problem, advice)
            yield episodes

    def take_episodes(self) -> list[Episode]:
        """The episodes that ended since the last call."""
        episodes, self._episodes = self._episodes, []
        return episodes

    def _act(self, planes: Array, episode_step: Array) -> Action:
        return self._choose(planes, episode_step, self._state, exploration=self.exploration)

    def _state_arrays(self) -> dict[str, Array]:
        return {name: value.cpu().numpy() for name, value in self._state.items()}

    def _complete(self, unroll: Unroll) -> Unroll:
        if not self._policy.looks_ahead:
            return self._policy.complete(unroll, {})
        with self._timers.phase("policy"):
            self._ahead = self._act(self._obs, self._episode_step)
        return self._policy.complete(unroll, _arrays(self._ahead))

    def _count(self, step: Step) -> Array:
        """Adds up returns and keeps the episodes that ended; returns the step's mask `[N]`.

        It is false on autoreset steps, on those that start a life, and on a truncated step after which there is only the
        next episode's observation, from which it must not be bootstrapped; so the step before it is bootstrapped, from the
        observation between them.
        """
        happened, begins = ~step.reset, step.begins
        learned: Array = happened & ~step.forced & ~(step.truncated & begins) & self._counts
        self._return += np.where(happened, step.reward, 0.0)
        self._length += happened
        over = begins & (self._length > 0)  # an agent may wait for many steps
        for column in np.flatnonzero(over & self._counts):
            self._episodes.append(Episode(int(column), float(self._return[column]), int(self._length[column])))
        if self._whole_episodes:
            self._counts = self._counts & ~over
        self._return[begins] = self._length[begins] = 0
        self._num_steps += int(np.count_nonzero(happened))
        return learned


def start_unroll(length: int, planes: Array, episode_step: Array, actions: Actions, state: dict[str, Array]) -> Unroll:
    """An unroll of `length` masked steps after `planes` `[S, N, *plane]`, their `episode_step` `[S, N]` and `state`."""
    num = planes.shape[1]
    obs = np.concatenate([planes, np.zeros((length, *planes.shape[1:]), planes.dtype)])
    steps = np.concatenate([episode_step, np.zeros((length, num), np.int32)])
    action, reward = np.zeros((length, num, *actions.shape), actions.dtype), np.zeros((length, num), np.float32)
    terminated, truncated, mask = np.zeros((3, length, num), bool)
    return Unroll(obs, steps, action, reward, terminated, truncated, mask, {}, state)


def put_choice(unroll: Unroll, t: int, action: Array, extras: dict[str, Array]) -> None:
    """Writes the `action` and the `extras` of step `t`, each `[N, …]`."""
    unroll.action[t] = action
    for name, part in extras.items():
        if name not in unroll.extras:
            unroll.extras[name] = np.zeros((len(unroll.action), *part.shape), part.dtype)
        unroll.extras[name][t] = part


def _arrays(chosen: Action) -> dict[str, Array]:
    return {name: part.numpy() for name, part in chosen.extras.items()}


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
    num = environments.num
    share = [settings.episodes // num + (column < settings.episodes % num) for column in range(num)]
    rollout = Rollout(environments, policy, seed=seed, greedy=settings.greedy, heartbeat=heartbeat)
    games = rollout.play(8)
    episodes: list[Episode] = []
    while any(share):
        for episode in next(games):
            if share[episode.column]:
                share[episode.column] -= 1
                episodes.append(episode)
    return episodes
