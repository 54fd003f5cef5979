"""The settings of the algorithms that learn from replay: ACER, Q-learning, DDPG and SAC."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from apex_acer.config.algorithm import AlgorithmConfig, SegmentConfig
from apex_acer.config.checks import at_least, fraction, positive, require

if TYPE_CHECKING:
    from apex_acer.config.run import RunConfig


@dataclass(frozen=True)
class AcerBaseConfig(SegmentConfig):
    """What ACER for discrete and for continuous actions have in common."""

    burn_in: int = 0
    """Number of first steps of a replayed segment that only warm up the recurrent state of both networks."""
    truncation_threshold: float = 10.0
    """Importance weights of the policy term are truncated at this value (c); a second term corrects the bias."""
    trust_region_delta: float = 1.0
    """Bound on the linearised KL divergence from the average policy, per sample."""
    ema_decay: float = 0.99
    """Decay of the average network's weights per update (alpha)."""
    q_cost: float = 0.5
    """Weight of the Q loss ½ (Q_ret − Q)²."""

    def __post_init__(self) -> None:
        super().__post_init__()
        fraction("algorithm", {"ema_decay": self.ema_decay})
        at_least(0, "algorithm", {"burn_in": self.burn_in})
        allowed = f"give less than algorithm.unroll_length ({self.unroll_length})"
        require(self.burn_in < self.unroll_length, "algorithm.burn_in", self.burn_in, allowed)
        at_least(0, "algorithm", {name: getattr(self, name) for name in ("truncation_threshold", "q_cost")})
        positive("algorithm", {"trust_region_delta": self.trust_region_delta})


