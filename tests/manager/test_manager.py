from __future__ import annotations

import json
import logging
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from apex_acer.config import RunConfig
from apex_acer.config.runfile import dump_run, load_run
from apex_acer.engines.machine import has_gpu
from apex_acer.engines.serial import SerialEngine
from apex_acer.manager import preparation
from apex_acer.manager.callbacks import Callbacks
from apex_acer.manager.manager import RunFailed, resume, train
from apex_acer.manager.preparation import make_folder
from tests.conftest import config_error
from tests.runs import tiny_run

HAS_GPU = has_gpu("auto")


def local_run(out: Path, **changes: Any) -> RunConfig:
    return tiny_run(out, **({"engine": "local"} | changes))


def test_a_run_is_named_as_on_the_command_line_and_a_folder_behind_a_link_is_its_own(tmp_path: Path) -> None:
    run, out = tmp_path / "mine.toml", tmp_path / "run"
    (tmp_path / "disk").mkdir()
    out.symlink_to("disk")
    run.write_text(dump_run(tiny_run()))
    result = train(run, seed=3, out=out, stop={"env_steps": 200})
    assert (result.reason, result.folder) == ("env_steps", str(out))
    assert (tmp_path / "disk" / "weights.safetensors").is_file()
    assert make_folder(tiny_run(), tmp_path).parent == tmp_path / "runs"
    assert load_run(out / "config.toml", out=out) == tiny_run(out, seed=3, stop__env_steps=200)


def test_a_misspelt_run_or_key_is_refused() -> None:
    assert config_error(lambda: train("cartpol")).startswith(
        "run: 'cartpol' is neither a preset nor a file; did you mean"
    )
    assert config_error(lambda: train("cartpole", sede=1)) == "keywords: unknown key sede; did you mean seed?"


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"load": "/nowhere/weights.safetensors"}, "load: "),
        ({"environment__id": "NoSuchGame-v0"}, "environment.id: "),
        ({"environment__id": "Pendulum-v1"}, "algorithm.name: "),
        ({"environment__kwargs": '{"surprise": 1}'}, "environment.id: "),
        pytest.param(
            {"learner__device": "cuda"}, "learner.device: ", marks=pytest.mark.skipif(HAS_GPU, reason="a GPU")
        ),
        ({"network__hidden_sizes": (10**6, 10**6)}, "network.hidden_sizes: "),
        ({"network__torso": "no_such_module:Torso"}, "network.torso: "),
        ({"optimizer__name": "colorsys:absent"}, "optimizer.name: "),
        ({"learner__callback": "json:absent"}, "learner.callback: "),
    ],
)
def test_what_needs_no_process_is_refused_before_the_folder_is_made(
    tmp_path: Path, changes: dict[str, Any], names: str
) -> None:
    message = config_error(lambda: train(local_run(tmp_path / "run", **changes)))
    assert message.startswith(names)
    assert not (tmp_path / "run").exists()


