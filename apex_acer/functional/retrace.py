"""Retrace targets for off-policy learning of Q."""

from __future__ import annotations

import torch
from torch import Tensor

from apex_acer.functional.recursion import backward_recursion


def retrace(
    *, q_taken: Tensor, value: Tensor, bootstrap_value: Tensor, reward: Tensor, discount: Tensor, trace: Tensor
) -> Tensor:
    """Q_ret_t = r_t + d_t · (V_{t+1} + c_{t+1} · (Q_ret_{t+1} − Q_{t+1})), without gradient.

    Munos et al. 2016 (arXiv 1606.02647), in the recursive form of ACER (arXiv 1611.01224), equation 5.

    Args:
        q_taken: `[T, B]` Q of the actions taken.
        value: `[T, B]` V = Σ π Q.
        bootstrap_value: `[B]` V of the observation after the last step.
        reward: `[T, B]`.
        discount: `[T, B]` gamma, or zero if the step terminated.
        trace: `[T, B]` min(1, ρ), or zero on a dummy step, which cuts the trace. The first row is not used.

    Returns:
        `[T, B]` in the dtype given, sharing no storage with the arguments. Raises ValueError if a shape differs.
    """
    for name, tensor in (("value", value), ("reward", reward), ("discount", discount), ("trace", trace)):
        if tensor.shape != q_taken.shape:
            raise ValueError(f"{name}: require shape {list(q_taken.shape)} as q_taken, got {list(tensor.shape)}")
    if bootstrap_value.shape != q_taken.shape[1:]:
        raise ValueError(f"bootstrap_value: require {list(q_taken.shape[1:])}, got {list(bootstrap_value.shape)}")
    with torch.no_grad():
        # C_t = V_t + c_t (Q_ret_t − Q_t) is linear in the next one: C_t = offset_t + slope_t · C_{t+1}
        open_trace = trace > 0
        # torch.where and not a product, because a dummy step may hold NaN
        offset = torch.where(open_trace, value + trace * (reward - q_taken), value)
        slope = torch.where(open_trace, trace * discount, 0.0)
        carried = backward_recursion(offset[1:], slope[1:], bootstrap_value)
        return reward + discount * carried
