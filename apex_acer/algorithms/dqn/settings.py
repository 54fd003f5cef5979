"""Settings of Ape-X DQN and R2D2."""

from __future__ import annotations

from dataclasses import dataclass

from apex_acer.config import NStepConfig, Sampling, at_least, fraction, require


@dataclass(frozen=True)
class ApexDqnConfig(NStepConfig):
    """Ape-X DQN (arXiv 1803.00933): double, dueling, n-step Q-learning from replay."""

    actions = "Discrete"

    name: str = "apex_dqn"
    n_steps: int = 3
    """Rewards summed before the bootstrap; fewer if the episode or the sequence ends earlier."""
    double: bool = True
    """Double Q-learning: the network chooses the action that is bootstrapped from, and the target network evaluates it;
    otherwise the target network does both."""
    dueling: bool = True
    """Dueling network: Q is a value plus advantages, each with a hidden layer of its own; otherwise one layer gives Q."""
    epsilon: float = 0.4
    """Share of random actions in the first environment; the i-th of N has epsilon ^ (1 + i / (N − 1) · `epsilon_alpha`)."""
    epsilon_alpha: float = 7.0
    """Exponent by which the environments' epsilons differ; 0: all have the same."""
    evaluation_epsilon: float = 0.001
    """Share of random actions in evaluations, unless they are greedy."""
    target_every: int = 2500
    """Updates between two copies of the network to the target network."""
    value_rescaling: bool = False
    """Learn approximately the square root of Q, so that rewards need no clipping (Pohlen et al. 2018)."""

    quantiles: int = 1
    """Quantiles of each action's return that are learned (QR-DQN, arXiv 1710.10044, has 200); 1: only its mean."""
    munchausen: float = 0.0
    """Share of τ log π(a) that is added to the reward, π the softmax of the target network's Q / τ, which also replaces
    its maximum (Munchausen, arXiv 2007.14430, has 0.9 with clipped rewards); 0: none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, "algorithm", self, "target_every", "quantiles")
        at_least(0, "algorithm", self, "epsilon_alpha")
        fraction("algorithm", self, "munchausen")
        is_plain = not (self.munchausen and self.value_rescaling)
        require(is_plain, "algorithm.munchausen", self.munchausen, "value_rescaling changes what τ means; give 0")
        fraction("algorithm", self, "epsilon", "evaluation_epsilon")


@dataclass(frozen=True)
class R2d2Config(ApexDqnConfig):
    """R2D2 (Kapturowski et al. 2019): Ape-X DQN with an LSTM, from sequences."""

    recurrent = True

    name: str = "r2d2"
    n_steps: int = 5
    """Rewards summed before the bootstrap; fewer if the episode or the sequence ends earlier."""
    value_rescaling: bool = True
    """Learn approximately the square root of Q, so that rewards need no clipping (Pohlen et al. 2018)."""
    burn_in: int = 0
    """Masked steps in front of each sequence, copied from the previous one, that only warm up the recurrent state."""

    def __post_init__(self) -> None:
        require(self.quantiles == 1, "algorithm.quantiles", self.quantiles, "r2d2 learns means only; give 1")
        require(self.munchausen == 0, "algorithm.munchausen", self.munchausen, "r2d2 has no Munchausen reward; give 0")
        super().__post_init__()
        at_least(0, "algorithm", self, "burn_in")
        allowed = f"give at most algorithm.unroll_length ({self.unroll_length})"
        require(self.burn_in <= self.unroll_length, "algorithm.burn_in", self.burn_in, allowed)

    @property
    def sampling(self) -> Sampling:
        """Replayed sequences only, each with `burn_in` steps of the previous one in front."""
        return Sampling(fresh=False, burn_in=self.burn_in)
