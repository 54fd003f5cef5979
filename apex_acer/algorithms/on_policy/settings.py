"""Settings of the algorithms that learn from fresh data only: actor-critic, PPO, TRPO and PQN."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from apex_acer.config import Sampling, SequenceConfig, at_least, fraction, positive, require


@dataclass(frozen=True)
class FreshConfig(SequenceConfig):
    """The settings of algorithms that learn from each batch of sequences as it arrives, and without replay drop it."""

    has_replay = False

    replay_ratio: float = 0.0
    """Always 0: these algorithms have no replay."""
    pipelined: bool = False
    """Let actors act with older weights during an update; otherwise they wait for it, and every step is on-policy."""

    @property
    def waits(self) -> bool:
        """Whether actors wait for each update."""
        return not self.pipelined

    def __post_init__(self) -> None:
        super().__post_init__()
        without = f"{self.name} has no replay; give 0"
        require(self.has_replay or self.replay_ratio == 0, "algorithm.replay_ratio", self.replay_ratio, without)


@dataclass(frozen=True)
class OnPolicyConfig(FreshConfig):
    """The settings of algorithms with a policy and a critic."""

    shares_torso: ClassVar[bool] = True
    """Whether V is a head on the policy's torso if that is of images or recurrent."""

    gae_lambda: float = 0.95
    """λ of generalised advantage estimation: 0 is one-step TD, 1 is Monte Carlo."""
    normalise_advantages: bool = False
    """Give the advantages of each batch a mean of 0 and a standard deviation of 1."""
    initial_std: float = 1.0
    """Standard deviation of a Gaussian policy at the start, for actions in [−1, 1]; it is learned, and is the same for all
    observations."""

    def __post_init__(self) -> None:
        super().__post_init__()
        fraction("algorithm", self, "gae_lambda")
        positive("algorithm", self, "initial_std")


@dataclass(frozen=True)
class PolicyGradientConfig(OnPolicyConfig):
    """The settings of algorithms with one loss of policy and critic."""

    value_cost: float = 0.5
    """Weight of the critic's loss ½ (target − V)²."""
    entropy_cost: float = 0.0
    """Weight of the entropy bonus."""
    curiosity: float = 0.0
    """Weight of the intrinsic reward, the prediction error of a learned model (ICM, arXiv 1705.05363); 0: none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(0, "algorithm", self, "value_cost", "entropy_cost", "curiosity")


@dataclass(frozen=True)
class ActorCriticConfig(PolicyGradientConfig):
    """Actor-critic: A2C; pipelined A3C (arXiv 1602.01783); with V-trace IMPALA (arXiv 1802.01561); REINFORCE."""

    name: str = "actor_critic"
    targets: Literal["gae", "vtrace"] = "gae"
    """Advantages by generalised advantage estimation, or by V-trace, which corrects for stale data."""
    whole_episodes: bool = False
    """Learn from one episode from its start per sequence, cut after `unroll_length` steps if it is longer."""
    baseline: bool = True
    """Subtract the critic's value from returns; otherwise the advantage is the return (REINFORCE)."""

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

    minibatches_key = "minibatches"

    name: str = "ppo"
    normalise_advantages: bool = True
    """Give the advantages of each batch a mean of 0 and a standard deviation of 1."""
    epochs: int = 10
    """Passes over each batch."""
    minibatches: int = 4
    """Optimizer steps per epoch, each on an equal share of the batch's steps, or of its sequences if there is an LSTM."""
    clip: float = 0.2
    """Clip range of the ratio of probabilities: [1 − ε, 1 + ε]."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, "algorithm", self, "epochs", "minibatches")
        positive("algorithm", self, "clip")


@dataclass(frozen=True)
class TrpoConfig(OnPolicyConfig):
    """Trust region policy optimisation (arXiv 1502.05477), with generalised advantages (arXiv 1506.02438)."""

    recurrent = False
    shares_torso = False
    shares_updates = False
    minibatches_key = "value_minibatches"

    name: str = "trpo"
    normalise_advantages: bool = True
    """Give the advantages of each batch a mean of 0 and a standard deviation of 1."""
    max_kl: float = 0.01
    """Bound on the mean KL divergence between the policies before and after an update (delta)."""
    damping: float = 0.1
    """Damping of the Fisher matrix, added to its diagonal."""
    value_epochs: int = 10
    """The critic's passes over each batch."""
    value_minibatches: int = 4
    """Optimizer steps of the critic per epoch, each on an equal share of the batch's steps."""

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("algorithm", self, "max_kl")
        at_least(0, "algorithm", self, "damping")
        at_least(1, "algorithm", self, "value_epochs", "value_minibatches")


@dataclass(frozen=True)
class PqnConfig(FreshConfig):
    """PQN (Gallici et al. 2025, arXiv 2407.04811): Q(λ) without replay and target network, for networks with layer norm."""

    actions = "Discrete"
    has_softmax = False
    minibatches_key = "minibatches"

    name: str = "pqn"
    q_lambda: float = 0.65
    """λ of Q(λ): 0 is one-step Q-learning, 1 sums all rewards of the sequence before it bootstraps."""
    epochs: int = 2
    """Passes over each batch."""
    minibatches: int = 4
    """Optimizer steps per epoch, each on an equal share of the batch's steps, or of its sequences if there is an LSTM."""
    epsilon: float = 1.0
    """Share of random actions at the start of the run."""
    epsilon_final: float = 0.01
    """Share of random actions once it has fallen, which it does linearly."""
    epsilon_fraction: float = 0.1
    """Fraction of the run (`stop.env_steps`, or `schedule_steps`) in which the share of random actions falls."""
    evaluation_epsilon: float = 0.001
    """Share of random actions in evaluations, unless they are greedy."""

    @property
    def has_schedule(self) -> bool:
        """Whether exploration changes during the run."""
        return self.epsilon_fraction > 0 and self.epsilon != self.epsilon_final

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, "algorithm", self, "epochs", "minibatches")
        shares = "epsilon", "epsilon_final", "epsilon_fraction", "evaluation_epsilon"
        fraction("algorithm", self, "q_lambda", *shares)
