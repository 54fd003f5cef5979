"""On-policy policy gradients: PPO's clipped losses, TRPO's natural gradient, and curiosity's reward.

PPO is Schulman et al. 2017 (arXiv 1707.06347), TRPO Schulman et al. 2015 (arXiv 1502.05477), curiosity the intrinsic
curiosity module of Pathak et al. 2017 (arXiv 1705.05363).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from apex_acer.functional.distributions import MAX_LOG_RATIO

BETA = 0.2  # of Pathak et al.: the weight of the forward model's loss beside the inverse model's


def clipped_surrogate(*, log_ratio: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """PPO's policy loss −min(r A, clip(r, 1 − ε, 1 + ε) A), equation 7, `[...]`, with gradient to `log_ratio`.

    `log_ratio` is log π(a) − log π_old(a); `advantage` is a constant. There is no gradient if the ratio r has left the
    interval on the side to which the advantage pulls it. Ratios above e^30 count as e^30.
    """
    ratio = log_ratio.clamp(max=MAX_LOG_RATIO).exp()  # an infinite one has no gradient that is a number
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)


def conjugate_gradient(
    product: Callable[[Tensor], Tensor], vector: Tensor, iterations: int, tolerance: float = 1e-10
) -> Tensor:
    """An x for which `product`(x) = `vector`, `[n]`, by conjugate gradients (Hestenes and Stiefel 1952); TRPO, appendix C.

    `product` multiplies a symmetric, positive definite matrix by a vector. It ends after `iterations` products, or once
    ‖residual‖² ≤ `tolerance` · ‖vector‖². If the matrix is not positive definite, or a product is not finite, it returns
    the x before, which is finite.
    """
    x = torch.zeros_like(vector)
    residual = direction = vector
    squared = bound = residual.dot(residual)
    for _ in range(iterations):
        if not squared > tolerance * bound:
            break
        image = product(direction)
        step = squared / direction.dot(image)
        if not 0 < step < torch.inf:  # so it stops at NaN, too
            break
        x = x + step * direction
        residual = residual - step * image
        previous, squared = squared, residual.dot(residual)
        direction = residual + squared / previous * direction
    return x


def fisher_product(kl: Tensor, parameters: Sequence[Tensor], damping: float) -> Callable[[Tensor], Tensor]:
    """The function v ↦ (H + `damping` · 1) v, `[n]`, H the Hessian of the scalar `kl` with respect to `parameters`.

    If `kl` is the mean KL(π_old ‖ π) at π = π_old, and π_old a constant in it, H is the policy's mean Fisher matrix. The
    graph of `kl` is kept as long as the function; parameters may have no part in it.
    """

    def derivative(scalar: Tensor, *, differentiable: bool) -> Tensor:
        gradients = torch.autograd.grad(
            scalar, list(parameters), retain_graph=True, create_graph=differentiable, materialize_grads=True
        )
        return torch.cat([gradient.reshape(-1) for gradient in gradients])

    gradient = derivative(kl, differentiable=True)
    return lambda vector: derivative(gradient.dot(vector), differentiable=False) + damping * vector


def forward_error(predicted: Tensor, features: Tensor) -> Tensor:
    """Curiosity's forward error ½ ‖φ̂(o′) − φ(o′)‖² `[...]` of features `[..., F]`, equation 5, with gradient to both."""
    return 0.5 * (predicted - features).square().sum(-1)


def inverse_error(predicted: Tensor, action: Tensor) -> Tensor:
    """Curiosity's inverse error `[...]` of an action, equation 3, with gradient to `predicted` `[..., A]`.

    For `action` `[...]` int64 it is the cross-entropy of logits, for `action` `[..., A]` floats ½ ‖â − a‖².
    """
    if action.is_floating_point():
        return 0.5 * (predicted - action).square().sum(-1)
    return cross_entropy(predicted.flatten(0, -2), action.flatten(), reduction="none").view(action.shape)


def curiosity_loss(*, forward: Tensor, inverse: Tensor, beta: float = BETA) -> Tensor:
    """Curiosity's loss (1 − β) L_inverse + β L_forward per step, `[...]`, from equation 7."""
    return (1 - beta) * inverse + beta * forward


def intrinsic_reward(*, forward: Tensor, mask: Tensor, eta: float) -> Tensor:
    """Curiosity's reward, η times the forward error `[...]`, equation 6, without gradient; 0 on masked steps."""
    return torch.where(mask, eta * forward.detach(), 0.0)
