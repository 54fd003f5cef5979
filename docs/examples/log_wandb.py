"""Rows of a run in Weights & Biases: `train(config, log_wandb(config, project="mine"))`."""

from __future__ import annotations

from typing import Any

import wandb

from apex_acer import Callbacks, RunConfig
from apex_acer.config.runfile import to_dict


def log_wandb(config: RunConfig, **settings: Any) -> Callbacks:
    """Callbacks that fill a new run of Weights & Biases, which `settings` (`project`, `mode`, …) describe."""
    run = wandb.init(config=to_dict(config), **settings)
    run.define_metric("*", step_metric="env_steps")  # the horizontal axis

    def log(rows: list[dict[str, Any]]) -> None:
        for row in rows:
            figures = {f"{row['source']}/{name}": value for name, value in row.items() if name != "source"}
            run.log(figures | {"env_steps": row["env_steps"]})

    return Callbacks(on_rows=log, on_stop=lambda result: run.finish())
