"""What trackers hear of a run, with made-up ones and with the real packages, and that none can end or delay it."""

from __future__ import annotations

import io
import json
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from apex_acer.config import LoggingConfig
from apex_acer.manager import preparation, trackers
from apex_acer.manager.callbacks import Callbacks
from apex_acer.manager.manager import resume, train, watch
from apex_acer.manager.preparation import prepare
from apex_acer.manager.trackers import TRACKERS, Trackers, WandB
from apex_acer.system import files
from tests.conftest import config_error
from tests.continuous import rows_of
from tests.programs import eventually
from tests.runs import tiny_run


class Notebook(WandB):
    """Keeps what it hears, for all runs."""

    heard: list[Any]

    def begin(self, name: str, config: Mapping[str, Any], folder: Path, known: str) -> str:
        self.heard.append(("begin", name, config, known))
        return known or "number-1"

    def write(self, row: dict[str, Any]) -> None:
        self.heard.append(row)

    def end(self, result: Any, weights: str) -> None:
        self.heard.append(("end", result, weights))


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the made-up tracker `wandb` hears."""
    Notebook.heard = []
    use(monkeypatch, Notebook)
    return Notebook.heard


def use(monkeypatch: pytest.MonkeyPatch, cls: type[WandB]) -> None:
    monkeypatch.setitem(TRACKERS, "wandb", cls)
    monkeypatch.setattr(preparation, "find_spec", lambda name: name)


def tracked(out: Path, **changes: Any) -> Any:
    return tiny_run(out, logging__trackers=("wandb",), evaluation__every=500, **changes)


def test_the_numbers_that_two_trackers_give_at_the_same_time_are_both_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meeting = threading.Barrier(2)

    class Hasty(WandB):
        def begin(self, name: str, config: Mapping[str, Any], folder: Path, known: str) -> str:
            meeting.wait(10)
            return f"of {id(self)}"

    write, delays = files.write, iter([0.3, 0.0])  # the first to write is overtaken

    def slowly(path: Path, data: bytes) -> None:
        time.sleep(next(delays))
        write(path, data)

    monkeypatch.setattr(files, "write", slowly)
    for name in ("wandb", "mlflow"):
        monkeypatch.setitem(TRACKERS, name, Hasty)
    told = Trackers(LoggingConfig(trackers=("wandb", "mlflow")), {}, tmp_path)
    told.begin()
    told.close(None, [])
    assert json.loads((tmp_path / trackers.IDS).read_text()).keys() == {"wandb", "mlflow"}


@pytest.mark.parametrize("keeps_weights", [False, True])
def test_a_tracker_hears_the_configuration_each_row_and_the_end(
    tmp_path: Path, heard: list[Any], keeps_weights: bool
) -> None:
    config = tracked(tmp_path / "mine", logging__tracker_weights=keeps_weights)
    rows: list[Any] = []
    result = train(config, Callbacks(on_rows=rows.extend))
    (_, name, settings, known), *told, end = heard
    assert name == f"{tmp_path.name}/mine"
    assert known == ""
    assert settings["optimizer.learning_rate"] == config.optimizer.learning_rate
    assert settings["network.hidden_sizes"] == "16"
    assert "learner.device" in settings
    assert told == rows
    assert end == ("end", result, result.weights if keeps_weights else "")
    heard.clear()
    resume(tmp_path / "mine", {"env_steps": 2000})
    assert heard[0][3] == "number-1", "a resumed run is the same one there"


def test_a_run_that_fails_ends_without_a_result(tmp_path: Path, heard: list[Any]) -> None:
    def fail(rows: Any) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train(tracked(tmp_path), Callbacks(on_rows=fail))
    assert heard[-1] == ("end", None, "")


@pytest.mark.parametrize("method", ["write", "end"])
def test_a_tracker_that_fails_is_a_line_and_the_run_goes_on(
    tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: WandB, *arguments: Any) -> str:
        raise OSError("the network\nis down")

    Notebook.heard = []
    use(monkeypatch, type("Failing", (Notebook,), {method: fail}))
    assert train(tracked(tmp_path)).reason == "env_steps"
    line = "wandb: hears no more of this run (OSError: the network is down)"
    assert (tmp_path / "log.txt").read_text().count(line) == 1


def test_what_goes_wrong_in_a_tracker_is_news(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: WandB, *arguments: Any) -> str:
        raise OSError("the network is down")

    use(monkeypatch, type("Failing", (Notebook,), {"begin": fail}))
    news: list[str] = []
    failing = Trackers(LoggingConfig(trackers=("wandb",)), {}, tmp_path)
    callbacks = failing.listen(Callbacks(on_status=lambda status: news.extend(status["news"])))
    failing.begin()
    failing.close(None, [])  # waits for its thread
    callbacks.on_status({"news": ["actor_1: ended"]})
    assert news == ["actor_1: ended", "wandb: hears no more of this run (OSError: the network is down)"]


def test_the_wait_for_a_tracker_is_said_and_a_signal_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, type("Hanging", (Notebook,), {"end": lambda *arguments: time.sleep(60)}))
    monkeypatch.setattr(trackers, "QUIET_S", 0.2)
    said: list[str] = []
    signals: list[str] = []
    Notebook.heard = []
    hanging = Trackers(LoggingConfig(trackers=("wandb",)), {}, tmp_path)
    hanging.begin()

    def tell(line: str) -> None:
        said.append(line)
        signals.append("SIGINT")

    started = time.monotonic()
    hanging.close(None, signals, tell)
    assert time.monotonic() - started < 10
    assert said == [
        "wandb: has yet to take the rest of the run; waiting up to 20 s, or until Ctrl-C",
        "wandb: did not take the rest of the run within 0 s",
    ]


def test_a_tracker_that_hangs_delays_only_the_end_and_the_live_view_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, type("Hanging", (Notebook,), {"write": lambda *arguments: time.sleep(60)}))
    monkeypatch.setattr(trackers, "QUIET_S", 0.0)
    monkeypatch.setattr(trackers, "END_S", 0.3)
    Notebook.heard, printed, started = [], io.StringIO(), time.monotonic()
    assert watch(prepare(tracked(tmp_path), time.monotonic()), stream=printed).reason == "env_steps"
    assert time.monotonic() - started < 30
    assert "wandb: has yet to take the rest" in printed.getvalue()
    assert "wandb: did not take the rest of the run within 0 s" in (tmp_path / "log.txt").read_text()


def test_a_tracker_that_is_not_installed_is_one_line_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparation, "find_spec", lambda name: None)
    message = config_error(lambda: train(tracked(tmp_path / "run")))
    assert message.startswith("logging.trackers: wandb is not installed; pip install 'apex-acer[wandb]'")
    assert not (tmp_path / "run").exists()
    message = config_error(lambda: tiny_run(logging__trackers=("comet",)))
    assert "logging.trackers: 'comet' is not allowed; give wandb or mlflow" in message


# ── the real packages ──


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # the packages' own
def test_wandb_writes_its_folder_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="the extra wandb is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("HOME", str(tmp_path))
    result = train(tracked(tmp_path / "run", logging__tracker_weights=True))
    (written,) = (tmp_path / "run").glob("wandb/offline-run-*/run-*.wandb")
    names = b"learner/entropy", b"actor_1/episode_return", b"optimizer.learning_rate", b"result/env_steps"
    # wandb's own process may write the last block some milliseconds after `finish` has returned
    eventually(lambda: all(name in written.read_bytes() for name in names), within_s=5.0)
    assert "wandb: hears no more" not in (Path(result.folder) / "log.txt").read_text()


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_mlflow_writes_files_in_the_run_s_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "false")  # the run changes it
    folder = tmp_path / "run"
    config = tiny_run(folder, logging__trackers=("mlflow",), logging__tracker_weights=True, evaluation__every=500)
    result = train(config)
    assert "mlflow: hears no more" not in (folder / "log.txt").read_text()
    (run,) = (path for path in folder.glob("mlruns/*/*") if (path / "params").is_dir())
    expected = [(row["updates"], row["env_steps"]) for row in rows_of(folder, "learner")]
    lines = [line.split() for line in (run / "metrics/learner/updates").read_text().splitlines()]
    assert [(float(value), int(step)) for _, value, step in lines] == expected
    assert (run / "params/optimizer.learning_rate").read_text() == str(config.optimizer.learning_rate)
    assert float((run / "metrics/result/env_steps").read_text().split()[1]) == result.env_steps
    assert (run / "artifacts/weights.safetensors").stat().st_size == os.path.getsize(result.weights)
    assert "run_name: " in (run / "meta.yaml").read_text()


@pytest.mark.filterwarnings("default")
def test_mlflow_takes_a_metric_of_the_user_s_own_whatever_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    tracker = TRACKERS["mlflow"]()
    tracker.begin("run", {}, tmp_path, "")
    tracker.write({"source": "learner", "env_steps": 5, "wall_s": 1.0, "Q(s, a)": 0.5, "loss/actor": 0.25})
    (folder,) = tmp_path.glob("mlruns/*/*/metrics/learner")
    assert (folder / "Q_s_ a_").read_text().split()[1:] == ["0.5", "5"]
    assert (folder / "loss/actor").read_text().split()[1:] == ["0.25", "5"]
