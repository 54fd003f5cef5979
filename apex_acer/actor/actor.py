"""An actor: runs environments with the newest weights it has and sends unrolls to the learner."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from apex_acer.actor.opponents import SnapshotPool
from apex_acer.actor.policy import Policy
from apex_acer.actor.rollout import Rollout
from apex_acer.config import RunConfig
from apex_acer.environments.turns import player_metrics
from apex_acer.environments.vector import Environments, make_environments
from apex_acer.networks.device import choose_device
from apex_acer.networks.weights import unpack
from apex_acer.protocol.messages import Link, Message, Peer, Reply, Row
from apex_acer.protocol.metrics import Timers
from apex_acer.protocol.specification import Array, EnvironmentSpec
from apex_acer.protocol.unroll import Unroll
from apex_acer.system.imports import needs
from apex_acer.system.seeds import derive_seed

if TYPE_CHECKING:
    from apex_acer.actor.remote_rollout import RemoteRollout
    from apex_acer.remote.server import Server

log = logging.getLogger(__name__)


class Actor:
    """Sends unrolls over `link` and acts with the weights that come back; the environments may be remote clients."""

    def __init__(
        self,
        config: RunConfig,
        run_id: str,
        peer: Peer,
        link: Link,
        threads: int = 1,
        folder: Path = Path(),
        *,
        spec: EnvironmentSpec | None = None,
    ) -> None:
        """`threads` are for Atari's emulators, `folder` is the run's, `spec` is the environment's if it is known already."""
        self._config, self._run_id, self._peer, self._link = config, run_id, peer, link
        self._timers = Timers()
        self._environments: Environments | Server
        settings, num = config.environment, config.actors.environments
        if settings.is_remote:
            with needs("environment.id: 'remote'", "remote"):
                from apex_acer.actor.remote_rollout import serve_clients
            self._environments = serve_clients(config, folder)
        else:
            self._environments = make_environments(settings, num, training=True, threads=threads, found=spec)
        device = choose_device(config.actors.device, "actors.device")
        self._policy = Policy(config, self._environments.spec, device)
        self._policy.compute_as_the_learner()
        self._pool: SnapshotPool | None = None
        if isinstance(self._environments, Environments) and self._environments.spec.takes_turns:
            self._pool = SnapshotPool(self._policy, peer.index)
            self._environments.face(self._pool)
        self._rollout: Rollout | RemoteRollout | None = None  # made when the first weights arrive
        self._sequence = self._unanswered = 0
        self._steps_since_weights = 0.0  # of each environment
        self._first_step_at = 0.0  # monotonic seconds
        self._episodes = self._steps_in_row = 0
        self._action_moments = np.zeros((3, 1))  # since the newest row
        self._row_at = time.monotonic()

    def step(self, wait_s: float) -> bool:
        """Sends an unroll or, if too many are unanswered, waits up to `wait_s` s for a reply; False once told to stop."""
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
        """Sends to another learner, which it asks for weights first; the environments keep their state."""
        self._link = link
        self._policy.version = -1
        self._sequence = self._unanswered = 0

    def close(self, *, failed: bool = False) -> None:
        """Closes the environments; remote clients are told of the run's end unless this role has `failed`."""
        if isinstance(self._environments, Environments):
            self._environments.close()
        else:
            self._environments.close(failed=failed)

    def _receive(self, wait_s: float) -> Reply | None:
        if self._rollout is None or isinstance(self._rollout, Rollout):
            with self._timers.phase("waiting"):
                return self._link.receive(wait_s)
        return self._rollout.receive(self._link, wait_s, self._config.algorithm.unroll_length)

    def _send_unroll(self) -> None:
        """Sends the next unroll; without one, as no client completes any, only the metrics."""
        rollout = self._rollout
        assert rollout is not None
        now, length = time.monotonic(), self._config.algorithm.unroll_length
        unroll = rollout.unroll(length)
        unlearned_steps = rollout.unlearned_steps if unroll else 0
        if unroll:
            self._first_step_at = self._first_step_at or now
            self._steps_since_weights += length * unroll.num_columns / max(1, self._environments.num)
            self._steps_in_row += unroll.num_steps + unlearned_steps
            if self._policy.spec.action_dim:
                self._action_moments = self._action_moments + action_moments(unroll)
        wants_weights = self._steps_since_weights >= self._config.actors.weights_every
        if wants_weights:
            self._steps_since_weights = 0.0
        rows = self._row()
        message = Message(
            self._run_id,
            self._peer,
            self._sequence,
            weights_version=rollout.version,
            wants_weights=wants_weights,
            rows=rows,
            clients=self._client_rows() if rows else {},
            unroll=unroll,
            unlearned_steps=unlearned_steps,
            slot=rollout.slot,
            acting_s=time.monotonic() - self._first_step_at if unroll else 0.0,
        )
        self._send(message)

    def _send(self, message: Message) -> None:
        self._link.send(message)
        self._sequence += 1
        self._unanswered += 1

    def _take(self, reply: Reply) -> bool:
        self._unanswered -= 1
        if reply.refused:
            raise RuntimeError(f"the learner refused a message: {reply.refused}")
        if reply.weights is not None:
            tensors = unpack(reply.weights)
            self._policy.load(tensors, reply.weights_version)
            if self._pool:
                self._pool.add(tensors, reply.weights_version, reply.env_steps)
            log.debug("weights of version %d", reply.weights_version)
            self._rollout = self._rollout or self._begin(reply.env_steps)
            self._rollout.explore(reply.env_steps)
        return not reply.stop

    def _begin(self, env_steps: int) -> Rollout | RemoteRollout:
        """Starts the rollout with a seed that depends on `env_steps`, so that a resumed run plays new episodes."""
        actor, policy, timers = self._peer.index, self._policy, self._timers
        seed = derive_seed(self._config.seed, "actor", actor, self._peer.incarnation, env_steps)
        if isinstance(self._environments, Environments):
            beat = self._heartbeat
            return Rollout(self._environments, policy, seed=seed, actor=actor, timers=timers, heartbeat=beat)
        from apex_acer.actor.remote_rollout import RemoteRollout

        return RemoteRollout(self._environments, policy, seed=seed, actor=actor, timers=timers)

    def _heartbeat(self) -> None:
        self._link.heartbeat()  # of the newest link

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
            **action_std(self._action_moments),
            **self._environments.metrics(),
        }
        if episodes := self._rollout.take_episodes():
            returns = np.array([episode.episode_return for episode in episodes])
            self._episodes += len(episodes)
            row |= {
                "episode_return": float(returns.mean()),
                "episode_return_max": float(returns.max()),
                "episode_length": sum(episode.length for episode in episodes) / len(episodes),
                **player_metrics(self._policy.spec, returns),
            }
        row["episodes"] = self._episodes
        self._row_at, self._steps_in_row, self._action_moments = now, 0, np.zeros((3, 1))
        return [row]

    def _client_rows(self) -> dict[str, Row]:
        return {} if isinstance(self._environments, Environments) else self._environments.client_rows()


def action_moments(unroll: Unroll) -> Array:
    """Count, sum and sum of squares of an unroll's continuous actions `[3, d]`, except on autoreset steps."""
    action = unroll.action[unroll.mask].astype(np.float64)  # [steps, d]
    moments: Array = np.stack([action**power for power in range(3)]).sum(1)
    return moments


def action_std(moments: Array) -> Row:
    """The metric of continuous actions with these `action_moments`: their standard deviation, averaged over dimensions."""
    count, total, squares = moments
    if not count[0]:
        return {}
    variance = squares / count - (total / count) ** 2
    return {"action_std": float(np.sqrt(variance.clip(0)).mean())}
