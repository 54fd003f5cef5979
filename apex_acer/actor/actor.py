"""An actor: runs environments with the newest weights it has and sends unrolls to the learner."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from torch import Tensor

from apex_acer.actor.policy import Policy
from apex_acer.actor.rollout import Episode, Rollout
from apex_acer.config import RunConfig
from apex_acer.environments.vector import Environments, make_environments
from apex_acer.networks.device import choose_device
from apex_acer.networks.weights import unpack
from apex_acer.protocol.messages import Link, Message, Peer, Reply, Row
from apex_acer.protocol.metrics import Timers
from apex_acer.protocol.specification import EnvironmentSpec
from apex_acer.protocol.unroll import Unroll
from apex_acer.system.imports import needs
from apex_acer.system.seeds import derive_seed

if TYPE_CHECKING:
    from apex_acer.remote.server import Server

log = logging.getLogger(__name__)


class UnrollSource(Protocol):
    """The rollout that an actor sends unrolls of: `Rollout` in its own environments, `RemoteRollout` of clients."""

    exploration: Tensor
    slot: int
    unlearned_steps: int

    @property
    def version(self) -> int: ...

    def unroll(self, length: int) -> Unroll | None: ...

    def take_episodes(self) -> list[Episode]: ...

    def receive(self, link: Link, wait_s: float, length: int) -> Reply | None: ...


class Actor:
    """Makes unrolls and sends them over `link`, which hides how messages travel."""

    def __init__(
        self,
        config: RunConfig,
        run_id: str,
        peer: Peer,
        link: Link,
        threads: int = 1,
        folder: Path = Path(),
        *,
        found: EnvironmentSpec | None = None,
    ) -> None:
        """`threads`: of Atari's emulators; `folder`: the run's; `found`: the specification that the check has found."""
        self._config, self._run_id, self._peer, self._link = config, run_id, peer, link
        self._timers = Timers()
        self._environments, self._make_rollout = _environments(
            config, folder, threads, found, heartbeat=lambda: self._link.heartbeat()
        )
        device = choose_device(config.actors.device, "actors.device")
        self._policy = Policy(config, self._environments.spec, device)
        self._policy.compute_as_the_learner()
        self._rollout: UnrollSource | None = None  # made when the first weights arrive
        self._sequence = self._unanswered = 0
        self._steps_since_weights = 0.0  # of each environment
        self._first_step_at = 0.0  # monotonic seconds
        self._episodes = self._steps_in_row = 0
        self._row_at = time.monotonic()
        self._spread = Spread() if self._environments.spec.action_dim else None

    def step(self, wait_s: float) -> bool:
        """Makes and sends one unroll, or waits up to `wait_s` seconds for an answer; False once told to stop."""
        if self._sequence == 0:
            self._send(Message(self._run_id, self._peer, 0, wants_weights=True))  # the learner's first weights
        must_wait = self._unanswered >= self._config.max_unanswered or self._policy.version < 0
        reply = self._receive(wait_s if must_wait else 0)
        if reply:
            return self._take(reply)
        if not must_wait:
            self._send_unroll()
        return True

    def reconnect(self, link: Link) -> None:
        """Sends to another learner from now on, and first asks it for weights; the environments keep their state."""
        self._link = link
        self._policy.version = -1
        self._sequence = self._unanswered = 0

    def close(self) -> None:
        self._environments.close()

    def _receive(self, wait_s: float) -> Reply | None:
        if self._rollout:
            return self._rollout.receive(self._link, wait_s, self._config.algorithm.unroll_length)
        with self._timers.phase("waiting"):
            return self._link.receive(wait_s)

    def _send_unroll(self) -> None:
        """Sends the next unroll; if none is complete in time, only what there is to report."""
        assert self._rollout is not None
        now, length = time.monotonic(), self._config.algorithm.unroll_length
        unroll = self._rollout.unroll(length)
        if unroll:
            self._first_step_at = self._first_step_at or now
            self._steps_since_weights += length * unroll.num_columns / max(1, self._environments.num)
            self._steps_in_row += unroll.num_steps + self._rollout.unlearned_steps
            if self._spread:
                self._spread.add(unroll)
        wants_weights = self._steps_since_weights >= self._config.actors.weights_every
        if wants_weights:
            self._steps_since_weights = 0.0
        self._send(
            Message(
                self._run_id,
                self._peer,
                self._sequence,
                weights_version=self._rollout.version,
                wants_weights=wants_weights,
                rows=self._row(),
                unroll=unroll,
                unlearned_steps=self._rollout.unlearned_steps if unroll else 0,
                slot=self._rollout.slot,
                acting_s=time.monotonic() - self._first_step_at if unroll else 0.0,
            )
        )

    def _send(self, message: Message) -> None:
        self._link.send(message)
        self._sequence += 1
        self._unanswered += 1

    def _take(self, reply: Reply) -> bool:
        self._unanswered -= 1
        if reply.refused:
            raise RuntimeError(f"the learner refused a message: {reply.refused}")
        if reply.weights is not None:
            self._policy.load(unpack(reply.weights), reply.weights_version)
            log.debug("weights of version %d", reply.weights_version)
            self._rollout = self._rollout or self._begin(reply.env_steps)
        return not reply.stop

    def _begin(self, env_steps: int) -> UnrollSource:
        """Resets the environments with a seed that depends on `env_steps`, so a resumed run plays new episodes."""
        peer = self._peer
        seed = derive_seed(self._config.seed, "actor", peer.index, peer.incarnation, env_steps)
        return self._make_rollout(self._environments, self._policy, seed=seed, actor=peer.index, timers=self._timers)

    def _row(self) -> list[Row]:
        now = time.monotonic()
        elapsed = now - self._row_at
        if elapsed < self._config.logging.every_seconds:
            return []
        assert self._rollout is not None
        row: Row = {
            **self._timers.shares(),
            "env_steps_per_s": self._steps_in_row / elapsed,
            "exploration": float(self._rollout.exploration.mean()),
            **(self._spread.take() if self._spread else {}),
            **self._environments.metrics(),
        }
        if episodes := self._rollout.take_episodes():
            returns = [episode.episode_return for episode in episodes]
            self._episodes += len(episodes)
            row |= {
                "episode_return": sum(returns) / len(returns),
                "episode_return_max": max(returns),
                "episode_length": sum(episode.length for episode in episodes) / len(episodes),
            }
        row["episodes"] = self._episodes
        self._row_at, self._steps_in_row = now, 0
        return [row]


def _environments(
    config: RunConfig, folder: Path, threads: int, found: EnvironmentSpec | None, heartbeat: Callable[[], None]
) -> tuple[Environments | Server, Callable[..., UnrollSource]]:
    """The environments, and what makes the rollout in them; those of this process call `heartbeat` after each step."""
    environment, count = config.environment, config.actors.environments
    if not environment.is_remote:
        environments = make_environments(environment, count, training=True, threads=threads, found=found)
        return environments, functools.partial(Rollout, heartbeat=heartbeat)
    with needs("environment.id: 'remote'", "remote"):
        from apex_acer.actor.remote_rollout import RemoteRollout, serve_clients
    return serve_clients(config, folder), RemoteRollout


class Spread:
    """Measures how continuous actions vary: the standard deviation over the steps since the last `take`."""

    def __init__(self) -> None:
        self._sums = np.zeros((3, 1))  # of ones, actions and their squares, for each dimension

    def add(self, unroll: Unroll) -> None:
        """Adds the actions of an unroll, except on autoreset steps."""
        action = unroll.action[unroll.mask].astype(np.float64)  # [steps, d]
        self._sums = self._sums + np.stack([action**power for power in range(3)]).sum(1)

    def take(self) -> Row:
        """The metric, the mean over dimensions; empty if there were no steps."""
        (count, total, squares), self._sums = self._sums, np.zeros((3, 1))
        if not count[0]:
            return {}
        variance = squares / count - (total / count) ** 2
        return {"action_std": float(np.sqrt(variance.clip(0)).mean())}
