"""Rows of a run in MLflow: `train(config, log_mlflow(config, "mine"))`."""

from __future__ import annotations

from typing import Any

import mlflow

from apex_acer import Callbacks, RunConfig
from apex_acer.config.runfile import to_dict


def log_mlflow(config: RunConfig, experiment: str) -> Callbacks:
    """Callbacks that fill a new run of the MLflow `experiment`."""
    mlflow.set_experiment(experiment)
    mlflow.start_run()
    mlflow.log_params(to_dict(config))

    def log(rows: list[dict[str, Any]]) -> None:
        for row in rows:
            numbers = {
                f"{row['source']}/{name}": value for name, value in row.items() if isinstance(value, int | float)
            }
            mlflow.log_metrics(numbers, step=row["env_steps"])

    return Callbacks(on_rows=log, on_stop=lambda result: mlflow.end_run())