def test_videos_that_cannot_be_written_are_refused_before_the_folder_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparation, "find_spec", lambda name: None)
    message = config_error(lambda: train(local_run(tmp_path / "run", evaluation__video_every=1)))
    assert message.startswith("evaluation.video_every: av is not installed; pip install 'apex-acer[video]'")
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def weights(finished_run: Path) -> Path:
    return finished_run / "weights.safetensors"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"algorithm__name": "ppo"}, "algorithm.name is 'acer', this run's is 'ppo'"),
        ({"network__hidden_sizes": (8,)}, "network.hidden_sizes is [16], this run's is [8]"),
        ({"network__lstm": 4}, "network.lstm is 0, this run's is 4"),
        ({"environment__id": "Acrobot-v1"}, "the shape of observations is [4], this run's is [6]"),
    ],
)
def test_weights_of_another_run_are_refused_before_the_folder_is_made(
    weights: Path, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    message = config_error(lambda: train(local_run(tmp_path / "run", load=str(weights), **changes)))
    assert message == f"{weights}: {said}"
    assert not (tmp_path / "run").exists()


def test_what_holds_no_whole_weights_is_refused_and_its_folder_is_used_again(weights: Path, tmp_path: Path) -> None:
    path, run = tmp_path / "file", tmp_path / "run"
    for data in b"", b"text " * 100, b"\x02" + bytes(7) + b"{}":
        path.write_bytes(data)
        message = config_error(lambda: train(local_run(run, load=str(path))))
        assert message.startswith(f"{path}: no")
        assert message.endswith("; give a file this program wrote")
        assert not run.exists()
    path.write_bytes(weights.read_bytes()[:-1])
    for _ in range(2):
        assert "not a whole safetensors file" in config_error(lambda: train(tiny_run(run, load=str(path))))
    assert train(tiny_run(run, stop__env_steps=100)).reason == "env_steps"


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    message = config_error(lambda: train(local_run(tmp_path / "file" / "run")))
    assert message.startswith("out: ")
    assert "cannot be written" in message


def test_a_folder_of_another_run_or_with_files_of_the_user_s_is_left_as_it_is(
    finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `train config.toml --out .` is, in the folder of a project."""
    before = {path: path.read_bytes() for path in finished_run.iterdir() if path.is_file()}
    assert "holds another run, which `resume` continues" in config_error(
        lambda: train(tiny_run(finished_run, stop__env_steps=200))
    )
    assert before == {path: path.read_bytes() for path in finished_run.iterdir() if path.is_file()}
    monkeypatch.chdir(tmp_path)
    for name in "config.toml", "log.txt", ".hidden":
        (tmp_path / name).write_text("mine\n")
        line = config_error(lambda: train(tiny_run(".")))
        assert line == f"out: '.' is not empty, it holds {name!r}; give a new or empty folder"
        assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {name: "mine\n"}
        (tmp_path / name).unlink()


def test_runs_of_one_program_have_a_log_each(tmp_path: Path) -> None:
    """In threads; the level of one is not that of the other, and the package's is as it was afterwards."""
    both, level = threading.Barrier(2, timeout=60), logging.getLogger("apex_acer").level

    def work(name: str) -> None:
        heard = list[Any]()

        def say(status: Any) -> None:
            heard.append(status)
            if len(heard) == 1:
                both.wait()
                logging.getLogger("apex_acer.mine").info("here is %s", name)

        train(tiny_run(tmp_path / name, logging__level=name, stop__env_steps=200), Callbacks(on_status=say))

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(work, ["info", "warning"]))
    info, warning = ((tmp_path / name / "log.txt").read_text() for name in ("info", "warning"))
    assert info.count("here is") == info.count("here is info") == 1
    assert warning == ""
    assert logging.getLogger("apex_acer").level == level


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_run_is_saved_wherever_its_folder_is(tmp_path: Path, is_deleted: bool) -> None:
    folder, moved, heard = tmp_path / "run", tmp_path / "moved", []

    def move(status: Any) -> None:
        heard.append(status)
        if len(heard) == 2:
            shutil.rmtree(folder) if is_deleted else folder.rename(moved)

    changes = {"evaluation__every": 500, "checkpoint__every": 500, "stop__env_steps": 2000}
    result = train(tiny_run(folder, **changes), Callbacks(on_status=move))
    found = Path(result.folder)
    assert found.name.startswith("run-") if is_deleted else found == moved
    assert result.weights == str(found / "weights.safetensors")
    assert json.loads((found / "result.json").read_text())["weights"] == result.weights
    assert not folder.exists()
    assert resume(found, {"env_steps": 2200}).env_steps >= 2200


def test_a_failed_serial_run_leaves_no_file_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(engine: SerialEngine) -> bool:
        raise ZeroDivisionError("the learner broke")

    before = set(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(SerialEngine, "_learn", fail)
    with pytest.raises(RunFailed, match="the learner broke"):
        train(tiny_run(tmp_path))
    opened = [Path(f"/proc/self/fd/{fd}") for fd in set(os.listdir("/proc/self/fd")) - before]
    assert [path for path in opened if path.is_symlink() and str(path.readlink()).startswith(str(tmp_path))] == []
