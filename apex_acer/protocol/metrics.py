"""The table of all metrics with their units and meanings, and what measures them: timers and means."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple


class Metric(NamedTuple):
    """A metric's unit and meaning, as docs/metrics.md shows them."""

    unit: str
    meaning: str
    only: tuple[str, ...] = ()
    """The algorithms that write it; empty: all of them do."""


ACER = ("acer",)
POLICIES = ("acer", "ddpg", "sac")
WINDOWS = ("apex_dqn", "ddpg", "sac")
METRICS = {
    # actors and evaluator
    "episode_return": Metric("reward", "mean unclipped return of the whole episodes that ended since the last row"),
    "episode_return_max": Metric("reward", "best unclipped return among them"),
    "episode_length": Metric("env steps", "mean length of those episodes"),
    "episodes": Metric("episodes", "episodes ended since the start of the process"),
    "env_steps_per_s": Metric("env steps / s", "unmasked environment steps per second since the last row"),
    "policy_lag": Metric("updates", "age of an unroll's weights: on arrival (actors), when trained on (learner, mean)"),
    "exploration": Metric("1", "the actor's softmax temperature (ACER), mean epsilon (Ape-X DQN) or mean noise (DDPG)"),
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
    # learner
    "env_steps": Metric("env steps", "environment steps that the learner accepted, dummy steps not counted"),
    "frames": Metric("frames", "env_steps times the action repeat"),
    "best_return": Metric("reward", "highest `eval_return` so far"),
    "updates": Metric("updates", "optimizer steps applied"),
    "updates_per_s": Metric("updates / s", "optimizer steps per second since the last row"),
    "skipped_updates": Metric("updates", "updates that were skipped because they were not finite"),
    "replay_steps": Metric("env steps", "environment steps held in replay"),
    "replay_ratio": Metric("1", "replayed steps per fresh step since replay began (`replay.start`)"),
    "fresh_segments": Metric("segments", "segments accepted and not yet trained on"),
    "refused_messages": Metric("messages", "malformed, stale or foreign messages refused"),
    "learning_rate": Metric("1", "current learning rate"),
    "loss": Metric(
        "1", "Q loss (in ACER times q_cost), plus the losses of the policy and of the temperature, if there are any"
    ),
    "policy_loss": Metric(
        "1",
        "surrogate of the projected policy gradient (ACER), mean of −Q (DDPG) or of α log π − Q (SAC)",
        only=POLICIES,
    ),
    "q_loss": Metric("reward²", "mean of ½ (target − Q)², summed over critics; Huber loss in Ape-X DQN"),
    "entropy": Metric("nats", "mean entropy of the policy", only=("acer", "sac")),
    "temperature": Metric("reward / nat", "weight α of the entropy", only=("sac",)),
    "action_std": Metric("1", "mean standard deviation of the policy before tanh", only=("sac",)),
    "average_policy_kl": Metric("nats", "mean KL divergence from the average policy to the policy", only=ACER),
    "trust_region_share": Metric("1", "share of samples whose gradient the trust region changed", only=ACER),
    "truncated_share": Metric("1", "share of samples whose importance weight was truncated", only=ACER),
    "rho": Metric("1", "mean importance weight of the actions taken, truncated at the threshold", only=ACER),
    "value": Metric("reward", "mean of V = Σ π Q (ACER), of max Q (Ape-X DQN), or of Q of the policy's action"),
    "q_taken": Metric("reward", "mean Q of the actions taken, over critics", only=WINDOWS),
    "q_target": Metric("reward", "mean n-step target", only=WINDOWS),
    "td_error": Metric("reward", "mean |target − Q|", only=WINDOWS),
    "importance": Metric("1", "mean importance weight of the samples in the loss", only=WINDOWS),
    "q_ret": Metric("reward", "mean Retrace target", only=ACER),
    "grad_norm": Metric("1", "mean global gradient norm before clipping"),
    "time_learning": Metric("s / s", "share of the time spent in updates"),
    "time_taking": Metric("s / s", "share of the time spent copying unrolls into replay and answering"),
    "time_saving": Metric("s / s", "share of the time spent writing weights and metrics"),
}
RATES = frozenset(name for name, metric in METRICS.items() if metric.unit.endswith("/ s"))
"""The metrics that are divided by the time since the last row; they mean nothing if that is too short."""
MIN_INTERVAL = 0.5  # of `logging.every_seconds`, below which rates are left out


def written(name: str, algorithm: str) -> bool:
    """Whether runs of `algorithm` write the metric `name`."""
    only = METRICS[name].only
    return not only or algorithm in only


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
        self._counts: dict[str, int] = defaultdict(int)

    def add(self, values: Mapping[str, Any]) -> None:
        """Adds one set of values; a name that is missing in it keeps its mean."""
        for name, value in values.items():
            self._sums[name] = self._sums.get(name, 0.0) + value
            self._counts[name] += 1

    def take(self) -> dict[str, float]:
        """The means since the last call; empty if nothing was added."""
        means = {name: float(total) / self._counts[name] for name, total in self._sums.items()}
        self._sums, self._counts = {}, defaultdict(int)
        return means
