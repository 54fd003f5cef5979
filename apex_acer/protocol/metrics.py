"""The table of all metrics (meaning, writers, charts), and their measurement by timers and means."""

from __future__ import annotations

import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

ACTOR, EVALUATOR, LEARNER, BOTH = ("actor",), ("evaluator",), ("learner",), ("learner", "actor")
CLIENT = "client"
"""Kind of source of a remote client's rows; the source is `client_<name>`."""
ACTING = (*ACTOR, CLIENT)
PLAYERS = ("actor", "evaluator")
MAX_NAME = 100  # characters


class Metric(NamedTuple):
    """What a metric means, which processes write it, and where it is drawn."""

    unit: str
    """Unit of the metric and of its axis; "1": none. Metrics in `/ s` are rates."""
    meaning: str
    by: tuple[str, ...] = LEARNER
    """Roles of the processes whose rows have it."""
    figure: str = ""
    """File of `apex-acer plot` that has a panel of it, a key of `views.figures.FIGURES`; empty: none."""
    chart: tuple[str, str] = ("", "")
    """Category and title of its chart in the dashboard; metrics of the same title share one. Empty: none."""
    only: tuple[str, ...] = ()
    """Algorithms that have it; empty: all."""
    needs: str = ""
    """Setting or class variable of the algorithm's settings without which it is not written."""


def _learning(
    unit: str, meaning: str, chart: tuple[str, str] = ("", ""), only: tuple[str, ...] = (), needs: str = ""
) -> Metric:
    """A metric of the learner with a panel in the figure `learner`."""
    return Metric(unit, meaning, LEARNER, "learner", chart, only, needs)


