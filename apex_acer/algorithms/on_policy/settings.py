"""Settings of the algorithms that learn from fresh data only: actor-critic, PPO and TRPO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from apex_acer.config import Sampling, SequenceConfig, at_least, fraction, positive, require


@dataclass(frozen=True)
class OnPolicyConfig(SequenceConfig):
    """What algorithms without replay have in common: each batch of sequences is learned from as it arrives, and dropped."""

    has_replay = False

    replay_ratio: float = 0.0
    """Always 0: these algorithms have no replay."""
    pipelined: bool = False
    """Let actors go on with older weights during an update; otherwise they wait for it, and every step is on-policy."""
    gae_lambda: float = 0.95
    """How far rewards count directly: 0: one step, then the critic's value; 1: to the end of the sequence (lambda)."""
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
        fraction("algorithm", self, "gae_lambda")
        positive("algorithm", self, "initial_std")


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
        at_least(0, "algorithm", self, "value_cost", "entropy_cost", "curiosity")


@dataclass(frozen=True)
class ActorCriticConfig(PolicyGradientConfig):
    """Actor-critic: A2C; pipelined A3C (arXiv 1602.01783), with V-trace IMPALA (arXiv 1802.01561); REINFORCE."""

    name: str = "actor_critic"
    targets: Literal["gae", "vtrace"] = "gae"
    """Advantages by generalised advantage estimation, or by V-trace, which corrects for data of older weights."""
    whole_episodes: bool = False
    """Each sequence is one episode from its start, cut after `unroll_length` steps if it is longer."""
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

    minibatches_key = "minibatches"

    name: str = "ppo"
    normalise_advantages: bool = True
    """Give the advantages of each batch a mean of 0 and a standard deviation of 1."""
    epochs: int = 10
    """Times that each batch is learned from."""
    minibatches: int = 4
    """Optimizer steps per epoch, each on an equal share of the batch's steps, or of its sequences if there is an LSTM."""
    clip: float = 0.2
    """The ratio of probabilities counts as far as 1 ± this value (epsilon)."""
    value_clip: float = 0.0
    """V counts as far as its value before the update ± this value; 0: without limit."""
    target_kl: float = 0.0
    """No more epochs for a batch after one whose KL divergence from the old policy is above 1.5 times this; 0: no limit."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, "algorithm", self, "epochs", "minibatches")
        positive("algorithm", self, "clip")
        at_least(0, "algorithm", self, "value_clip", "target_kl")


@dataclass(frozen=True)
class TrpoConfig(OnPolicyConfig):
    """Trust region policy optimisation (arXiv 1502.05477), with generalised advantages (arXiv 1506.02438)."""

    recurrent = False
    shares_updates = False
    minibatches_key = "value_minibatches"

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
        positive("algorithm", self, "max_kl")
        at_least(0, "algorithm", self, "damping")
        at_least(1, "algorithm", self, "value_epochs", "value_minibatches")
