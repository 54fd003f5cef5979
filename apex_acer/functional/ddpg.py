"""DDPG (Lillicrap et al. 2016, arXiv 1509.02971) and TD3 (Fujimoto et al. 2018, arXiv 1802.09477)."""

from __future__ import annotations

from torch import Tensor


def correlated_noise(noise: Tensor, innovation: Tensor, theta: float) -> Tensor:
    """The next step of an Ornstein-Uhlenbeck process: (1 − θ) x + ξ, of noise x and innovation ξ, both `[N, d]`.

    With θ = 1 the noise of one step is independent of that of the others.
    """
    return (1 - theta) * noise + innovation


def smoothed_action(action: Tensor, noise: Tensor, clip: float) -> Tensor:
    """The action of a target, π′(s′) + clip(ε, −c, c), in the box [−1, 1]; all are `[B, d]`. TD3, equation 14."""
    return (action + noise.clamp(-clip, clip)).clamp(-1.0, 1.0)


def smallest_target(*, reward: Tensor, discount: Tensor, q_values: Tensor) -> Tensor:
    """The target of Q, `[B]`: reward + discount · min Q(s′, a′), TD3's equation 10; with one critic it is DDPG's.

    `q_values` `[num, B]` are the target critics', `reward` and `discount` are `[B]`.
    """
    return reward + discount * q_values.amin(0)
