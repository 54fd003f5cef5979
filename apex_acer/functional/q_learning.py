"""Q-learning: dueling networks, targets and priorities, and the targets and losses of DDPG, TD3 and SAC per sample.

DDPG is Lillicrap et al. 2016 (arXiv 1509.02971), TD3 Fujimoto et al. 2018 (arXiv 1802.09477), SAC Haarnoja et al. 2018
(arXiv 1812.05905).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import huber_loss

from apex_acer.functional.returns import NStep, gae

EPSILON = 1e-3  # of the rescaling; it makes the inverse Lipschitz
TEMPERATURE, LEAST_BONUS = 0.03, -1.0  # of Munchausen Q-learning (Vieillard et al. 2020)
ETA = 0.9  # the share of the largest error in the priority of a sequence (Kapturowski et al. 2019)


def dueling(value: Tensor, advantage: Tensor) -> Tensor:
    """Q(a) = V + A(a) − mean A, `[..., A]`, from `value` `[..., 1]`; Wang et al. 2016 (arXiv 1511.06581), equation 9."""
    return value + advantage - advantage.mean(-1, keepdim=True)


def bootstrap_value(q_values: Tensor, target_q_values: Tensor) -> Tensor:
    """The `target_q_values` `[..., A]` of the actions that maximise `q_values` `[..., A]`, `[...]`.

    Double Q-learning (van Hasselt et al. 2016, arXiv 1509.06461); with `target_q_values` for both, Q-learning.
    """
    return target_q_values.gather(-1, q_values.argmax(-1, keepdim=True)).squeeze(-1)


def quantile_loss(quantiles: Tensor, target: Tensor) -> Tensor:
    """Quantile Huber loss `[B]` of `quantiles` `[B, K]` beside K samples of the `target` `[B, K]`.

    Σ_i mean_j |τ_i − 1{u_ij < 0}| H(u_ij) with u_ij = target_j − quantile_i and τ_i = (i + ½) / K: Dabney et al. 2018 (arXiv
    1710.10044), equation 10 with κ = 1.
    """
    count = quantiles.shape[-1]
    level = (torch.arange(count, device=quantiles.device, dtype=quantiles.dtype) + 0.5) / count
    error = target.unsqueeze(-2) - quantiles.unsqueeze(-1)  # [B, i, j]
    huber = huber_loss(error, torch.zeros_like(error), reduction="none")
    weight = (level.unsqueeze(-1) - (error.detach() < 0).to(level)).abs()
    return (weight * huber).mean(-1).sum(-1)


def munchausen_bonus(q_values: Tensor, action: Tensor) -> Tensor:
    """τ log π(a|o), no less than −1, `[B]`: Vieillard et al. 2020 (arXiv 2007.14430), equation 2; π = softmax(Q / τ).

    `q_values` `[B, A]` are the target network's, of illegal actions as low as `forbid` leaves them; τ = 0.03.
    """
    log_prob = (q_values / TEMPERATURE).log_softmax(-1).gather(-1, action.unsqueeze(-1)).squeeze(-1)
    return (TEMPERATURE * log_prob).clamp(LEAST_BONUS, 0.0)


def soft_value(q_values: Tensor, quantiles: Tensor) -> Tensor:
    """Σ_a π(a) (θ_j(a) − τ log π(a)) `[B, K]` of `quantiles` θ `[B, A, K]`, for π as in `munchausen_bonus`."""
    log_prob = (q_values / TEMPERATURE).log_softmax(-1).unsqueeze(-1)
    prob = log_prob.exp()
    return torch.where(prob > 0, prob * (quantiles - TEMPERATURE * log_prob), 0.0).sum(1)


def n_step_target(*, reward: Tensor, discount: Tensor, bootstrap: Tensor, rescaled: bool) -> Tensor:
    """The n-step target of Q: R + γ^m `bootstrap`, or h(R + γ^m h⁻¹(`bootstrap`)) if values are `rescaled` by h."""
    if not rescaled:
        return reward + discount * bootstrap
    return rescale(reward + discount * unscale(bootstrap))


def sequence_targets(ahead: NStep, value: Tensor, *, rescaled: bool) -> Tensor:
    """The `n_step_target` of each step of a sequence, `[T, B]`, from its `n_step_returns` `ahead` and `value` `[T+1, B]`."""
    steps = torch.arange(len(ahead.length), device=value.device).unsqueeze(-1)
    bootstrap = value.gather(0, steps + ahead.length)
    return n_step_target(reward=ahead.reward, discount=ahead.discount, bootstrap=bootstrap, rescaled=rescaled)


def sequence_priority(td_error: Tensor, mask: Tensor) -> Tensor:
    """R2D2's priority η max |δ| + (1 − η) mean |δ| over the unmasked of T steps, `[B]`, η = 0.9; 0 if there are none."""
    error = torch.where(mask, td_error.abs(), 0.0)
    return ETA * error.amax(0) + (1 - ETA) * error.sum(0) / mask.sum(0).clamp(min=1)


