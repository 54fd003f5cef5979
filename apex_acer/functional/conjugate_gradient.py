"""The natural gradient without a matrix, for TRPO (Schulman et al. 2015, arXiv 1502.05477, appendix C)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def conjugate_gradient(
    product: Callable[[Tensor], Tensor], vector: Tensor, iterations: int, tolerance: float = 1e-10
) -> Tensor:
    """An x for which `product`(x) = `vector`, `[n]`, by conjugate gradients (Hestenes and Stiefel 1952).

    It ends after `iterations` products, or once ‖residual‖² ≤ `tolerance` · ‖vector‖². If the matrix turns out not to be
    positive definite, or a product is not finite, it returns the x before that, which is finite.

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
        found = torch.autograd.grad(
            scalar, list(parameters), retain_graph=True, create_graph=differentiable, materialize_grads=True
        )
        return torch.cat([gradient.reshape(-1) for gradient in found])

    gradient = derivative(kl, differentiable=True)
    return lambda vector: derivative(gradient.dot(vector), differentiable=False) + damping * vector
