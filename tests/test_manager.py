from __future__ import annotations

import dataclasses
import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from apex_acer import weights
from apex_acer.callbacks import Callbacks
from apex_acer.config import ConfigError, RunConfig
from apex_acer.engines.engine import Run
from apex_acer.engines.serial import SerialEngine
from apex_acer.manager import Manager, RunFailed, train
from apex_acer.metrics import METRICS
from apex_acer.policy import load_policy
from apex_acer.result import TrainResult
from apex_acer.runfile import load_run
from apex_acer.signals import Signals
from tests.processes import processes
from tests.runs import CARTPOLE, tiny_run


def local_run(out: Path, **changes: Any) -> RunConfig:
    return tiny_run(out, **({"engine": "local"} | changes))


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunConfig, TrainResult, list[dict[str, Any]]]:
    """Every role in its own process, for a moment."""
    config = local_run(tmp_path_factory.mktemp("whole"), evaluation__every=500, stop__env_steps=4000)
    statuses: list[dict[str, Any]] = []
    return config, train(config, Callbacks(on_status=statuses.append)), statuses


WholeRun = tuple[RunConfig, TrainResult, list[dict[str, Any]]]


def test_whole_run_returns_what_happened(whole_run: WholeRun) -> None:
    config, result, statuses = whole_run
    assert (result.reason, result.exit_code) == ("env_steps", 0)
    assert 4000 <= result.env_steps < 4000 + 5 * 20
    assert result.updates > 100
    assert result.eval_return is not None
    assert 0 < result.wall_s < 30
    assert 0 < result.startup_s < 60
    assert result.weights == str(Path(config.out) / "weights.safetensors")
    policy = load_policy(result.weights)
    assert policy.metadata["env_steps"] == result.env_steps
    assert policy.act([0.0, 0.0, 0.0, 0.0]) in (0, 1)
    assert statuses
    assert statuses[-1]["env_steps"] <= result.env_steps
    assert any(set(status["states"].values()) == {"running"} for status in statuses)
    assert statuses[-1]["replay_memory"] > 0


def test_whole_run_leaves_the_documented_folder(whole_run: WholeRun) -> None:
    config, _, _ = whole_run
    folder = Path(config.out)
    names = {path.name for path in folder.iterdir()}
    assert names == {
        "config.toml",
        "weights.safetensors",
        "best.safetensors",
        "metrics.jsonl",
        "log.txt",
        "tb",
        "checkpoint",
    }
    assert {path.name for path in (folder / "tb").iterdir()} == {"learner", "actor_0", "actor_1", "evaluator"}
    assert load_run(str(folder / "config.toml")) == dataclasses.replace(config, out="")
    assert "Traceback" not in (folder / "log.txt").read_text()


def test_whole_run_writes_only_metrics_of_the_table(whole_run: WholeRun) -> None:
    config, _, _ = whole_run
    rows = [json.loads(line) for line in (Path(config.out) / "metrics.jsonl").read_text().splitlines()]
    assert {row["source"] for row in rows} == {"learner", "actor_0", "actor_1", "evaluator"}
    assert {name for row in rows for name in row} - {"source", "wall_s"} <= METRICS.keys()
    last = [row for row in rows if row["source"] == "learner"][-1]
    assert last["refused_messages"] == last["skipped_updates"] == 0


def test_works_from_another_thread_and_with_a_slow_view(tmp_path: Path) -> None:
    """As in a notebook; a view that takes its time must not lose how the run ended."""
    ended: list[TrainResult | Exception] = []

    def show(status: dict[str, Any]) -> None:
        deadline = time.monotonic() + 20
        while {"learner_0", "actor_0"} & processes(os.getpid()).keys() and time.monotonic() < deadline:
            time.sleep(0.05)

    def work() -> None:
        try:
            ended.append(train(local_run(tmp_path, actors__count=1, stop__env_steps=6000), Callbacks(on_status=show)))
        except Exception as error:
            ended.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    (result,) = ended
    assert isinstance(result, TrainResult), result
    assert result.reason == "env_steps"
    assert Path(result.weights).is_file()


