"""The loop of remote clients and policy: acts for all that wait, together, and makes unrolls of one client each."""

from __future__ import annotations

import functools
import math
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from apex_acer.actor.overlap import overlap
from apex_acer.actor.policy import Policy
from apex_acer.actor.rollout import Episode, put_choice, start_unroll
from apex_acer.config import RunConfig
from apex_acer.environments.spaces import specify_remote
from apex_acer.protocol.messages import Link, Reply
from apex_acer.protocol.metrics import Timers
from apex_acer.protocol.planes import to_planes
from apex_acer.protocol.specification import Array
from apex_acer.protocol.unroll import Unroll
from apex_acer.remote.messages import Observation
from apex_acer.remote.server import Server
from apex_acer.remote.session import LOST, Event
from apex_acer.remote.token import read_token
from apex_acer.storage.folder import where

Arrays = dict[str, Array]
Choice = tuple[Array, Arrays]
"""Action and extras of one environment's step, each `[1, …]`."""
EVALUATOR = "evaluator"  # file in the run's folder with the path of the socket at which the evaluator listens
MOMENT_S = 0.002  # wait for a client, between two checks for a reply of the learner
LONGEST_WAIT_S = 1.0  # for an unroll


class PartialUnroll:
    """An unroll `[k, 1]` of one client, to which steps are added as they come; steps that are missing are masked."""

    def __init__(self, unroll: Unroll, version: int) -> None:
        """Adds steps to `unroll`, which begins with weights of `version`."""
        self.unroll, self.version = unroll, version
        self.num = 0
        """Steps so far."""
        self.late_state = unroll.state
        """The policy's state before the steps with which the next unroll begins, if unrolls overlap."""

    @property
    def is_full(self) -> bool:
        return self.num == len(self.unroll.mask)

    @property
    def has_ended(self) -> bool:
        """Whether its newest step ended an episode."""
        return bool(self.unroll.terminated[self.num - 1] | self.unroll.truncated[self.num - 1])

    def add(self, choice: Choice, event: Event, plane: Array, episode_step: int) -> None:
        """Adds a step: an autoreset step if the event is a reset."""
        unroll, at, self.num = self.unroll, self.num, self.num + 1
        put_choice(unroll, at, *choice)
        unroll.reward[at], unroll.mask[at] = event.reward, event.kind != "reset"
        unroll.terminated[at], unroll.truncated[at] = event.kind == "terminated", event.kind == "truncated"
        behind = at - len(unroll.mask)
        unroll.obs[behind], unroll.episode_step[behind] = plane, episode_step

    def truncate(self) -> None:
        """Truncates the episode at the newest step; if that was an autoreset step, there is nothing to truncate."""
        if self.num and self.unroll.mask[self.num - 1]:
            self.unroll.truncated[self.num - 1] = True


