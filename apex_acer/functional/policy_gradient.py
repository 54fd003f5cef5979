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
    """PPO's policy loss −min(r A, clip(r, 1 − ε, 1 + ε) A), equation 7, `[...]`, with gradient to the logarithm of r.

    It has no gradient if the ratio r has already left the interval on the side to which the advantage A pulls it.

    Args:
        log_ratio: `[...]` log π(a) − log π_old(a); ratios above e^30 count as that.
        advantage: `[...]`, a constant.
        clip: ε.
    """
    ratio = log_ratio.clamp(max=MAX_LOG_RATIO).exp()  # an infinite one has no gradient that is a number
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)


def clipped_value_loss(*, value: Tensor, old_value: Tensor, target: Tensor, clip: float) -> Tensor:
    """PPO's value loss ½ max((target − V)², (target − V_clipped)²), `[...]`, with gradient to `value`.

    V_clipped is V within ± `clip` of V_old, so there is no gradient if V has already moved towards the target by more. All
    are `[...]`; all but `value` are constants. It is in the authors' program, not in the paper.
    """
    clipped = old_value + (value - old_value).clamp(-clip, clip)
    return 0.5 * torch.maximum((target - value).square(), (target - clipped).square())


def conjugate_gradient(
    product: Callable[[Tensor], Tensor], vector: Tensor, iterations: int, tolerance: float = 1e-10
) -> Tensor:
    """An x for which `product`(x) = `vector`, `[n]`, by conjugate gradients (Hestenes and Stiefel 1952).

    TRPO, appendix C. It ends after `iterations` products, or once ‖residual‖² ≤ `tolerance` · ‖vector‖². If the matrix turns
    out not to be positive definite, or a product is not finite, it returns the x before that, which is finite.

    Args:
        product: the product of a symmetric, positive definite matrix with a vector `[n]`.
        vector: `[n]`.
        iterations: the largest number of products.
        tolerance: see above.
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
    """The function v ↦ (H + `damping` · 1) v, H the Hessian of `kl` with respect to `parameters`.

    If `kl` is the mean KL(π_old ‖ π) at π = π_old, H is the mean Fisher matrix of the policy.

    Args:
        kl: a scalar with gradient to `parameters`, in which π_old is a constant. It is differentiated once here, and its
            graph is kept as long as the function.
        parameters: of n numbers together; some may have no part in `kl`.
        damping: ≥ 0.

    Returns:
        A function of `[n]`, in the order of `parameters`, without gradient.
    """

    def derivative(scalar: Tensor, *, differentiable: bool) -> Tensor:
        gradients = torch.autograd.grad(
            scalar, list(parameters), retain_graph=True, create_graph=differentiable, materialize_grads=True
        )
        return torch.cat([gradient.reshape(-1) for gradient in gradients])

    gradient = derivative(kl, differentiable=True)
    return lambda vector: derivative(gradient.dot(vector), differentiable=False) + damping * vector


def forward_error(predicted: Tensor, features: Tensor) -> Tensor:
    """Curiosity's forward error ½ ‖φ̂(o′) − φ(o′)‖², `[...]`, equation 5, with gradient to both; both are `[..., F]`."""
    return 0.5 * (predicted - features).square().sum(-1)


def inverse_error(predicted: Tensor, action: Tensor) -> Tensor:
    """Curiosity's inverse error about an action, `[...]`, with gradient to `predicted` `[..., A]`, equation 3.

    Of `action` `[...]` int64 it is the cross-entropy of logits, of `action` `[..., A]` floats ½ ‖â − a‖².
    """
    if action.is_floating_point():
        return 0.5 * (predicted - action).square().sum(-1)
    return cross_entropy(predicted.flatten(0, -2), action.flatten(), reduction="none").view(action.shape)


def curiosity_loss(*, forward: Tensor, inverse: Tensor, beta: float = BETA) -> Tensor:
    """(1 − β) L_inverse + β L_forward of each step, `[...]`, from equation 7; both are `[...]`."""
    return (1 - beta) * inverse + beta * forward


def intrinsic_reward(*, forward: Tensor, mask: Tensor, eta: float) -> Tensor:
    """η times the forward error `[...]`, equation 6, without gradient; 0 where `mask` `[...]` is false."""
    return torch.where(mask, eta * forward.detach(), 0.0)
