"""Settings of the algorithms that learn from fresh data only: actor-critic, PPO and TRPO."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from apex_acer.config.algorithm import Sampling, SegmentConfig
from apex_acer.config.checks import at_least, fraction, positive, require

if TYPE_CHECKING:
    from apex_acer.config.run import RunConfig


@dataclass(frozen=True)
class OnPolicyConfig(SegmentConfig):
    """What algorithms without replay have in common: each batch of segments is learned from as it arrives, and dropped."""

    has_replay = False

    replay_ratio: float = 0.0
    """Always 0: these algorithms have no replay."""
    pipelined: bool = False
    """Let actors go on with older weights during an update; otherwise they wait for it, and every step is on-policy."""
    gae_lambda: float = 0.95
    """How far rewards count directly: 0: one step, then the critic's value; 1: to the end of the segment (lambda)."""
    normalise_advantages: bool = False
    """Give the advantages of each batch a mean of 0 and a standard deviation of 1."""
    initial_std: float = 1.0
    """Standard deviation of a Gaussian policy in the normalised box [−1, 1] at the start; it is learned, and does not depend
    on the observation."""

    @property
    def waits(self) -> bool:
        """Whether actors wait for each update."""
        return not self.pipelined

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.replay_ratio == 0, "algorithm.replay_ratio", self.replay_ratio, f"{self.name} has no replay; give 0"
        )
        fraction("algorithm", {"gae_lambda": self.gae_lambda})
        positive("algorithm", {"initial_std": self.initial_std})

    def require_fit(self, run: RunConfig) -> None:
        """Requires that the section `[replay]` has nothing but defaults."""
        for key in dataclasses.fields(run.replay):
            value = getattr(run.replay, key.name)
            require(value == key.default, f"replay.{key.name}", value, f"{self.name} has no replay; leave it out")


@dataclass(frozen=True)
class PolicyGradientConfig(OnPolicyConfig):
    """What the algorithms that descend one loss of policy and critic have in common."""

    value_cost: float = 0.5
    """Weight of the critic's loss ½ (target − V)²."""
    entropy_cost: float = 0.0
    """Weight of the entropy bonus."""
    curiosity: float = 0.0
    """Weight of a reward for transitions that a learned model predicts badly (ICM, arXiv 1705.05363); 0: none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        names = ("value_cost", "entropy_cost", "curiosity")
        at_least(0, "algorithm", {name: getattr(self, name) for name in names})


@dataclass(frozen=True)
class ActorCriticConfig(PolicyGradientConfig):
    """Actor-critic: A2C; pipelined A3C (arXiv 1602.01783), with V-trace IMPALA (arXiv 1802.01561); REINFORCE."""

    name: str = "actor_critic"
    targets: Literal["gae", "vtrace"] = "gae"
    """Advantages by generalised advantage estimation, or by V-trace, which corrects for data of older weights."""
    whole_episodes: bool = False
    """Each segment is one episode from its start, cut after `unroll_length` steps if it is longer."""
    baseline: bool = True
    """Judge actions by how much better they are than the critic's value; otherwise by their return alone (REINFORCE)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        without = "without a baseline there is no value to bootstrap from; give algorithm.gae_lambda 1 and targets gae"
        plain = self.gae_lambda == 1 and self.targets == "gae"
        require(self.baseline or plain, "algorithm.baseline", self.baseline, without)

    @property
    def sampling(self) -> Sampling:
        """Fresh sequences, each in one batch; they may be whole episodes."""
        return Sampling(fresh=True, whole_episodes=self.whole_episodes)


@dataclass(frozen=True)
class PpoConfig(PolicyGradientConfig):
    """Proximal policy optimisation (arXiv 1707.06347)."""

    name: str = "ppo"
    normalise_advantages: bool = True
    """Give the advantages of each batch a mean of 0 and a standard deviation of 1."""
    epochs: int = 10
    """Times that each batch is learned from."""
    minibatches: int = 4
    """Optimizer steps per epoch, each on an equal share of the batch's steps, or of its segments if there is an LSTM."""
    clip: float = 0.2
    """The ratio of probabilities counts as far as 1 ± this value (epsilon)."""
    value_clip: float = 0.0
    """V counts as far as its value before the update ± this value; 0: without limit."""
    target_kl: float = 0.0
    """No more epochs for a batch after one whose KL divergence from the old policy is above 1.5 times this; 0: no limit."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, "algorithm", {"epochs": self.epochs, "minibatches": self.minibatches})
        positive("algorithm", {"clip": self.clip})
        at_least(0, "algorithm", {"value_clip": self.value_clip, "target_kl": self.target_kl})

    def require_fit(self, run: RunConfig) -> None:
        """Also requires that minibatches are of equal size."""
        super().require_fit(run)
        require_divisor("minibatches", self.minibatches, run)


@dataclass(frozen=True)
class TrpoConfig(OnPolicyConfig):
    """Trust region policy optimisation (arXiv 1502.05477), with generalised advantages (arXiv 1506.02438)."""

    name: str = "trpo"
    normalise_advantages: bool = True
    """Give the advantages of each batch a mean of 0 and a standard deviation of 1."""
    max_kl: float = 0.01
    """Bound on the mean KL divergence between the policies before and after an update (delta)."""
    damping: float = 0.1
    """Added to the Fisher matrix's diagonal."""
    value_epochs: int = 10
    """Times that the critic learns from each batch."""
    value_minibatches: int = 4
    """Optimizer steps of the critic per epoch, each on an equal share of the batch's steps."""

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("algorithm", {"max_kl": self.max_kl})
        at_least(0, "algorithm", {"damping": self.damping})
        at_least(1, "algorithm", {"value_epochs": self.value_epochs, "value_minibatches": self.value_minibatches})

    def require_fit(self, run: RunConfig) -> None:
        """Also requires a network without memory, one learner, and that minibatches are of equal size."""
        super().require_fit(run)
        require(run.network.lstm == 0, "network.lstm", run.network.lstm, "trpo has no memory; give 0")
        require(run.learner.count == 1, "learner.count", run.learner.count, "trpo has one learner; give 1")
        require_divisor("value_minibatches", self.value_minibatches, run)


def require_divisor(key: str, value: int, run: RunConfig) -> None:
    """Requires that the batch of each learner can be cut into `value` equal minibatches."""
    segments = run.learner.batch_size // run.learner.count
    steps, what = segments * run.algorithm.unroll_length, "learner.batch_size * algorithm.unroll_length"
    size, what = (segments, "learner.batch_size") if run.network.lstm else (steps, what)
    require(size % value == 0, f"algorithm.{key}", value, f"give a divisor of {what} ({size})")