class RemoteRollout:
    """Acts for the clients of a server, each of which has a slot."""

    def __init__(
        self,
        server: Server,
        policy: Policy,
        *,
        seed: int,
        actor: int | None = None,
        greedy: bool = False,
        timers: Timers | None = None,
    ) -> None:
        """With an `actor`'s index, explores as that actor does and makes unrolls."""
        self._server, self._policy, self._timers = server, policy, timers or Timers()
        self._actor = actor
        num, spec = server.most, policy.spec
        self.exploration = policy.exploration(num, actor)
        """Exploration of each slot, `[num]` (`Agent.exploration`)."""
        generator = torch.Generator(policy.device).manual_seed(seed)
        self._choose = functools.partial(policy.step, greedy=greedy, generator=generator)
        self._records = actor is not None
        self._whole_episodes = self._records and policy.sampling.whole_episodes
        self._burn_in = policy.sampling.burn_in
        self._tails: dict[int, Unroll | None] = {}  # by slot, the burn-in of its next unroll
        self._obs = np.zeros((spec.stack, num, *spec.plane_shape), spec.dtype)  # the newest S planes of each slot
        self._episode_step = np.zeros((spec.stack, num), np.int32)
        self._state = policy.initial_state(num)
        self._return, self._steps = np.zeros(num, np.float64), np.zeros(num, np.int64)  # of each slot's episode
        self._chosen: dict[int, Choice] = {}  # by slot: for its newest observation
        self._asking: dict[int, Event] = {}  # by slot: the newest observation, if it has no action yet
        self._partial: dict[int, PartialUnroll] = {}  # by slot
        self._complete: deque[tuple[int, int, Unroll]] = deque()  # slot, version of the weights, unroll
        self._episodes: list[Episode] = []
        self._is_counted = np.zeros(num, bool)  # whether the slot's episode is to be counted
        self._to_count: float = math.inf  # episodes to count that have not begun
        self.slot = 0
        """Slot of the newest unroll."""
        self.unlearned_steps = 0
        """Environment steps since the previous unroll that no unroll holds: they came after an unroll of a whole episode."""
        self._unlearned_steps = 0  # since the newest unroll
        self.version = policy.version
        """Version of the weights with which the newest unroll began."""

    def explore(self, env_steps: int) -> None:
        """Explores as the actor does once the run has made `env_steps`."""
        self.exploration = self._policy.exploration(len(self.exploration), self._actor, env_steps)

    def unroll(self, length: int) -> Unroll | None:
        """The next `length` steps (k) of one client, `[k, 1]`; None if no client completes an unroll within a second."""
        ends_at = time.monotonic() + LONGEST_WAIT_S
        while not self._complete and (left := ends_at - time.monotonic()) > 0:
            self.serve(left, length)
        if not self._complete:
            return None
        self.slot, version, unroll = self._complete.popleft()
        self.version = min(version, self._policy.version)  # a learner that was resumed counts from its checkpoint
        self.unlearned_steps, self._unlearned_steps = self._unlearned_steps, 0
        return unroll

    def receive(self, link: Link, wait_s: float, length: int) -> Reply | None:
        """The learner's next reply; waits up to `wait_s` seconds for it.

        Meanwhile clients get actions, until as many unrolls as there are clients are complete.
        """
        ends_at = time.monotonic() + wait_s
        while self._policy.version >= 0 and len(self._complete) < self._server.num:
            if (reply := link.receive(0)) or (left := ends_at - time.monotonic()) <= 0:
                return reply
            self.serve(min(left, MOMENT_S), length)
        with self._timers.phase("waiting"):
            return link.receive(max(0.0, ends_at - time.monotonic()))

    def serve(self, timeout_s: float, length: int = 0) -> int:
        """Acts for all clients that wait, the first of which may take `timeout_s` seconds; returns the number of actions."""
        with self._timers.phase("environment"):
            events = self._server.take(timeout_s)
        count, fresh = 0, dict[int, Event]()  # by slot
        for event in events:
            self._count(event)
            if event.slot in fresh:  # a second event of the same client
                self._note(fresh)
                count, fresh = count + self._act(length), {}
            if event.kind == LOST:
                self._lose(event.slot)
            else:
                fresh[event.slot] = event
        self._note(fresh)
        return count + self._act(length)

    def count(self, num: int) -> None:
        """Counts only the next `num` episodes to begin; the first `num` to end would be the short ones."""
        self._to_count, self._episodes = num, []
        self._is_counted[:] = False

    def take_episodes(self) -> list[Episode]:
        """The counted episodes that ended since the last call."""
        episodes, self._episodes = self._episodes, []
        return episodes

    def _lose(self, slot: int) -> None:
        """Truncates the slot's episode, which will not go on."""
        if partial := self._partial.get(slot):
            partial.truncate()
            if self._whole_episodes:
                self._finish(slot)

    def _note(self, events: dict[int, Event]) -> None:
        """Adds the steps that led to the events to their slots' unrolls, and keeps the observations."""
        if not events:
            return
        slots = list(events)
        planes = self._planes([event.obs for event in events.values()])
        begins = np.array([event.kind == "reset" for event in events.values()])
        episode_steps = np.where(begins, 0, self._episode_step[-1, slots] + 1)
        for at, (slot, event) in enumerate(events.items()):
            partial = self._partial.get(slot)
            if partial and not partial.is_full:
                partial.add(self._chosen[slot], event, planes[at], int(episode_steps[at]))
            elif event.kind != "reset":
                self._unlearned_steps += 1
        self._obs[:-1, slots], self._obs[-1, slots] = self._obs[1:, slots], planes
        self._episode_step[:-1, slots], self._episode_step[-1, slots] = self._episode_step[1:, slots], episode_steps
        self._asking |= events

    def _planes(self, observations: Sequence[Observation | None]) -> Array:
        """The observations as planes `[N, *plane]`."""
        spec, num = self._policy.spec, len(observations)
        if not spec.parts:
            return to_planes(spec, np.stack(observations), num)  # type: ignore[arg-type]
        parts = {name: np.stack([obs[name] for obs in observations]) for name in spec.boxes}  # type: ignore[index]
        return to_planes(spec, parts, num)

    def _count(self, event: Event) -> None:
        """Adds up returns, and counts the episodes that begin and end; another one is counted for one that was lost."""
        slot = event.slot
        if event.kind == "reset":
            self._return[slot] = self._steps[slot] = 0
            self._is_counted[slot] = self._to_count > 0
            self._to_count -= self._is_counted[slot]
            return
        if event.kind == LOST:
            self._to_count += self._is_counted[slot]
            self._is_counted[slot] = False
            return
        self._return[slot] += event.reward
        self._steps[slot] += 1
        if event.kind != "step" and self._is_counted[slot]:
            self._episodes.append(Episode(slot, float(self._return[slot]), int(self._steps[slot])))

    def _act(self, length: int) -> int:
        """Chooses actions for all slots that wait for one, and sends them."""
        if not self._asking:
            return 0
        asking, self._asking = self._asking, {}
        slots = list(asking)
        index = torch.tensor(slots, device=self._policy.device)
        before = {name: value[index] for name, value in self._state.items()}
        with self._timers.phase("policy"):
            planes, episode_step = self._obs[:, slots], self._episode_step[:, slots]
            chosen = self._choose(planes, episode_step, before, exploration=self.exploration[index])
        for name, value in chosen.state.items():
            self._state[name][index] = value
        action, extras = chosen.action.numpy(), {name: part.numpy() for name, part in chosen.extras.items()}
        actions = self._policy.spec.actions
        decisions = zip(asking.values(), actions.for_clients(actions.to_environment(action)), strict=True)
        # an episode's last observation gets an action, too, for the autoreset step, but nobody waits for that
        self._server.answer((event, one) for event, one in decisions if event.kind in ("reset", "step"))
        if self._records:
            for at, slot in enumerate(slots):
                self._chosen[slot] = action[at, None], {name: part[at, None] for name, part in extras.items()}
                self._go_on(slot, length, {name: value[at, None].cpu().numpy() for name, value in before.items()})
        return len(slots)

    def _go_on(self, slot: int, length: int, state: Arrays) -> None:
        """Completes the slot's unroll if it has all its steps, and begins the next."""
        partial = self._partial.get(slot)
        if partial and (partial.is_full or (self._whole_episodes and partial.has_ended)):
            self._finish(slot)
        planes, episode_step = self._obs[:, slot, None], self._episode_step[:, slot, None]
        if slot not in self._partial and (episode_step[-1] == 0 or not self._whole_episodes):
            unroll = start_unroll(length, planes, episode_step, self._policy.spec.actions, state)
            self._partial[slot] = PartialUnroll(unroll, self._policy.version)
        if (begun := self._partial.get(slot)) and begun.num == length - self._burn_in:
            begun.late_state = state

    def _finish(self, slot: int) -> None:
        partial, tail = self._partial.pop(slot), self._tails.get(slot)
        if partial.num:
            ahead = self._chosen[slot][1] if self._policy.looks_ahead else {}
            unroll, self._tails[slot] = overlap(partial.unroll, self._burn_in, partial.late_state, tail)
            self._complete.append((slot, partial.version, self._policy.complete(unroll, ahead)))


def serve_clients(config: RunConfig, folder: Path) -> Server:
    """The server of a run's remote environments; raises `ConfigError` if it cannot listen or the token cannot be read."""
    settings, spec = config.environment.remote, specify_remote(config.environment)
    evaluates = not settings.local and bool(config.evaluation.every)
    token = read_token(settings, folder)
    return Server(settings, spec, token, evaluator=lambda: where(folder) / EVALUATOR, evaluates=evaluates)
