"""What only the learner's process can see: `--learner.callback watching:watch_norms`."""

from __future__ import annotations

from typing import Any

from torch import nn


def watch_norms(env_steps: int, row: dict[str, Any], network: nn.Module) -> None:
    """Prints the norm of each layer's weights, into the run's log.txt."""
    norms = {name: round(float(parameter.norm()), 2) for name, parameter in network.named_parameters()}
    print(f"{env_steps} steps, entropy {row.get('entropy', 0.0):.3f}: {norms}")
