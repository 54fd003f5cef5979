"""The evaluator of a run with remote environments: clients with `train = false` play its games."""

from __future__ import annotations

import time

from apex_acer.actor.evaluator import Evaluator, summarise
from apex_acer.actor.policy import Policy
from apex_acer.actor.remote_rollout import EVALUATOR, RemoteRollout
from apex_acer.actor.rollout import Episode
from apex_acer.environments.spaces import specify_remote
from apex_acer.networks.weights import unpack
from apex_acer.protocol.messages import Link, Reply
from apex_acer.remote.listener import listen_at
from apex_acer.remote.server import Server
from apex_acer.remote.token import read_token
from apex_acer.storage.folder import where
from apex_acer.system import files
from apex_acer.system.private import PrivateFolder
from apex_acer.system.seeds import derive_seed

LOOK_S = 0.1  # between two checks for a reply of the learner
DESERTED_S = 30.0  # without a client, before it asks for newer weights


class RemoteEvaluator(Evaluator):
    """Serves clients at a private socket, to which the actor connects them; a file in the run's folder has its path."""

    def _start(self) -> None:
        config, folder = self._config, self._folder
        settings, spec = config.environment.remote, self._spec or specify_remote(config.environment)
        self._private = PrivateFolder("evaluator-")
        socket = self._private.path / "socket"
        self._server = Server(settings, spec, read_token(settings, folder), listener=listen_at(socket))
        files.write(folder / EVALUATOR, str(socket).encode())
        self._policy = Policy(config, spec)
        seed, greedy = derive_seed(config.seed, "evaluator"), config.evaluation.greedy
        self._rollout = RemoteRollout(self._server, self._policy, seed=seed, greedy=greedy)
        self._rollout.count(0)
        self._episodes: list[Episode] = []
        self._is_evaluating = False
        self._began_at = self._seen_at = 0.0  # monotonic seconds: start of the evaluation, newest time with a client

    def step(self, wait_s: float) -> bool:
        """Acts for clients, or waits up to `wait_s` seconds for the first weights; False once told to stop."""
        reply = None if self._is_evaluating else self._ask(0 if self._policy.version >= 0 else wait_s)
        if reply and reply.weights is not None:
            self._begin(reply)
        if self._policy.version >= 0:
            if self._rollout.serve(LOOK_S):
                self._link.heartbeat()
            self._conclude_if_over()
        return not (reply and reply.stop)

    def reconnect(self, link: Link) -> None:
        super().reconnect(link)
        self._is_evaluating = False

    def close(self, *, failed: bool = False) -> None:
        self._server.close(failed=failed)
        self._private.remove()
        (where(self._folder) / EVALUATOR).unlink(missing_ok=True)

    def _begin(self, reply: Reply) -> None:
        assert reply.weights is not None
        self._policy.load(unpack(reply.weights), reply.weights_version)
        self._rollout.count(self._config.evaluation.episodes)
        self._episodes, self._is_evaluating = [], True
        self._began_at = self._seen_at = time.monotonic()

    def _conclude_if_over(self) -> None:
        """Concludes with the last episode, or without a score if clients stay away."""
        now = time.monotonic()
        self._seen_at = now if self._server.num else self._seen_at
        self._episodes += self._rollout.take_episodes()
        is_done = len(self._episodes) >= self._config.evaluation.episodes
        if self._is_evaluating and (is_done or now - self._seen_at > DESERTED_S):
            self._is_evaluating = False
            row = {"eval_seconds": now - self._began_at}
            self._conclude([summarise(self._policy.spec, self._episodes) | row] if is_done else [])