OWN = Metric("1", "a metric of a user's own algorithm", ("learner", "actor", "evaluator"), "learner")
"""The entry of every name that the table lacks."""
PLAYING, LOSSES, TRUST_REGION, AUXILIARY = (
    "Actors and evaluator",
    "Losses and values",
    "Trust region",
    "Auxiliary losses",
)
EXPLORING, THROUGHPUT = "Exploration", "Throughput and waiting"
RETURN, LENGTH, TARGET = (PLAYING, "Return"), (PLAYING, "Episode length"), (LOSSES, "Value and its target")
STEP, CURIOUS = (TRUST_REGION, "Clipped share, step scale"), (EXPLORING, "Losses of curiosity")
ACER, ON_POLICY = ("acer", "continuous_acer"), ("actor_critic", "ppo", "trpo")
POLICY = (*ON_POLICY, "unreal")
REPLAYED = "apex_dqn", "r2d2", "ddpg", "sac"
VALUE_BASED = (*REPLAYED, "pqn")
GRADIENT, FITNESS = "has_optimizer", (PLAYING, "Fitness")
METRICS = {
    # episodes and evaluations
    "episode_return": Metric(
        "reward", "mean unclipped return of the episodes that ended since the last row", ACTING, "returns", RETURN
    ),
    "episode_return_max": Metric("reward", "highest unclipped return of those episodes", ACTING),
    "episode_length": Metric("env steps", "mean length of those episodes", ACTOR, chart=LENGTH),
    "episodes": Metric("episodes", "episodes ended since the start of the process", ACTING),
    "eval_return": Metric("reward", "mean unclipped return of an evaluation's episodes", EVALUATOR, "returns", RETURN),
    "eval_return_std": Metric("reward", "standard deviation of the returns in the evaluation", EVALUATOR),
    "eval_return_min": Metric("reward", "lowest return in the evaluation", EVALUATOR),
    "eval_return_max": Metric("reward", "highest return in the evaluation", EVALUATOR),
    "eval_length": Metric("env steps", "mean length of the evaluation's episodes", EVALUATOR, chart=LENGTH),
    "eval_env_steps": Metric("env steps", "environment steps that the evaluated weights were trained on", EVALUATOR),
    "eval_seconds": Metric("s", "duration of the evaluation", EVALUATOR),
    "best_return": Metric("reward", "confirmed `eval_return` of the best weights so far"),
    # how far a run is
    "env_steps": Metric(
        "env steps", "environment steps of accepted unrolls, learned from or not, without autoreset steps"
    ),
    "frames": Metric("frames", "`env_steps` times the action repeat"),
    "updates": Metric("updates", "optimizer steps applied; generations of CEM"),
    "skipped_updates": Metric("updates", "updates skipped because they were not finite"),
    "replay_steps": Metric("env steps", "environment steps in replay"),
    "fresh_sequences": Metric("sequences", "accepted sequences that have not been trained on yet"),
    "refused_messages": Metric("messages", "malformed, stale or foreign messages refused"),
    "clients": Metric("clients", "connected remote clients; each agent of a client counts", ACTING),
    "refused_clients": Metric(
        "clients", "remote clients that were refused: they broke a rule, or there was no place for them", ACTING
    ),
    "team_return": Metric("reward", "mean sum of the returns of a game's agents, if there are several", PLAYERS),
    "win_share": Metric(
        "1", "share of games of two players that the player won: its return is positive", PLAYERS, "returns"
    ),
    "draw_share": Metric("1", "share of games of two players whose return is 0", PLAYERS),
    "loss_share": Metric("1", "share of games of two players that the player lost", PLAYERS),
    "rating": Metric(
        "1",
        "self-play: Elo rating of the newest weights by their games against snapshots since the actor's start; 400 more are "
        "ten wins for each loss",
        ACTOR,
        "returns",
    ),
    "exploration": Metric(
        "1",
        "mean temperature of the actor's policy (ACER for discrete actions, actor-critic, PPO, TRPO), standard deviation "
        "(continuous ACER), epsilon (Ape-X DQN, R2D2, PQN), scale of noise (DDPG) or mean standard deviation of parameters "
        "(CEM); 1 for SAC",
        ACTOR,
    ),
    "env_steps_per_s": Metric(
        "env steps / s",
        "environment steps per second since the last row, without autoreset steps",
        (*BOTH, CLIENT),
        "throughput",
        (PLAYING, "Environment steps per second"),
    ),
    "policy_lag": Metric(
        "updates",
        "age of the weights that acted: when the unroll arrives (actor), mean when it is trained on (learner)",
        BOTH,
        "lag",
        (PLAYING, "Policy lag"),
    ),
    # what an algorithm computes
    "loss": _learning(
        "1", "total loss that the update minimises, with the algorithm's weights of its parts", needs=GRADIENT
    ),
    "policy_loss": _learning(
        "1",
        "loss of the policy: surrogate of the projected gradient, whose value has no meaning (ACER); −Q of its actions "
        "(DDPG), plus temperature · log π (SAC); −advantage · log π (actor-critic); clipped surrogate (PPO); surrogate "
        "before the update (TRPO)",
        (LOSSES, "Policy loss"),
        (*ACER, "ddpg", "sac", *POLICY),
    ),
    "q_loss": _learning(
        "reward²",
        "mean of ½ (target − Q)², summed over critics (Ape-X DQN, R2D2: Huber loss); the target is `q_ret` or `q_target`",
        (LOSSES, "Q loss"),
        (*ACER, *VALUE_BASED),
    ),
    "value_loss": _learning("reward²", "mean of ½ (target − V)²", (LOSSES, "Value loss"), ("continuous_acer", *POLICY)),
    "behaviour_kl": Metric(
        "nats",
        "mean KL divergence from the behaviour policy to the policy",
        chart=(TRUST_REGION, "KL from the policy that acted"),
        only=POLICY,
    ),
    "step_scale": Metric(
        "1", "fraction of the natural gradient step that the line search took; 0: none", chart=STEP, only=("trpo",)
    ),
    "clipped_share": Metric("1", "fraction of samples whose ratio is outside 1 ± `clip`", chart=STEP, only=("ppo",)),
    "entropy": _learning(
        "nats",
        "mean entropy of the policy; SAC estimates it as −log π of actions in [−1, 1]",
        (EXPLORING, "Entropy"),
        ("acer", "sac", *POLICY),
    ),
    "action_std": Metric(
        "1",
        "standard deviation of continuous actions in [−1, 1], mean over dimensions: of the actions since the last row "
        "(actor), or of the policy (learner; before tanh in SAC, none in DDPG)",
        BOTH,
        "learner",
        (EXPLORING, "Standard deviation of actions"),
        ("continuous_acer", "ddpg", "sac", *ON_POLICY, "cem"),
    ),
    "temperature": _learning("1", "weight α of the entropy", (EXPLORING, "Temperature of the entropy"), ("sac",)),
    "intrinsic_reward": Metric(
        "reward", "mean curiosity reward of a step", chart=(EXPLORING, "Reward for curiosity"), needs="curiosity"
    ),
    "forward_loss": Metric(
        "1",
        "curiosity: mean of ½ ‖predicted − actual‖² of the next observation's features",
        chart=CURIOUS,
        needs="curiosity",
    ),
    "inverse_loss": Metric(
        "1",
        "curiosity: mean cross-entropy of actions predicted from two observations; ½ ‖error‖² of continuous actions",
        chart=CURIOUS,
        needs="curiosity",
    ),
    "value_replay_loss": _learning(
        "reward²", "mean of ½ (target − V)² on replayed sequences", (AUXILIARY, "Value replay"), ("unreal",)
    ),
    "pixel_control_loss": Metric(
        "1",
        "mean of ½ (target − Q)² of pixel control, summed over cells",
        figure="learner",
        chart=(AUXILIARY, "Pixel control"),
        only=("unreal",),
        needs="pixel_control",
    ),
    "pixel_change": Metric(
        "1",
        "mean absolute change of pixels per step, the reward of pixel control",
        chart=(AUXILIARY, "Change of pixels"),
        only=("unreal",),
        needs="pixel_control",
    ),
    "reward_prediction_loss": Metric(
        "nats",
        "mean cross-entropy of the next reward's sign; half of the weight is on non-zero rewards",
        figure="learner",
        chart=(AUXILIARY, "Reward prediction"),
        only=("unreal",),
        needs="reward_prediction",
    ),
    "reward_accuracy": Metric(
        "1",
        "share of rewards whose sign is predicted; half of the weight is on non-zero rewards",
        chart=(AUXILIARY, "Predicted rewards"),
        only=("unreal",),
        needs="reward_prediction",
    ),
    "average_policy_kl": _learning(
        "nats",
        "mean KL divergence from the average policy to the policy",
        (TRUST_REGION, "KL from the average policy"),
        ACER,
    ),
    "trust_region_share": _learning(
        "1",
        "fraction of samples whose gradient the trust region changed",
        (TRUST_REGION, "Share of samples it changed"),
        ACER,
    ),
    "truncated_share": Metric("1", "fraction of samples whose importance weight was truncated", only=ACER),
    "rho": Metric("1", "mean importance weight of the actions taken, truncated at the threshold", only=ACER),
    "learning_rate": Metric("1", "learning rate", chart=(LOSSES, "Learning rate"), needs=GRADIENT),
    "grad_norm": _learning("1", "mean global gradient norm before clipping", (LOSSES, "Gradient norm"), needs=GRADIENT),
    "fitness": _learning("reward", "mean fitness of a generation's members", FITNESS, ("cem",)),
    "elite_fitness": _learning("reward", "mean fitness of a generation's elites", FITNESS, ("cem",)),
    "member_std": _learning(
        "1",
        "mean standard deviation of the parameters of the next generation's members",
        (EXPLORING, "Standard deviation of parameters"),
        ("cem",),
    ),
    "value": _learning(
        "reward",
        "mean of V: Σ π Q (ACER), the critic's estimate (continuous ACER, actor-critic, UNREAL, PPO, TRPO), max Q (Ape-X "
        "DQN, R2D2), or Q of the policy's action (DDPG, SAC)",
        TARGET,
    ),
    "q_ret": _learning("reward", "mean Retrace target", TARGET, ACER),
    "q_opc": _learning(
        "reward", "mean off-policy corrected target of the policy (Q_opc)", TARGET, ("continuous_acer",)
    ),
    "q_taken": _learning("reward", "mean Q of the actions taken", only=VALUE_BASED),
    "q_target": _learning("reward", "mean n-step target (PQN: Q(λ) target)", TARGET, VALUE_BASED),
    "td_error": _learning("reward", "mean absolute TD error, target − Q", (LOSSES, "TD error"), VALUE_BASED),
    "importance": Metric("1", "mean importance weight of samples in the loss", only=REPLAYED),
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
    "time_environment": Metric("s / s", "fraction of time inside the environments", ACTOR, "time"),
    "time_policy": Metric("s / s", "fraction of time choosing actions", ACTOR, "time"),
    "time_learning": Metric(
        "s / s", "fraction of time in updates", LEARNER, "time", (THROUGHPUT, "Share of time learning")
    ),
    "time_taking": Metric("s / s", "fraction of time copying unrolls into replay and answering", LEARNER, "time"),
    "time_saving": Metric("s / s", "fraction of time writing weights and metrics", LEARNER, "time"),
    "time_waiting": Metric(
        "s / s",
        "fraction of time in which an actor waits for the learner, or the learner for unrolls",
        BOTH,
        "time",
        (THROUGHPUT, "Share of time waiting"),
    ),
}
"""Every metric of the package by name, in the order of the page, the panels and the charts."""
RATES = frozenset(name for name, metric in METRICS.items() if metric.unit.endswith("/ s"))
"""The metrics that are divided by the time since the last row."""
MIN_INTERVAL = 0.5  # as a fraction of `logging.every_seconds`; a row after less has no rates


