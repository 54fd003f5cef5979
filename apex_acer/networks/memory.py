"""The memory of recurrent networks: an LSTM over the steps of episodes."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

State = dict[str, Tensor]
"""What a policy remembers between the steps of an episode, by name, `[B, …]`; empty for feed-forward networks."""


def lstm_shapes(width: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the state of an LSTM with `width` units; none if that is 0."""
    return {"hidden": (width,), "cell": (width,)} if width else {}


def reset_state(state: State, begins: Tensor) -> State:
    """`state` `[B, …]`, cleared in the columns in which an episode `begins` (`[B]` bool)."""
    return {name: torch.where(begins.unsqueeze(-1), 0.0, value) for name, value in state.items()}


def input_gates(lstm: nn.LSTMCell, features: Tensor) -> Tensor:
    """What features `[..., F]` add to the gates `[..., 4 * H]` of an LSTM, which is most of its work and knows no order."""
    return linear(features, lstm.weight_ih, lstm.bias_ih + lstm.bias_hh)


def step(lstm: nn.LSTMCell, gates: Tensor, state: State) -> State:
    """The state after one more step, of which "hidden" `[B, H]` is the output; an empty one is that of an episode's start.

    `gates` `[B, 4 * H]` are the `input_gates` of the step.
    """
    if not state:
        zeros = gates.new_zeros(len(gates), lstm.hidden_size)
        state = {"hidden": zeros, "cell": zeros}
    gates = torch.addmm(gates, state["hidden"], lstm.weight_hh.t())
    write, keep, candidate, show = gates.chunk(4, -1)  # in the order of torch's LSTM
    cell = torch.addcmul(keep.sigmoid() * state["cell"], write.sigmoid(), candidate.tanh())
    return {"hidden": show.sigmoid() * cell.tanh(), "cell": cell}


def unroll(
    lstm: nn.LSTMCell, gates: Tensor, reset: Tensor, state: State, burn_in: int = 0, fresh: Tensor | None = None
) -> Tensor:
    """The outputs `[L, B, H]` of consecutive steps.

    Args:
        lstm: with width H.
        gates: `[L, B, 4 * H]`, the `input_gates` of all steps.
        reset: `[L, B]` bool, true if an episode begins there, before which the state is cleared.
        state: `[B, …]` before the first step.
        burn_in: number of first steps that only warm up the state: no gradient flows back into them.
        fresh: `[B]` bool, true for sequences that have no burn-in; by default all have one.
    """
    steps = []
    for t, (now, begins) in enumerate(zip(gates.unbind(), reset.unbind(), strict=True)):
        if t == burn_in:
            state = {name: _detach(value, fresh) for name, value in state.items()}
        state = step(lstm, now, reset_state(state, begins))
        steps.append(state["hidden"])
    return torch.stack(steps)


def _detach(value: Tensor, fresh: Tensor | None) -> Tensor:
    """`value` `[B, …]`, detached except in the columns that are `fresh` `[B]`."""
    return value.detach() if fresh is None else torch.where(fresh.unsqueeze(-1), value, value.detach())
