"""The loop of remote clients and policy: acts for those that ask, together, and makes an unroll of each one's steps."""

from __future__ import annotations

import math
import time
from collections import deque
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from apex_acer.actor.overlap import Overlap
from apex_acer.actor.policy import Policy
from apex_acer.actor.rollout import Episode
from apex_acer.config import RunConfig
from apex_acer.environments.spaces import specify_remote
from apex_acer.protocol.messages import Link, Reply
from apex_acer.protocol.metrics import Timers
from apex_acer.protocol.planes import to_planes
from apex_acer.protocol.specification import Array
from apex_acer.protocol.unroll import Unroll
from apex_acer.remote.server import Server
from apex_acer.remote.session import LOST, Event
from apex_acer.remote.token import read_token

EVALUATOR = "evaluator"  # file in the run's folder with the path of the socket at which the evaluator listens
MOMENT_S = 0.002  # for a client, between two looks at what the learner says
LONGEST_WAIT_S = 1.0  # for a client, before those who wait for an unroll learn that there is none


class Chosen(NamedTuple):
    """What the policy chose for one environment."""

    action: Array
    extras: dict[str, Array]


class Segment:
    """The steps of one environment, as they come."""

    def __init__(self, length: int, planes: Array, episode_step: Array, state: dict[str, Array], version: int) -> None:
        """It begins with `planes` `[S, *plane]`, their `episode_step` `[S]` and the policy's `state` before them."""
        self.version, self._state, self._stack, self._length = version, state, len(planes), length
        self.late_state = state
        """What the policy remembered before the steps that the next segment begins with, if segments overlap."""
        self.num = 0
        """Steps so far."""
        self._obs = np.zeros((self._stack + length, *planes.shape[1:]), planes.dtype)
        self._episode_step = np.zeros(self._stack + length, np.int32)
        self._obs[: self._stack], self._episode_step[: self._stack] = planes, episode_step
        self._reward = np.zeros(length, np.float32)
        self._terminated, self._truncated, self._mask = np.zeros((3, length), bool)
        self._chosen: list[Chosen] = []

    @property
    def full(self) -> bool:
        """Whether it has all its steps."""
        return self.num == self._length

    def add(self, chosen: Chosen, event: Event, plane: Array, episode_step: int) -> None:
        """Adds a step, a dummy one if the event is a reset."""
        at, self.num = self.num, self.num + 1
        self._chosen.append(chosen)
        self._reward[at], self._mask[at] = event.reward, event.kind != "reset"
        self._terminated[at], self._truncated[at] = event.kind == "terminated", event.kind == "truncated"
        self._obs[at + self._stack], self._episode_step[at + self._stack] = plane, episode_step

    @property
    def ended(self) -> bool:
        """Whether its newest step ended an episode."""
        return bool(self._terminated[self.num - 1] | self._truncated[self.num - 1])

    def truncate(self) -> None:
        """Truncates the episode at the newest step; if there is none, what was learned from it ends there anyway."""
        if self.num and self._mask[self.num - 1]:
            self._truncated[self.num - 1] = True

    def unroll(self) -> Unroll:
        """The unroll of one column; steps that are missing are masked."""
        first, missing = self._chosen[0], self._length - self.num
        blank = Chosen(np.zeros_like(first.action), {key: np.zeros_like(part) for key, part in first.extras.items()})
        chosen = [*self._chosen, *[blank] * missing]
        extras = {key: np.stack([each.extras[key] for each in chosen])[:, None] for key in first.extras}
        return Unroll(
            obs=self._obs[:, None],
            episode_step=self._episode_step[:, None],
            action=np.stack([each.action for each in chosen])[:, None],
            reward=self._reward[:, None],
            terminated=self._terminated[:, None],
            truncated=self._truncated[:, None],
            mask=self._mask[:, None],
            extras=extras,
            state={name: value[None] for name, value in self._state.items()},
        )