def missing_tensor(path: Path) -> None:
    network = load_policy(path).network
    tensors, metadata = weights.read(path)
    name = f"network.{next(iter(network.state_dict()))}"
    path.write_bytes(weights.pack({key: t for key, t in tensors.items() if key != name}, metadata))


def test_weights_that_do_not_fit_are_refused_by_the_learner(tmp_path: Path) -> None:
    path = Path(train(tiny_run(tmp_path / "before", stop__env_steps=100)).weights)
    missing_tensor(path)
    with pytest.raises(ConfigError, match=r"tensor network\..* is missing") as raised:
        train(local_run(tmp_path / "run", load=str(path)))
    assert "\n" not in str(raised.value)


def test_weights_cut_short_are_refused(tmp_path: Path) -> None:
    path = Path(train(tiny_run(tmp_path / "before", stop__env_steps=100)).weights)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ConfigError, match="not a whole safetensors file") as raised:
        train(tiny_run(tmp_path / "run", load=str(path)))
    assert "\n" not in str(raised.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_refused_by_the_learner(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"learner\.device: 'cuda' is not there") as raised:
        train(local_run(tmp_path, learner__device="cuda"))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"load": "/nowhere/weights.safetensors"}, "load: "),
        ({"environment__id": "NoSuchGame-v0"}, "environment.id: "),
        ({"environment__id": "Pendulum-v1"}, "environment.id: "),
        ({"environment__kwargs": '{"surprise": 1}'}, "environment.id: "),
    ],
)
def test_what_needs_no_process_is_refused_before_the_folder_is_made(
    tmp_path: Path, changes: dict[str, Any], names: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        train(local_run(tmp_path / "run", **changes))
    assert str(raised.value).startswith(names)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "run").exists()


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"out: .* cannot be written") as raised:
        train(local_run(tmp_path / "file" / "run"))
    assert "\n" not in str(raised.value)


def test_a_folder_of_another_run_is_refused(tmp_path: Path) -> None:
    train(tiny_run(tmp_path, stop__env_steps=100))
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    with pytest.raises(ConfigError, match=r"out: .* holds another run"):
        train(tiny_run(tmp_path, stop__env_steps=200))
    assert before == {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}


def test_environment_that_raises_in_an_actor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_wrapper.py").write_text(
        "import gymnasium\n"
        "class Breaks(gymnasium.Wrapper):\n"
        "    def step(self, action):\n"
        "        raise ZeroDivisionError('the environment broke')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RunFailed) as raised:
        train(
            local_run(
                tmp_path / "run",
                actors__count=1,
                environment__wrappers=("broken_wrapper:Breaks",),
                supervision__restarts=0,
            )
        )
    assert "ZeroDivisionError: the environment broke" in str(raised.value)
    assert "in step" in str(raised.value)
    assert "actor_0" in str(raised.value)
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "Traceback" in log
    assert "failed: actor_0: ZeroDivisionError: the environment broke; " in log.splitlines()[-1]


@pytest.mark.parametrize("engine", ["local", "serial"])
def test_a_signal_after_the_engine_closed_does_no_harm(tmp_path: Path, engine: str) -> None:
    with Signals() as signals:
        Manager(
            Run(tiny_run(engine=engine), CARTPOLE, tmp_path, "run", time.monotonic()), Callbacks(), signals
        )._engine.close()
        os.kill(os.getpid(), signal.SIGINT)
    assert signals.received == [signal.SIGINT]


def test_a_failed_serial_run_leaves_no_file_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(engine: SerialEngine) -> bool:
        raise ZeroDivisionError("the learner broke")

    before = set(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(SerialEngine, "_learn", fail)
    with pytest.raises(RunFailed, match="the learner broke"):
        train(tiny_run(tmp_path))
    opened = [os.readlink(f"/proc/self/fd/{fd}") for fd in set(os.listdir("/proc/self/fd")) - before if alive(fd)]
    assert [path for path in opened if path.startswith(str(tmp_path))] == []


def alive(descriptor: str) -> bool:
    return Path(f"/proc/self/fd/{descriptor}").is_symlink()