def written(name: str, algorithm: Any) -> bool:
    """Whether a run with the settings `algorithm` writes the metric `name`."""
    metric, names = METRICS[name], {algorithm.name, type(algorithm).name}  # a user's algorithm may derive from ours
    has = not metric.only or not names.isdisjoint(metric.only)
    return has and (not metric.needs or bool(getattr(algorithm, metric.needs, False)))


def is_name(name: str) -> bool:
    """Whether `name` can name a metric: it is printable, because files, charts and logs show it, and not too long."""
    return 0 < len(name) <= MAX_NAME and name.isprintable()


def is_client(name: str) -> bool:
    """Whether `name` can name a client's folder of TensorBoard; the server of the clients makes such names."""
    return len(name) <= MAX_NAME and re.fullmatch(r"[\w.@-]+", name, re.ASCII) is not None


class Timers:
    """Measures the fraction of time that a process spends in each phase."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._seconds: dict[str, float] = defaultdict(float)
        self._since = clock()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Adds the duration of the `with` block to the metric `time_<name>`."""
        start = self._clock()
        try:
            yield
        finally:
            self._seconds[f"time_{name}"] += self._clock() - start

    def shares(self) -> dict[str, float]:
        """Fraction of the time since the last call that was spent in each phase, by metric name."""
        now = self._clock()
        elapsed = max(now - self._since, 1e-9)
        shares = {name: seconds / elapsed for name, seconds in self._seconds.items()}
        self._seconds.update(dict.fromkeys(self._seconds, 0.0))
        self._since = now
        return shares


class Means:
    """Means of metrics between two calls of `take`; values may be scalar tensors, which are only read there."""

    def __init__(self) -> None:
        self._sums: dict[str, Any] = {}
        self._counts: Counter[str] = Counter()

    def add(self, values: Mapping[str, Any]) -> None:
        """Adds the metrics of one update, which may lack some names: an update of critics alone has no policy loss."""
        for name, value in values.items():
            self._sums[name] = self._sums.get(name, 0.0) + value
        self._counts.update(values.keys())

    def take(self) -> dict[str, float]:
        """Means of the values added since the last call; empty if there are none."""
        means = {name: float(total) / self._counts[name] for name, total in self._sums.items()}
        self._sums, self._counts = {}, Counter()
        return means
