"""The memory of recurrent networks: an LSTM over the steps of episodes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

State = dict[str, Tensor]
"""What a policy remembers between the steps of an episode, by name, `[B, …]`; empty for feed-forward networks."""


def lstm_shapes(width: int) -> dict[str, tuple[int, ...]]:
    """The names and shapes of the state of an LSTM with `width` units; none if that is 0."""
    return {"hidden": (width,), "cell": (width,)} if width else {}


def forget(state: State, reset: Tensor) -> State:
    """`state` `[B, …]`, cleared in the columns in which an episode begins (`reset` `[B]`)."""
    return {name: torch.where(reset.unsqueeze(-1), 0.0, value) for name, value in state.items()}


def remember(lstm: nn.LSTMCell | None, features: Tensor, state: State) -> tuple[Tensor, State]:
    """The features and the state after one more step, both unchanged if there is no `lstm`.

    `features` are `[B, F]`; an empty state is that of an episode's start.
    """
    if lstm is None:
        return features, state
    hidden, cell = lstm(features, (state["hidden"], state["cell"]) if state else None)
    return hidden, {"hidden": hidden, "cell": cell}


def remember_all(
    lstm: nn.LSTMCell | None,
    features: Tensor,
    reset: Tensor,
    state: State,
    burn_in: int = 0,
    fresh: Tensor | None = None,
) -> Tensor:
    """The features `[L, B, H]` of consecutive steps, unchanged if there is no `lstm`.

    Args:
        lstm: with width H.
        features: `[L, B, F]`.
        reset: `[L, B]` bool, true if an episode begins there, before which the state is cleared.
        state: `[B, …]` before the first step.
        burn_in: number of first steps that only warm up the state: no gradient flows back into them.
        fresh: `[B]` bool, true for segments that have no burn-in; by default all have one.
    """
    if lstm is None:
        return features
    steps = []
    for t in range(len(features)):
        if t == burn_in:
            state = {name: _detach(value, fresh) for name, value in state.items()}
        remembered, state = remember(lstm, features[t], forget(state, reset[t]))
        steps.append(remembered)
    return torch.stack(steps)


def _detach(value: Tensor, fresh: Tensor | None) -> Tensor:
    """`value` `[B, …]`, detached except in the columns that are `fresh` `[B]`."""
    return value.detach() if fresh is None else torch.where(fresh.unsqueeze(-1), value, value.detach())
