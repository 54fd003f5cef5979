"""The evaluator: plays whole games with weights from the learner and sends it the scores."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from apex_acer.actor.opponents import face
from apex_acer.actor.policy import Policy
from apex_acer.actor.rollout import Episode, evaluate
from apex_acer.config import EnvironmentConfig, EvaluationConfig, RunConfig
from apex_acer.environments.turns import player_metrics
from apex_acer.environments.vector import Environments, make_environments
from apex_acer.networks.weights import unpack, unpack_metadata
from apex_acer.protocol.messages import Link, Message, Peer, Reply, Row
from apex_acer.protocol.specification import EnvironmentSpec
from apex_acer.storage.folder import where
from apex_acer.system.imports import needs
from apex_acer.system.seeds import derive_seed

log = logging.getLogger(__name__)


class Evaluator:
    """Asks for weights, plays with them, and sends the score with the next request."""

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
        """Takes an `Actor`'s arguments; raises `ConfigError` if videos are asked for and cannot be made."""
        self._config, self._run_id, self._peer, self._link = config, run_id, peer, link
        self._threads, self._folder, self._spec = threads, folder, spec
        self._sequence = self._num_evaluations = 0
        self._rows: list[Row] = []
        self._has_asked = False
        self._start()

    def _start(self) -> None:
        self._player: tuple[Environments, Policy] | None = None  # made when it is needed, so that actors start sooner
        if self._config.evaluation.video_every:
            _check_videos(self._config)

    def step(self, wait_s: float) -> bool:
        """Asks for weights, waits up to `wait_s` seconds for them and evaluates them; False once told to stop."""
        reply = self._ask(wait_s)
        if reply is None or reply.stop or reply.weights is None:
            return not (reply and reply.stop)
        if self._player is None:
            config = self._config
            environments = _environments(config.environment, config.evaluation, self._threads, self._spec)
            face(environments, config.evaluation)
            self._player = environments, Policy(config, environments.spec)
        environments, policy = self._player
        policy.load(unpack(reply.weights), reply.weights_version)
        # the same games each time, so that scores compare; a confirmation plays the games of the next seed
        seed = derive_seed(self._config.seed + reply.confirms, "evaluator")
        start = time.monotonic()
        episodes = evaluate(environments, policy, self._config.evaluation, seed, self._link.heartbeat)
        row = {**summarise(environments.spec, episodes), "eval_seconds": time.monotonic() - start}
        self._conclude([row])
        self._num_evaluations += not reply.confirms
        every = self._config.evaluation.video_every
        if every and self._num_evaluations % every == 0 and not reply.confirms:
            self._record(policy, unpack_metadata(reply.weights)["env_steps"])
        return True

    def reconnect(self, link: Link) -> None:
        """Asks another learner for weights, and drops a score that was not sent yet."""
        self._link, self._sequence, self._has_asked, self._rows = link, 0, False, []

    def close(self, *, failed: bool = False) -> None:
        """Closes the environments; remote clients are told of the run's end unless this role has `failed`."""
        if self._player:
            self._player[0].close()

    def _ask(self, wait_s: float) -> Reply | None:
        """The reply to the newest request, which is sent first if needed; waits up to `wait_s` seconds."""
        if not self._has_asked:
            self._link.send(Message(self._run_id, self._peer, self._sequence, wants_weights=True, rows=self._rows))
            self._has_asked = True
        reply = self._link.receive(wait_s)
        if reply and reply.refused:
            raise RuntimeError(f"the learner refused a message: {reply.refused}")
        return reply

    def _conclude(self, rows: list[Row]) -> None:
        """Ends an evaluation: the next request takes its `rows` along."""
        self._rows, self._has_asked = rows, False
        self._sequence += 1

    def _record(self, policy: Policy, env_steps: int) -> None:
        """Makes a video; an error is only a warning, because no run needs a video."""
        from apex_acer.actor.play import record

        path = where(self._folder) / "videos" / f"{env_steps:09d}.mp4"
        try:
            path.parent.mkdir(exist_ok=True)
            record(path, policy, self._config.evaluation, self._config.seed, self._link.heartbeat)
        except Exception as error:
            why = " ".join(f"{type(error).__name__}: {error}".split())
            log.warning("%s: no video (%s); the run goes on without it", path.name, why)


def _check_videos(config: RunConfig) -> None:
    with needs("evaluation.video_every", "video"):
        import apex_acer.environments.display  # noqa: F401
    from apex_acer.environments.rendering import make_pictured

    make_pictured(config.environment).close()


def summarise(spec: EnvironmentSpec, episodes: list[Episode]) -> Row:
    """The metrics of an evaluation's `episodes` in an environment with `spec`."""
    returns = np.array([episode.episode_return for episode in episodes])
    return {
        "eval_return": float(returns.mean()),
        "eval_return_std": float(returns.std()),
        "eval_return_min": float(returns.min()),
        "eval_return_max": float(returns.max()),
        "eval_length": float(np.mean([episode.length for episode in episodes])),
        **player_metrics(spec, returns),
    }


def evaluate_policy(
    policy: Policy,
    settings: EvaluationConfig,
    seed: int,
    threads: int = 1,
    heartbeat: Callable[[], None] = lambda: None,
) -> Row:
    """The evaluator's metrics of whole games that `policy` plays in this process, with `threads` for Atari's emulators.

    `heartbeat` is called after each step. With the run's `seed` and `settings` these are the evaluator's games. Raises
    `ConfigError` if the environment cannot be made, or its module is named only by the policy's weights file.
    """
    policy.require_known_environment()
    environments = _environments(policy.config.environment, settings, threads, policy.spec)
    try:
        face(environments, settings, import_modules=policy.may_import)
        episodes = evaluate(environments, policy, settings, derive_seed(seed, "evaluator"), heartbeat)
        return summarise(environments.spec, episodes)
    finally:
        environments.close()


def _environments(
    config: EnvironmentConfig, settings: EvaluationConfig, threads: int, spec: EnvironmentSpec | None
) -> Environments:
    num = min(settings.environments, settings.episodes)
    return make_environments(config, num, training=False, threads=threads, found=spec)
