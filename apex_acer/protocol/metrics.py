"""The table of all metrics with their units and meanings, and what measures them: timers and means."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol


class Metric(NamedTuple):
    """A metric's unit and meaning, as docs/metrics.md shows them."""

    unit: str
    meaning: str
    only: tuple[str, ...] = ()
    """The algorithms that write it; empty: all do."""
    needs: str = ""
    """The setting of the algorithm without which it is not written."""


WITH_TRUST_REGION = "acer", "continuous_acer"
FROM_REPLAY_ALONE = "apex_dqn", "r2d2", "ddpg", "sac"
CURIOSITY = "curiosity"
ON_POLICY = "actor_critic", "ppo", "trpo"
CONTINUOUS = "continuous_acer", "ddpg", "sac", *ON_POLICY
METRICS = {
    # actors and evaluator
    "episode_return": Metric("reward", "mean unclipped return of the whole episodes that ended since the last row"),
    "episode_return_max": Metric("reward", "best unclipped return among them"),
    "episode_length": Metric("env steps", "mean length of those episodes"),
    "episodes": Metric("episodes", "episodes ended since the start of the process"),
    "env_steps_per_s": Metric("env steps / s", "environment steps per second since the last row, without dummy steps"),
    "policy_lag": Metric("updates", "age of an unroll's weights: on arrival (actors), when trained on (learner, mean)"),
    "exploration": Metric(
        "1",
        "the actor's mean temperature (ACER for discrete actions, actor-critic, PPO, TRPO), standard deviation (continuous "
        "ACER), epsilon (Ape-X DQN, R2D2) or scale of noise (DDPG); 1 for SAC",
    ),
    "action_std": Metric(
        "1",
        "standard deviation of continuous actions in [−1, 1], mean over their dimensions: of an actor's steps since its "
        "last row, or of the policy (learner; SAC's before tanh; DDPG's has none)",
        only=CONTINUOUS,
    ),
    "time_environment": Metric("s / s", "share of the time spent inside the environments"),
    "time_policy": Metric("s / s", "share of the time spent choosing actions"),
    "time_waiting": Metric("s / s", "share of the time an actor waits for the learner, or the learner for unrolls"),
    # evaluator
    "eval_return": Metric("reward", "mean unclipped return over `evaluation.episodes` whole episodes"),
    "eval_return_std": Metric("reward", "standard deviation of those returns"),
    "eval_return_min": Metric("reward", "lowest of those returns"),
    "eval_return_max": Metric("reward", "highest of those returns"),
    "eval_length": Metric("env steps", "mean length of those episodes"),
    "eval_env_steps": Metric("env steps", "environment steps that the evaluated weights were trained for"),
    "eval_seconds": Metric("s", "duration of the evaluation"),
    "clients": Metric("clients", "clients that are connected, if environments are remote clients"),
    # learner
    "env_steps": Metric(
        "env steps",
        "environment steps of accepted unrolls, learned from or not, without dummy steps",
    ),
    "frames": Metric("frames", "env_steps times the action repeat"),
    "best_return": Metric("reward", "`eval_return` of the best weights so far, as it was confirmed"),
    "updates": Metric("updates", "optimizer steps applied"),
    "updates_per_s": Metric("updates / s", "optimizer steps per second since the last row"),
    "skipped_updates": Metric("updates", "updates that were skipped because they were not finite"),
    "replay_steps": Metric("env steps", "environment steps held in replay"),
    "replay_ratio": Metric("1", "replayed steps per fresh step since replay began (`replay.start`)"),
    "fresh_segments": Metric("segments", "segments accepted and not yet trained on"),
    "refused_messages": Metric("messages", "malformed, stale or foreign messages refused"),
    "learning_rate": Metric("1", "current learning rate"),
    "loss": Metric("1", "what the update minimises: the losses below, weighted as the algorithm says"),
    "policy_loss": Metric(
        "1",
        "the policy's loss: surrogate of the projected gradient, of which only the gradient has a meaning (ACER); −Q of its "
        "actions (DDPG), with temperature · log π (SAC); −advantage · log π (actor-critic); the clipped surrogate "
        "(PPO), or the surrogate before the update (TRPO)",
        only=("acer", "continuous_acer", "ddpg", "sac", *ON_POLICY),
    ),
    "q_loss": Metric(
        "reward²",
        "mean of ½ (target − Q)², summed over critics, in Ape-X DQN and R2D2 the Huber loss; the target is `q_ret` or "
        "`q_target`",
        only=(*WITH_TRUST_REGION, *FROM_REPLAY_ALONE),
    ),
    "value_loss": Metric("reward²", "mean of ½ (target − V)²", only=("continuous_acer", *ON_POLICY)),
    "behaviour_kl": Metric(
        "nats", "mean KL divergence from the policy that acted to the policy that is learned", only=ON_POLICY
    ),
    "step_scale": Metric("1", "share of the natural step that the line search took; 0: none", only=("trpo",)),
    "clipped_share": Metric("1", "share of samples whose ratio of probabilities is outside 1 ± `clip`", only=("ppo",)),
    "intrinsic_reward": Metric("reward", "mean that curiosity paid for a step", needs=CURIOSITY),
    "forward_loss": Metric(
        "1", "curiosity: mean of ½ ‖predicted − actual‖² of the features of the next observation", needs=CURIOSITY
    ),
    "inverse_loss": Metric(
        "1",
        "curiosity: mean cross-entropy of the actions as predicted from both observations, ½ ‖error‖² of continuous ones",
        needs=CURIOSITY,
    ),
    "entropy": Metric(
        "nats", "mean entropy of the policy; SAC's is estimated as −log π, in [−1, 1]", only=("acer", "sac", *ON_POLICY)
    ),
    "temperature": Metric("1", "weight of the entropy (alpha)", only=("sac",)),
    "average_policy_kl": Metric(
        "nats", "mean KL divergence from the average policy to the policy", only=WITH_TRUST_REGION
    ),
    "trust_region_share": Metric(
        "1", "share of samples whose gradient the trust region changed", only=WITH_TRUST_REGION
    ),
    "truncated_share": Metric("1", "share of samples whose importance weight was truncated", only=WITH_TRUST_REGION),
    "rho": Metric(
        "1", "mean importance weight of the actions taken, truncated at the threshold", only=WITH_TRUST_REGION
    ),
    "value": Metric(
        "reward",
        "mean of V: Σ π Q (ACER), the critic's estimate (continuous ACER, actor-critic, PPO, TRPO), max Q (Ape-X DQN, "
        "R2D2), or Q of the policy's action (DDPG, SAC)",
    ),
    "q_taken": Metric("reward", "mean Q of the actions taken", only=FROM_REPLAY_ALONE),
    "q_target": Metric("reward", "mean n-step target", only=FROM_REPLAY_ALONE),
    "td_error": Metric("reward", "mean absolute error, target − Q", only=FROM_REPLAY_ALONE),
    "importance": Metric("1", "mean importance weight of the samples in the loss", only=FROM_REPLAY_ALONE),
    "q_ret": Metric("reward", "mean Retrace target", only=WITH_TRUST_REGION),
    "q_opc": Metric(
        "reward", "mean target without truncation, with which the policy is judged", only=("continuous_acer",)
    ),
    "grad_norm": Metric("1", "mean global gradient norm before clipping"),
    "time_learning": Metric("s / s", "share of the time spent in updates"),
    "time_taking": Metric("s / s", "share of the time spent copying unrolls into replay and answering"),
    "time_saving": Metric("s / s", "share of the time spent writing weights and metrics"),
}
RATES = frozenset(name for name, metric in METRICS.items() if metric.unit.endswith("/ s"))
"""The metrics that are divided by the time since the last row; they mean nothing if that is too short."""
MIN_INTERVAL = 0.5  # of `logging.every_seconds`, below which rates are left out


