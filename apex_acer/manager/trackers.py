"""Trackers: W&B and MLflow hear of a run in a thread each, which can neither delay the run nor end it. Imports no torch."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import json
import logging
import os
import queue
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from apex_acer.config import LoggingConfig
from apex_acer.manager.callbacks import Callbacks
from apex_acer.manager.result import TrainResult
from apex_acer.protocol.messages import Status
from apex_acer.storage.history import LoggedRow, is_number
from apex_acer.system import files

log = logging.getLogger(__name__)

PROJECT = "apex_acer"  # unless an environment variable of the tracker names another one
IDS = "trackers.json"
"""The file in a run's folder with the identifier that each tracker has given the run, by which a resumed run goes on."""
QUIET_S = 1.0  # of waiting at the end of the run, after which the user is told
END_S = 20.0  # in which a tracker takes the rest after the end of the run
MOST_WAITING = 10_000  # lists of rows; a tracker that is further behind has failed
MOST_PARAMETERS = 100  # that MLflow takes at once
MLFLOW_REFUSES = re.compile(r"[^/\w.: -]")  # in the name of a metric
SUMMARY = ("reason", "env_steps", "updates", "wall_s", "eval_return")  # fields of the result


class WandB:
    """Weights & Biases; its environment variables say where the run goes, `WANDB_MODE=offline` into the run's folder."""

    def begin(self, name: str, config: Mapping[str, Any], folder: Path, known: str) -> str:
        """Begins a run with its configuration, or goes on with the one `known` by its identifier; returns the identifier."""
        import wandb

        # the terminal is the live view's: nothing is printed there, and nothing asked
        quiet = wandb.Settings(console="off", silent=True)
        online = wandb.setup(quiet).settings.mode in ("online", "shared")
        if online and not wandb.login(prompt=False):
            raise PermissionError("nobody is logged in; wandb login, or WANDB_MODE=offline")
        project = os.environ.get("WANDB_PROJECT", PROJECT)
        wanted: dict[str, Any] = {"id": known or None, "resume": "allow", "dir": str(folder), "settings": quiet}
        self._run = wandb.init(project=project, name=name, config=dict(config), **wanted)
        self._run.define_metric("*", step_metric="env_steps")
        log.info("wandb: %s", self._run.dir if self._run.offline else self._run.url)
        return str(self._run.id)

    def write(self, row: LoggedRow) -> None:
        """Writes the metrics of a row over its `env_steps`."""
        self._run.log(_metrics(row) | {"env_steps": row["env_steps"]})

    def end(self, result: TrainResult | None, weights: str) -> None:
        """Ends the run, which has failed if it has no `result`; keeps the file `weights`, unless it is empty."""
        self._run.summary.update(_summary(result))
        if weights:
            self._run.log_artifact(weights, name=f"weights-{self._run.id}", type="model")
        self._run.finish(exit_code=int(result is None))


class MLflow:
    """MLflow, with the methods of `WandB`; `MLFLOW_TRACKING_URI` says where the run goes, by default its own folder."""

    def begin(self, name: str, config: Mapping[str, Any], folder: Path, known: str) -> str:
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        if not uri:
            os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"  # without a database there is nothing else
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self._client = MlflowClient(uri or (folder / "mlruns").as_uri())
        self._id = known
        if known:
            self._client.update_run(known, status="RUNNING")
        else:
            title = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
            experiment = self._client.get_experiment_by_name(title)
            number = experiment.experiment_id if experiment else self._client.create_experiment(title)
            self._id = self._client.create_run(number, run_name=name).info.run_id
            parameters = [Param(key, str(value)) for key, value in config.items()]
            for start in range(0, len(parameters), MOST_PARAMETERS):
                self._client.log_batch(self._id, params=parameters[start : start + MOST_PARAMETERS])
        log.info("mlflow: run %s in %s", self._id, self._client.tracking_uri)
        return self._id

    def write(self, row: LoggedRow) -> None:
        self._write(_metrics(row), row["env_steps"])

    def end(self, result: TrainResult | None, weights: str) -> None:
        summary = _summary(result)
        self._write(
            {key: value for key, value in summary.items() if is_number(value)}, summary.get("result/env_steps", 0)
        )
        if weights:
            self._client.log_artifact(self._id, weights)
        if result:
            self._client.set_tag(self._id, "reason", result.reason)
        self._client.set_terminated(self._id, "FINISHED" if result else "FAILED")

    def _write(self, metrics: Mapping[str, float], env_steps: int) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        named = {MLFLOW_REFUSES.sub("_", key): value for key, value in metrics.items()}
        self._client.log_batch(self._id, metrics=[Metric(key, value, now, env_steps) for key, value in named.items()])


