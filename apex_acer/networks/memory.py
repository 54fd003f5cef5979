"""The LSTM of recurrent networks, over the steps of episodes."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

State = dict[str, Tensor]
"""A policy's recurrent state by name, `[B, …]`; empty for feed-forward networks and at an episode's start."""


def lstm_shapes(width: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the state of an LSTM with `width` units; none for 0."""
    return {"hidden": (width,), "cell": (width,)} if width else {}


def reset_state(state: State, begins: Tensor) -> State:
    """`state` `[B, …]`, zero for sequences in which an episode `begins` (`[B]` bool)."""
    return {name: torch.where(begins.unsqueeze(-1), 0.0, value) for name, value in state.items()}


def input_gates(lstm: nn.LSTMCell, features: Tensor) -> Tensor:
    """The part of an LSTM's gates `[..., 4 * H]` from features `[..., F]`, computed for all steps at once."""
    return linear(features, lstm.weight_ih, lstm.bias_ih + lstm.bias_hh)


def step(lstm: nn.LSTMCell, gates: Tensor, state: State) -> State:
    """The next state, whose "hidden" `[B, H]` is the output, from the step's `input_gates` `[B, 4 * H]`."""
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
        lstm: an LSTM of width H.
        gates: `[L, B, 4 * H]`, the `input_gates` of all steps.
        reset: `[L, B]` bool, true if an episode begins at the step, before which the state is reset.
        state: `[B, …]` before the first step.
        burn_in: number of first steps that only warm up the state, without gradient.
        fresh: `[B]` bool, true for sequences without burn-in; None: all have one.
    """
    steps = []
    for t, (step_gates, begins) in enumerate(zip(gates.unbind(), reset.unbind(), strict=True)):
        if t == burn_in:
            state = {name: _detach(value, fresh) for name, value in state.items()}
        state = step(lstm, step_gates, reset_state(state, begins))
        steps.append(state["hidden"])
    return torch.stack(steps)


def _detach(value: Tensor, fresh: Tensor | None) -> Tensor:
    """`value` `[B, …]`, detached except for sequences that are `fresh` `[B]`."""
    return value.detach() if fresh is None else torch.where(fresh.unsqueeze(-1), value, value.detach())