class Settings(Protocol):
    """The settings of an algorithm."""

    @property
    def name(self) -> str:
        """The algorithm's."""


def written(name: str, algorithm: Settings) -> bool:
    """Whether runs with these settings of the algorithm write the metric `name`."""
    metric = METRICS[name]
    return (not metric.only or algorithm.name in metric.only) and (
        not metric.needs or bool(getattr(algorithm, metric.needs, False))
    )


class Timers:
    """Measures how a process spends its time: the share of each phase in the time since the last `shares()`."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._seconds: dict[str, float] = defaultdict(float)
        self._since = clock()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Adds the duration of the `with` block to metric `time_<name>`."""
        start = self._clock()
        try:
            yield
        finally:
            self._seconds[f"time_{name}"] += self._clock() - start

    def shares(self) -> dict[str, float]:
        """The share of each phase in the time since the last call."""
        now = self._clock()
        elapsed = max(now - self._since, 1e-9)
        shares = {name: seconds / elapsed for name, seconds in self._seconds.items()}
        self._seconds.update(dict.fromkeys(self._seconds, 0.0))
        self._since = now
        return shares


class Means:
    """Means of metrics since the last `take`. Values may be scalar tensors, which are read only then."""

    def __init__(self) -> None:
        self._sums: dict[str, Any] = {}
        self._counts: Counter[str] = Counter()

    def add(self, values: Mapping[str, Any]) -> None:
        """Adds one set of values; a name may be missing, as a policy's loss is from an update of its critics alone."""
        for name, value in values.items():
            self._sums[name] = self._sums.get(name, 0.0) + value
        self._counts.update(values.keys())

    def take(self) -> dict[str, float]:
        """The means since the last call; empty if nothing was added."""
        means = {name: float(total) / self._counts[name] for name, total in self._sums.items()}
        self._sums, self._counts = {}, Counter()
        return means