TRACKERS: dict[str, type[WandB | MLflow]] = {"wandb": WandB, "mlflow": MLflow}
Heard = list[LoggedRow] | TrainResult | None
"""New rows, or the end of the run: its result, or None if it failed."""


class Trackers:
    """The trackers of a run. What goes wrong in one is a warning in the log, and it hears no more."""

    def __init__(self, settings: LoggingConfig, run: Mapping[str, Any], folder: Path) -> None:
        """`run` is the flat configuration of which they hear."""
        self._keeps_weights, self._run, self._folder = settings.tracker_weights, run, folder
        self._ids: dict[str, str] = {}
        self._ids_lock = threading.Lock()
        with contextlib.suppress(OSError, TypeError, ValueError):
            self._ids = dict(json.loads((folder / IDS).read_text(encoding="utf-8")))
        self._queues: dict[str, queue.Queue[Heard]] = {name: queue.Queue(MOST_WAITING) for name in settings.trackers}
        self._news: queue.SimpleQueue[str] = queue.SimpleQueue()
        # each in a copy of this context, so that its lines are in this run's log
        self._threads = [
            threading.Thread(target=contextvars.copy_context().run, args=(self._follow, name), name=name, daemon=True)
            for name in self._queues
        ]

    def begin(self) -> None:
        for thread in self._threads:
            thread.start()

    def listen(self, callbacks: Callbacks) -> Callbacks:
        """`callbacks`, extended: rows also go to the trackers, and `news` has what goes wrong there."""
        if not self._threads:
            return callbacks

        def on_rows(rows: list[LoggedRow]) -> None:
            self._tell(rows)
            callbacks.on_rows(rows)

        def on_status(status: Status) -> None:
            news = [self._news.get() for _ in range(self._news.qsize())]
            callbacks.on_status({**status, "news": [*status.get("news", []), *news]})

        return dataclasses.replace(callbacks, on_rows=on_rows, on_status=on_status)

    def close(
        self, result: TrainResult | None, signals: Sequence[object], tell: Callable[[str], object] = lambda line: None
    ) -> None:
        """Passes the end on, and waits a while for the trackers to take it; a signal, or a second one, ends the waiting.

        `tell` gets a line if that takes long.
        """
        self._tell(result)
        most, start, is_told = min(len(signals) + 1, 2), time.monotonic(), False
        while (late := self._at_work()) and len(signals) < most and (waited := time.monotonic() - start) < END_S:
            if waited > QUIET_S and not is_told:
                what = "has yet to take the rest of the run"
                tell(f"{late[0].name}: {what}; waiting up to {END_S:.0f} s, or until Ctrl-C")
                is_told = True
            late[0].join(0.1)
        for thread in late:
            line = f"{thread.name}: did not take the rest of the run within {time.monotonic() - start:.0f} s"
            self._warn(line)
            tell(line)

    def _at_work(self) -> list[threading.Thread]:
        return [thread for thread in self._threads if thread.is_alive() and thread.name in self._queues]

    def _tell(self, heard: Heard) -> None:
        for name, waiting in list(self._queues.items()):
            try:
                waiting.put_nowait(heard)
            except queue.Full:
                self._queues.pop(name, None)
                self._warn(f"{name}: is too slow and hears no more of this run")

    def _follow(self, name: str) -> None:
        """Runs in the thread of a tracker."""
        tracker, waiting = TRACKERS[name](), self._queues[name]
        # such as `cartpole-v1-20260101-120000-7`, or `gamma=0.9/seed_1` in a sweep
        title = "/".join(self._folder.parts[-2:]).removeprefix("runs/")
        try:
            run_id = tracker.begin(title, self._run, self._folder, self._ids.get(name, ""))
            with self._ids_lock:
                self._ids[name] = run_id
                files.write(self._folder / IDS, json.dumps(self._ids).encode())
            while isinstance(heard := waiting.get(), list):
                for row in heard:
                    tracker.write(row)
            tracker.end(heard, heard.weights if heard and self._keeps_weights else "")
        except BaseException as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            self._warn(f"{name}: hears no more of this run ({reason})")
            self._queues.pop(name, None)  # last, because `close` waits for those that are still there

    def _warn(self, line: str) -> None:
        log.warning("%s", line)
        self._news.put(line)


def _metrics(row: LoggedRow) -> dict[str, float]:
    return {f"{row['source']}/{name}": value for name, value in row.items() if is_number(value) and name != "env_steps"}


def _summary(result: TrainResult | None) -> dict[str, Any]:
    return {f"result/{key}": getattr(result, key) for key in SUMMARY} if result else {}
