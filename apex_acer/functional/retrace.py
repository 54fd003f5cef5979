"""Retrace targets."""

from __future__ import annotations

import torch
from torch import Tensor


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
        discount: `[T, B]` gamma, zero where the step ended in a terminal state.
        trace: `[T, B]` min(1, ρ), zero where the trace is cut (a dummy step). Its first row is not used.

    Returns:
        `[T, B]` in the dtype given, sharing no storage with the arguments.

    Raises:
        ValueError: where the shapes differ from the above.
    """
    for name, tensor in (("value", value), ("reward", reward), ("discount", discount), ("trace", trace)):
        if tensor.shape != q_taken.shape:
            raise ValueError(f"{name}: require shape {list(q_taken.shape)} as q_taken, got {list(tensor.shape)}")
    if bootstrap_value.shape != q_taken.shape[1:]:
        raise ValueError(f"bootstrap_value: require {list(q_taken.shape[1:])}, got {list(bootstrap_value.shape)}")
    with torch.no_grad():
        # where, not a product: whatever a dummy step holds must not pass, NaN included
        open_trace = trace > 0
        kept = torch.where(open_trace, trace, 0.0).unbind()
        offset = torch.where(open_trace, value - trace * q_taken, value).unbind()
        rewards, discounts, cut = reward.unbind(), discount.unbind(), open_trace.logical_not().unbind()
        targets = []
        carried = bootstrap_value  # V_{t+1} + c_{t+1} (Q_ret_{t+1} − Q_{t+1}), [B]
        for t in range(len(rewards) - 1, -1, -1):
            target = rewards[t] + discounts[t] * carried
            targets.append(target)
            carried = torch.addcmul(offset[t], kept[t], target.masked_fill(cut[t], 0.0))
        return torch.stack(targets[::-1])
