"""The table of all metrics, which says what each means and how it is drawn, and what measures them: timers and means."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

ACTOR, EVALUATOR, LEARNER, BOTH = ("actor",), ("evaluator",), ("learner",), ("learner", "actor")


class Metric(NamedTuple):
    """What a metric means, who writes it, and where it is drawn."""

    unit: str
    """Of its axis, too; "1": none. Metrics in `/ s` are rates."""
    meaning: str
    by: tuple[str, ...] = LEARNER
    """The kinds of process whose rows have it."""
    figure: str = ""
    """The file of `apex-acer plot` that has a panel of it, a key of `views.figures.FIGURES`; empty: none."""
    chart: tuple[str, str] = ("", "")
    """Category and title of its chart in the dashboard; metrics of the same title share one. Empty: none."""
    only: tuple[str, ...] = ()
    """The algorithms that have it; empty: all."""
    needs: str = ""
    """The setting of the algorithm without which it is not written."""


OWN = Metric("1", "a metric of a user's own algorithm", by=("learner", "actor", "evaluator"), figure="learner")
"""The entry of every name that the table lacks."""
MAX_NAME = 100  # characters
PLAYING, LOSSES, TRUST_REGION = "Actors and evaluator", "Losses and values", "Trust region"
EXPLORING, THROUGHPUT = "Exploration", "Throughput and waiting"
RETURN, LENGTH, TARGET = (PLAYING, "Return"), (PLAYING, "Episode length"), (LOSSES, "Value and its target")
STEP, CURIOUS = (
    (TRUST_REGION, "Share of ratios that are clipped, of the natural step"),
    (EXPLORING, "Losses of curiosity"),
)
ACER = "acer", "continuous_acer"
FROM_REPLAY_ALONE = "apex_dqn", "r2d2", "ddpg", "sac"
ON_POLICY = "actor_critic", "ppo", "trpo"
CURIOSITY = "curiosity"
METRICS = {
    # episodes and evaluations
    "episode_return": Metric(
        "reward",
        "mean unclipped return of the whole episodes that ended since the last row",
        by=ACTOR,
        figure="returns",
        chart=RETURN,
    ),
    "episode_return_max": Metric("reward", "best unclipped return among them", by=ACTOR),
    "episode_length": Metric("env steps", "mean length of those episodes", by=ACTOR, chart=LENGTH),
    "episodes": Metric("episodes", "episodes ended since the start of the process", by=ACTOR),
    "eval_return": Metric(
        "reward",
        "mean unclipped return over `evaluation.episodes` whole episodes",
        by=EVALUATOR,
        figure="returns",
        chart=RETURN,
    ),
    "eval_return_std": Metric("reward", "standard deviation of those returns", by=EVALUATOR),
    "eval_return_min": Metric("reward", "lowest of those returns", by=EVALUATOR),
    "eval_return_max": Metric("reward", "highest of those returns", by=EVALUATOR),
    "eval_length": Metric("env steps", "mean length of those episodes", by=EVALUATOR, chart=LENGTH),
    "eval_env_steps": Metric(
        "env steps", "environment steps that the evaluated weights were trained for", by=EVALUATOR
    ),
    "eval_seconds": Metric("s", "duration of the evaluation", by=EVALUATOR),
    "best_return": Metric("reward", "`eval_return` of the best weights so far, as it was confirmed"),
    # how far a run is
    "env_steps": Metric(
        "env steps", "environment steps of accepted unrolls, learned from or not, without autoreset steps"
    ),
    "frames": Metric("frames", "env_steps times the action repeat"),
    "updates": Metric("updates", "optimizer steps applied"),
    "skipped_updates": Metric("updates", "updates that were skipped because they were not finite"),
    "replay_steps": Metric("env steps", "environment steps held in replay"),
    "fresh_sequences": Metric("sequences", "sequences accepted and not yet trained on"),
    "refused_messages": Metric("messages", "malformed, stale or foreign messages refused"),
    "clients": Metric("clients", "clients that are connected, if environments are remote clients", by=ACTOR),
    "exploration": Metric(
        "1",
        "the actor's mean temperature (ACER for discrete actions, actor-critic, PPO, TRPO), standard deviation (continuous "
        "ACER), epsilon (Ape-X DQN, R2D2) or scale of noise (DDPG); 1 for SAC",
        by=ACTOR,
    ),
    "env_steps_per_s": Metric(
        "env steps / s",
        "environment steps per second since the last row, without autoreset steps",
        by=BOTH,
        figure="throughput",
        chart=(PLAYING, "Environment steps per second"),
    ),
    "policy_lag": Metric(
        "updates",
        "age of an unroll's weights: on arrival (actors), when trained on (learner, mean)",
        by=BOTH,
        figure="lag",
        chart=(PLAYING, "Policy lag"),
    ),
    # what an algorithm computes
    "loss": Metric(
        "1", "what the update minimises: the losses below, weighted as the algorithm says", figure="learner"
    ),
    "policy_loss": Metric(
        "1",
        "the policy's loss: surrogate of the projected gradient, of which only the gradient has a meaning (ACER); −Q of its "
        "actions (DDPG), with temperature · log π (SAC); −advantage · log π (actor-critic); the clipped surrogate "
        "(PPO), or the surrogate before the update (TRPO)",
        figure="learner",
        chart=(LOSSES, "Policy loss"),
        only=(*ACER, "ddpg", "sac", *ON_POLICY),
    ),
    "q_loss": Metric(
        "reward²",
        "mean of ½ (target − Q)², summed over critics, in Ape-X DQN and R2D2 the Huber loss; the target is `q_ret` or "
        "`q_target`",
        figure="learner",
        chart=(LOSSES, "Q loss"),
        only=(*ACER, *FROM_REPLAY_ALONE),
    ),
    "value_loss": Metric(
        "reward²",
        "mean of ½ (target − V)²",
        figure="learner",
        chart=(LOSSES, "Value loss"),
        only=("continuous_acer", *ON_POLICY),
    ),
    "behaviour_kl": Metric(
        "nats",
        "mean KL divergence from the policy that acted to the policy that is learned",
        chart=(TRUST_REGION, "KL from the policy that acted"),
        only=ON_POLICY,
    ),
    "step_scale": Metric(
        "1", "share of the natural step that the line search took; 0: none", chart=STEP, only=("trpo",)
    ),
    "clipped_share": Metric(
        "1", "share of samples whose ratio of probabilities is outside 1 ± `clip`", chart=STEP, only=("ppo",)
    ),
    "entropy": Metric(
        "nats",
        "mean entropy of the policy; SAC's is estimated as −log π, in [−1, 1]",
        figure="learner",
        chart=(EXPLORING, "Entropy"),
        only=("acer", "sac", *ON_POLICY),
    ),
    "action_std": Metric(
        "1",
        "standard deviation of continuous actions in [−1, 1], mean over their dimensions: of an actor's steps since its "
        "last row, or of the policy (learner; SAC's before tanh; DDPG's has none)",
        by=BOTH,
        figure="learner",
        chart=(EXPLORING, "Standard deviation of actions"),
        only=("continuous_acer", "ddpg", "sac", *ON_POLICY),
    ),
    "temperature": Metric(
        "1",
        "weight of the entropy (alpha)",
        figure="learner",
        chart=(EXPLORING, "Temperature of the entropy"),
        only=("sac",),
    ),
    "intrinsic_reward": Metric(
        "reward", "mean that curiosity paid for a step", chart=(EXPLORING, "Reward for curiosity"), needs=CURIOSITY
    ),
    "forward_loss": Metric(
        "1",
        "curiosity: mean of ½ ‖predicted − actual‖² of the features of the next observation",
        chart=CURIOUS,
        needs=CURIOSITY,
    ),
    "inverse_loss": Metric(
        "1",
        "curiosity: mean cross-entropy of the actions as predicted from both observations, ½ ‖error‖² of continuous ones",
        chart=CURIOUS,
        needs=CURIOSITY,
    ),
    "average_policy_kl": Metric(
        "nats",
        "mean KL divergence from the average policy to the policy",
        figure="learner",
        chart=(TRUST_REGION, "KL from the average policy"),
        only=ACER,
    ),
    "trust_region_share": Metric(
        "1",
        "share of samples whose gradient the trust region changed",
        figure="learner",
        chart=(TRUST_REGION, "Share of samples it changed"),
        only=ACER,
    ),
    "truncated_share": Metric("1", "share of samples whose importance weight was truncated", only=ACER),
    "rho": Metric("1", "mean importance weight of the actions taken, truncated at the threshold", only=ACER),
    "learning_rate": Metric("1", "current learning rate", chart=(LOSSES, "Learning rate")),
    "grad_norm": Metric(
        "1", "mean global gradient norm before clipping", figure="learner", chart=(LOSSES, "Gradient norm")
    ),
    "value": Metric(
        "reward",
        "mean of V: Σ π Q (ACER), the critic's estimate (continuous ACER, actor-critic, PPO, TRPO), max Q (Ape-X DQN, "
        "R2D2), or Q of the policy's action (DDPG, SAC)",
        figure="learner",
        chart=TARGET,
    ),
    "q_ret": Metric("reward", "mean Retrace target", figure="learner", chart=TARGET, only=ACER),
    "q_opc": Metric(
        "reward",
        "mean target without truncation, with which the policy is judged",
        figure="learner",
        chart=TARGET,
        only=("continuous_acer",),
    ),
    "q_taken": Metric("reward", "mean Q of the actions taken", figure="learner", only=FROM_REPLAY_ALONE),
    "q_target": Metric("reward", "mean n-step target", figure="learner", chart=TARGET, only=FROM_REPLAY_ALONE),
    "td_error": Metric(
        "reward",
        "mean absolute error, target − Q",
        figure="learner",
        chart=(LOSSES, "TD error"),
        only=FROM_REPLAY_ALONE,
    ),
    "importance": Metric("1", "mean importance weight of the samples in the loss", only=FROM_REPLAY_ALONE),
    # throughput, and where time goes
    "updates_per_s": Metric(
        "updates / s",
        "optimizer steps per second since the last row",
        figure="throughput",
        chart=(THROUGHPUT, "Updates per second"),
    ),
    "replay_ratio": Metric(
        "1",
        "replayed steps per fresh step since replay began (`replay.start`)",
        chart=(THROUGHPUT, "Replayed per fresh step"),
    ),
    "time_environment": Metric("s / s", "share of the time spent inside the environments", by=ACTOR, figure="time"),
    "time_policy": Metric("s / s", "share of the time spent choosing actions", by=ACTOR, figure="time"),
    "time_learning": Metric(
        "s / s", "share of the time spent in updates", figure="time", chart=(THROUGHPUT, "Share of time learning")
    ),
    "time_taking": Metric("s / s", "share of the time spent copying unrolls into replay and answering", figure="time"),
    "time_saving": Metric("s / s", "share of the time spent writing weights and metrics", figure="time"),
    "time_waiting": Metric(
        "s / s",
        "share of the time an actor waits for the learner, or the learner for unrolls",
        by=BOTH,
        figure="time",
        chart=(THROUGHPUT, "Share of time waiting"),
    ),
}
"""Every metric of the package by name, in the order of the page, the panels and the charts."""
RATES = frozenset(name for name, metric in METRICS.items() if metric.unit.endswith("/ s"))
"""The metrics that are divided by the time since the last row; they mean nothing if that is too short."""
MIN_INTERVAL = 0.5  # of `logging.every_seconds`, below which rates are left out


def written(name: str, algorithm: Any) -> bool:
    """Whether runs with these settings of an algorithm write the metric `name`."""
    metric, names = METRICS[name], {algorithm.name, type(algorithm).name}  # a user's may derive from one of them
    has = not metric.only or not names.isdisjoint(metric.only)
    return has and (not metric.needs or bool(getattr(algorithm, metric.needs, False)))


def is_name(name: str) -> bool:
    """Whether a metric can have this name: files, charts and lines of a log show it."""
    return 0 < len(name) <= MAX_NAME and name.isprintable()


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
