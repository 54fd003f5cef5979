"""The evaluator of a run whose environments are remote: clients that are not to be learned from play its games."""

from __future__ import annotations

import time
from pathlib import Path

from apex_acer.actor.evaluator import Evaluator, summarise
from apex_acer.actor.policy import Policy
from apex_acer.actor.remote_rollout import EVALUATOR, RemoteRollout
from apex_acer.actor.rollout import Episode
from apex_acer.config import RunConfig
from apex_acer.environments.spaces import specify_remote
from apex_acer.networks.weights import unpack
from apex_acer.protocol.messages import Link, Peer, Reply
from apex_acer.protocol.specification import EnvironmentSpec
from apex_acer.remote.listener import listen_at
from apex_acer.remote.server import Server
from apex_acer.remote.token import read_token
from apex_acer.system import files
from apex_acer.system.private import PrivateFolder
from apex_acer.system.seeds import derive_seed

LOOK_S = 0.1  # between two looks at what the learner says
DESERTED_S = 30.0  # without a client, after which it asks for the newest weights again


class RemoteEvaluator(Evaluator):
    """Listens at a private socket, to which the actor connects clients; its path is in a file of the run's folder."""

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
        super().__init__(config, run_id, peer, link, threads, folder)
        settings, spec = config.environment.remote, found or specify_remote(config.environment)
        self._private, self._address = PrivateFolder("evaluator-"), folder / EVALUATOR
        place = self._private.path / "socket"
        self._server = Server(settings, spec, read_token(settings, folder), listener=listen_at(place))
        files.write(self._address, str(place).encode())
        policy = Policy(config, spec)
        seed = derive_seed(config.seed, "evaluator")
        self._rollout = RemoteRollout(self._server, policy, seed=seed, greedy=config.evaluation.greedy)
        self._rollout.count(0)
        self._policy = policy
        self._episodes: list[Episode] = []
        self._plays = False  # whether an evaluation has begun and not ended
        self._began_at = self._seen_at = 0.0  # monotonic seconds; when there was a client for the last time

    def step(self, wait_s: float) -> bool:
        """Acts for clients, or waits up to `wait_s` seconds for the first weights; False once told to stop."""
        reply = None if self._plays else self._ask(0 if self._policy.version >= 0 else wait_s)
        if reply and reply.weights is not None:
            self._begin(reply)
        if self._policy.version >= 0:
            self._rollout.serve(LOOK_S)
            self._judge()
        return not (reply and reply.stop)

    def reconnect(self, link: Link) -> None:
        super().reconnect(link)
        self._plays = False

    def close(self) -> None:
        self._server.close()
        self._private.remove()
        self._address.unlink(missing_ok=True)

    def _begin(self, reply: Reply) -> None:
        assert reply.weights is not None
        self._policy.load(unpack(reply.weights), reply.weights_version)
        self._rollout.count(self._config.evaluation.episodes)
        self._episodes, self._plays = [], True
        self._began_at = self._seen_at = time.monotonic()

    def _judge(self) -> None:
        """Ends the evaluation with its last episode, or without clients, so that the learner is asked for newer weights."""
        now = time.monotonic()
        self._seen_at = now if self._server.num else self._seen_at
        self._episodes += self._rollout.take_episodes()
        done = len(self._episodes) >= self._config.evaluation.episodes
        if self._plays and (done or now - self._seen_at > DESERTED_S):
            self._plays = False
            self._conclude([{**summarise(self._episodes), "eval_seconds": now - self._began_at}] if done else [])