@dataclass(frozen=True)
class AcerConfig(AcerBaseConfig):
    """ACER (arXiv 1611.01224)."""

    actions = "Discrete"

    name: str = "acer"
    entropy_cost: float = 0.01
    """Weight of the entropy bonus."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(0, "algorithm", {"entropy_cost": self.entropy_cost})


@dataclass(frozen=True)
class ContinuousAcerConfig(AcerBaseConfig):
    """ACER for continuous actions (arXiv 1611.01224, section 5)."""

    actions = "Box"

    name: str = "continuous_acer"
    truncation_threshold: float = 5.0
    """Importance weights of the policy term are truncated at this value (c); a second term corrects the bias."""
    ema_decay: float = 0.995
    """Decay of the average network's weights per update (alpha)."""
    q_cost: float = 0.5
    """Weight of the losses ½ (Q_ret − Q)² and ½ (target − V)²."""
    std: float = 0.3
    """Standard deviation of the policy in the normalised box [−1, 1] (sigma); it is not learned."""
    num_samples: int = 5
    """Actions of the policy over which the network averages the advantage (n)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("algorithm", {"std": self.std})
        at_least(1, "algorithm", {"num_samples": self.num_samples})


@dataclass(frozen=True)
class NStepConfig(AlgorithmConfig):
    """The settings of algorithms that learn from replay alone, from windows of n steps."""

    n_steps: int = 1
    """Rewards summed before the bootstrap; fewer if the episode or the segment ends earlier."""

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("algorithm", {"replay_ratio": self.replay_ratio})  # it learns from replay alone
        at_least(1, "algorithm", {"n_steps": self.n_steps})
        allowed = f"give at most algorithm.unroll_length ({self.unroll_length})"
        require(self.n_steps <= self.unroll_length, "algorithm.n_steps", self.n_steps, allowed)

    def require_fit(self, run: RunConfig) -> None:
        """Requires a network without memory, because single steps have no recurrent state, and no temperature."""
        lstm = run.network.lstm
        require(lstm == 0, "network.lstm", lstm, f"{self.name} learns from single steps; give 0")
        require_no_softmax(run)


@dataclass(frozen=True)
class SacConfig(NStepConfig):
    """Soft actor-critic (arXiv 1812.05905), for continuous actions."""

    actions = "Box"
    num_losses = 2

    name: str = "sac"
    critics: int = 2
    """Number of critics, of which the smallest estimate counts."""
    ema_decay: float = 0.995
    """Decay of the target critics' weights per update."""
    initial_temperature: float = 1.0
    """Weight of the entropy at the start; it is learned, so that the entropy comes to −1 nat per action dimension."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, "algorithm", {"critics": self.critics})
        fraction("algorithm", {"ema_decay": self.ema_decay})
        positive("algorithm", {"initial_temperature": self.initial_temperature})


@dataclass(frozen=True)
class DdpgConfig(NStepConfig):
    """DDPG (arXiv 1509.02971), for continuous actions; with two critics, delays and smoothing TD3 (arXiv 1802.09477)."""

    actions = "Box"
    num_losses = 2

    name: str = "ddpg"
    critics: int = 1
    """Number of critics, of which the smallest estimate is the target; 2 in TD3."""
    policy_every: int = 1
    """Updates of the critics for one of the policy and the target networks; 2 in TD3."""
    target_noise: float = 0.0
    """Standard deviation of the noise that is added to the target policy's actions; 0.2 in TD3."""
    target_noise_clip: float = 0.5
    """That noise is clipped to ± this value."""
    ema_decay: float = 0.995
    """Decay of the target networks' weights per update of the policy."""
    noise: Literal["gaussian", "ornstein_uhlenbeck"] = "gaussian"
    """Noise that is added to the actions in order to explore: new in each step, or correlated in time."""
    noise_std: float = 0.1
    """Standard deviation of what a step adds to the noise, for actions in [−1, 1], in the first environment; the i-th of N
    has noise_std ^ (1 + i / (N − 1) · `noise_alpha`)."""
    noise_alpha: float = 0.0
    """How much the environments' noise differs; 0: not at all."""
    noise_theta: float = 0.15
    """Share of Ornstein-Uhlenbeck noise that is forgotten in a step."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, "algorithm", {"critics": self.critics, "policy_every": self.policy_every})
        names = ("target_noise", "target_noise_clip", "noise_std", "noise_alpha")
        at_least(0, "algorithm", {name: getattr(self, name) for name in names})
        fraction("algorithm", {"ema_decay": self.ema_decay, "noise_theta": self.noise_theta})


@dataclass(frozen=True)
class ApexDqnConfig(NStepConfig):
    """Ape-X DQN (arXiv 1803.00933): Q-learning from single steps of replay, double, dueling, with n-step returns."""

    actions = "Discrete"

    name: str = "apex_dqn"
    n_steps: int = 3
    """Rewards summed before the bootstrap; fewer if the episode or the segment ends earlier."""
    double: bool = True
    """Double Q-learning: the network chooses the action to bootstrap from and the target network gives its value;
    otherwise the target network does both."""
    dueling: bool = True
    """Dueling network: Q is a value plus advantages, each with its own last hidden layer; otherwise one layer gives Q."""
    epsilon: float = 0.4
    """Share of random actions in the first environment; the i-th of N has epsilon ^ (1 + i / (N − 1) · `epsilon_alpha`)."""
    epsilon_alpha: float = 7.0
    """How much the environments' epsilons differ; 0: not at all."""
    evaluation_epsilon: float = 0.001
    """Share of random actions in evaluations, unless they are greedy."""
    target_every: int = 2500
    """Updates between two copies of the network into the target network."""
    value_rescaling: bool = False
    """Learn approximately the square root of Q, so that rewards need no clipping (Pohlen et al. 2018)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, "algorithm", {"target_every": self.target_every})
        at_least(0, "algorithm", {"epsilon_alpha": self.epsilon_alpha})
        fraction("algorithm", {"epsilon": self.epsilon, "evaluation_epsilon": self.evaluation_epsilon})


@dataclass(frozen=True)
class R2d2Config(ApexDqnConfig):
    """R2D2 (Kapturowski et al. 2019): Ape-X DQN with an LSTM, which learns from sequences."""

    name: str = "r2d2"
    n_steps: int = 5
    """Rewards summed before the bootstrap; fewer if the episode or the segment ends earlier."""
    value_rescaling: bool = True
    """Learn approximately the square root of Q, so that rewards need no clipping (Pohlen et al. 2018)."""
    burn_in: int = 0
    """Steps before each segment, the last ones of the segment before it, that only warm up the recurrent state."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(0, "algorithm", {"burn_in": self.burn_in})
        allowed = f"give at most algorithm.unroll_length ({self.unroll_length})"
        require(self.burn_in <= self.unroll_length, "algorithm.burn_in", self.burn_in, allowed)

    def require_fit(self, run: RunConfig) -> None:
        """Requires an LSTM, and no temperature."""
        lstm = run.network.lstm
        require(lstm > 0, "network.lstm", lstm, "r2d2 learns to remember; give 1 or more, or algorithm.name apex_dqn")
        require_no_softmax(run)


def require_no_softmax(run: RunConfig) -> None:
    """Requires no temperature, which only a policy that is sampled from has."""
    name, actors = run.algorithm.name, run.actors
    for key in ("temperature_high", "temperature_low"):
        value = getattr(actors, key)
        require(value == 1, f"actors.{key}", value, f"{name} has no softmax; give 1")