def q_lambda_target(
    *,
    reward: Tensor,
    q_values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    mask: Tensor,
    gamma: float,
    q_lambda: float,
) -> Tensor:
    """Q(λ) targets G_t = r_t + γ (λ G_{t+1} + (1 − λ) max Q_{t+1}) `[T, B]`, up to the episode's end, without gradient.

    Peng and Williams 1994, as in PQN (Gallici et al. 2025, arXiv 2407.04811): exploratory actions do not cut the sum. At the
    end of the sequence and of a truncated episode λ is 0, after a terminated step nothing follows. `q_values` are
    `[T+1, B, A]`, of illegal actions as low as `forbid` leaves them, and their last row is only bootstrapped from; the
    others are `[T, B]`. On masked steps it is max Q_t. Raises ValueError if a shape differs.
    """
    # with V = max Q these are the targets of V of generalised advantages
    flags = {"terminated": terminated, "truncated": truncated, "mask": mask}
    return gae(reward=reward, value=q_values.amax(-1), **flags, gamma=gamma, gae_lambda=q_lambda).value_target


def rescale(value: Tensor) -> Tensor:
    """The value rescaling h(x) = sign(x) (√(|x| + 1) − 1) + ε x (Pohlen et al. 2018, arXiv 1805.11593)."""
    return value.sign() * ((value.abs() + 1).sqrt() - 1) + EPSILON * value


def unscale(value: Tensor) -> Tensor:
    """The inverse of `rescale`, in closed form."""
    # (√(1 + 4ε(|x| + 1 + ε)) − 1) / 2ε, without subtracting nearly equal numbers
    inner = value.abs() + 1 + EPSILON
    root = 2 * inner / ((1 + 4 * EPSILON * inner).sqrt() + 1)
    return value.sign() * (root.square() - 1)


def correlated_noise(noise: Tensor, innovation: Tensor, theta: float) -> Tensor:
    """The next step (1 − θ) x + ξ of an Ornstein-Uhlenbeck process, with noise x and innovation ξ `[N, d]`."""
    return (1 - theta) * noise + innovation


def smoothed_action(action: Tensor, noise: Tensor, clip: float) -> Tensor:
    """TD3's smoothed action π′(s′) + clip(ε, −c, c) `[B, d]`, clipped to the box [−1, 1], equation 14."""
    return (action + noise.clamp(-clip, clip)).clamp(-1.0, 1.0)


def smallest_target(*, reward: Tensor, discount: Tensor, q_values: Tensor) -> Tensor:
    """The target r + γ min Q(s′, a′) `[B]` from the target critics' `q_values` `[num, B]`: TD3, equation 10, and DDPG."""
    return reward + discount * q_values.amin(0)


def soft_target(*, reward: Tensor, discount: Tensor, q_values: Tensor, log_prob: Tensor, temperature: Tensor) -> Tensor:
    """SAC's target r + γ (min Q(s′, a′) − α log π(a′|s′)) `[B]`, equation 3, from target critics' `q_values` `[num, B]`."""
    return reward + discount * (q_values.amin(0) - temperature * log_prob)


def soft_policy_loss(*, q_values: Tensor, log_prob: Tensor, temperature: Tensor) -> Tensor:
    """SAC's policy loss α log π(a|s) − min Q(s, a) `[B]` of reparametrised actions, equation 7."""
    return temperature * log_prob - q_values.amin(0)


def temperature_loss(log_temperature: Tensor, log_prob: Tensor, target_entropy: float) -> Tensor:
    """SAC's temperature loss −log α · (log π(a|s) + target entropy) `[B]`, with gradient to log α only.

    The authors' program uses log α, too, in place of equation 18's α.
    """
    return -log_temperature * (log_prob.detach() + target_entropy)