class RemoteRollout:
    """Acts for the clients of a server; each has a slot, which its successor takes over."""

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
        """With an `actor`'s index it explores as that actor does, and makes unrolls."""
        self._server, self._policy, self._greedy, self._timers = server, policy, greedy, timers or Timers()
        num, spec = server.most, policy.spec
        self.exploration = policy.exploration(num, actor)
        """How much each slot explores, `[num]`."""
        self._generator = torch.Generator(policy.device).manual_seed(seed)
        self._records = actor is not None
        self._whole_episodes = self._records and policy.sampling.whole_episodes
        self._overlaps = [Overlap(policy.sampling.burn_in) for _ in range(num)]
        self._obs = np.zeros((spec.stack, num, *spec.plane_shape), spec.dtype)  # the newest S planes of each slot
        self._episode_step = np.zeros((spec.stack, num), np.int32)
        self._state = policy.initial_state(num)
        self._return, self._steps = np.zeros(num, np.float64), np.zeros(num, np.int64)  # of each slot's episode
        self._chosen: dict[int, Chosen] = {}  # for the newest observation of each slot that has one
        self._asking: dict[int, Event] = {}  # by slot, the newest observation that has no action yet
        self._segments: dict[int, Segment] = {}
        self._complete: deque[tuple[int, int, Unroll]] = deque()  # slot, version of the weights, unroll
        self._episodes: list[Episode] = []
        self._counted = np.zeros(num, bool)  # whether the slot's episode is to be counted
        self._to_count: float = math.inf  # episodes that are yet to begin of those that are to be counted
        self.slot = 0
        """That of the newest unroll."""
        self.unlearned_steps = 0
        """Environment steps of all clients since the unroll before that are in none: their episode was too long for one."""
        self._unlearned_steps = 0  # since the newest unroll
        self.version = policy.version
        """Version of the weights with which the newest unroll began."""

    def unroll(self, length: int) -> Unroll | None:
        """The next `length` steps (k) of one client, `[k, 1]`; None if no client completes them within a second."""
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
        """The learner's next answer; waits up to `wait_s` seconds for it.

        In that time clients get actions, unless as many unrolls as there are clients wait to be sent.
        """
        ends_at = time.monotonic() + wait_s
        while self._policy.version >= 0 and len(self._complete) < self._server.num:
            if (reply := link.receive(0)) or (left := ends_at - time.monotonic()) <= 0:
                return reply
            self.serve(min(left, MOMENT_S), length)
        with self._timers.phase("waiting"):
            return link.receive(max(0.0, ends_at - time.monotonic()))

    def serve(self, timeout_s: float, length: int = 0) -> int:
        """Acts once for all who ask; waits up to `timeout_s` seconds for the first. Returns how many actions there were."""
        with self._timers.phase("environment"):
            events = self._server.take(timeout_s)
        count = 0
        for event in events:
            if event.session.slot in self._asking:  # it goes on before this round is over
                count += self._act(length)
            self._note(event)
        return count + self._act(length)

    def count(self, num: int) -> None:
        """Counts only the next `num` episodes that begin, so that short ones have no better chance to be counted."""
        self._to_count, self._episodes = num, []
        self._counted[:] = False

    def take_episodes(self) -> list[Episode]:
        """The counted episodes that ended since the last call."""
        episodes, self._episodes = self._episodes, []
        return episodes

    def _note(self, event: Event) -> None:
        """Records what a client's action led to."""
        slot = event.session.slot
        if event.kind == LOST:
            if segment := self._segments.get(slot):
                segment.truncate()
                if self._whole_episodes:
                    self._finish(slot, segment)
            self._count(event, slot)
            return
        assert event.obs is not None
        begins = event.kind == "reset"
        plane = to_planes(self._policy.spec, event.obs, 1)[0]
        episode_step = 0 if begins else int(self._episode_step[-1, slot]) + 1
        if (segment := self._segments.get(slot)) and not segment.full:
            segment.add(self._chosen[slot], event, plane, episode_step)
        elif not begins:
            self._unlearned_steps += 1
        self._obs[:, slot] = np.concatenate([self._obs[1:, slot], plane[None]])
        self._episode_step[:, slot] = [*self._episode_step[1:, slot], episode_step]
        self._count(event, slot)
        self._asking[slot] = event

    def _count(self, event: Event, slot: int) -> None:
        """Adds up returns, and counts the episodes that begin and end; one that was lost is to be made up for."""
        if event.kind == "reset":
            self._return[slot] = self._steps[slot] = 0
            self._counted[slot] = self._to_count > 0
            self._to_count -= self._counted[slot]
            return
        if event.kind == LOST:
            self._to_count += self._counted[slot]
            self._counted[slot] = False
            return
        self._return[slot] += event.reward
        self._steps[slot] += 1
        if event.kind != "step" and self._counted[slot]:
            self._episodes.append(Episode(slot, float(self._return[slot]), int(self._steps[slot])))

    def _act(self, length: int) -> int:
        """Chooses for all slots that ask, and answers their clients."""
        if not self._asking:
            return 0
        asking, self._asking = self._asking, {}
        slots = list(asking)
        index = torch.tensor(slots, device=self._policy.device)
        before = {name: value[index] for name, value in self._state.items()}
        with self._timers.phase("policy"):
            chosen = self._policy.step(
                self._obs[:, slots],
                self._episode_step[:, slots],
                before,
                greedy=self._greedy,
                exploration=self.exploration[index],
                generator=self._generator,
            )
        for name, value in chosen.state.items():
            self._state[name][index] = value
        action, mu = chosen.action.numpy(), {name: part.numpy() for name, part in chosen.extras.items()}
        actions = self._policy.spec.actions
        decisions = zip(asking.values(), actions.for_clients(actions.to_environment(action)), strict=True)
        # an episode's last observation gets an action, too, for the dummy step after it, but nobody waits for that
        self._server.answer((event.session, one) for event, one in decisions if event.kind in ("reset", "step"))
        if self._records:
            for at, slot in enumerate(slots):
                self._chosen[slot] = Chosen(action[at], {name: part[at] for name, part in mu.items()})
                self._go_on(slot, length, {name: value[at].cpu().numpy() for name, value in before.items()})
        return len(slots)

    def _go_on(self, slot: int, length: int, state: dict[str, Array]) -> None:
        """Completes the slot's segment if it has all its steps, and begins the next."""
        segment, episode_step = self._segments.get(slot), self._episode_step[:, slot]
        if segment and (segment.full or (self._whole_episodes and segment.ended)):
            self._finish(slot, segment)
        if slot not in self._segments and (episode_step[-1] == 0 or not self._whole_episodes):
            self._segments[slot] = Segment(length, self._obs[:, slot], episode_step, state, self._policy.version)
        if (begun := self._segments.get(slot)) and begun.num == length - self._overlaps[slot].num:
            begun.late_state = state

    def _finish(self, slot: int, segment: Segment) -> None:
        del self._segments[slot]
        if segment.num:
            ahead = {name: part[None] for name, part in self._chosen[slot].extras.items()}
            late_state = {name: part[None] for name, part in segment.late_state.items()}
            whole = self._overlaps[slot].extend(segment.unroll(), late_state)
            unroll = self._policy.complete(whole, ahead if self._policy.looks_ahead else {})
            self._complete.append((slot, segment.version, unroll))


def serve_clients(config: RunConfig, folder: Path) -> Server:
    """The server of a run whose environments are remote; raises `ConfigError`."""
    settings, spec = config.environment.remote, specify_remote(config.environment)
    evaluates = not settings.local and bool(config.evaluation.every)
    token, evaluator = read_token(settings, folder), folder / EVALUATOR
    return Server(settings, spec, token, evaluator=evaluator, evaluates=evaluates)
