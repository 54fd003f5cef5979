"""Each finding with the fault that it is there for, and the verb as a user meets it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from apex_acer.cli import main
from apex_acer.config import RunConfig
from apex_acer.config.runfile import load_run
from apex_acer.tools.doctor import installation
from apex_acer.tools.doctor.installation import Finding
from apex_acer.tools.doctor.run import (
    check_bfloat16,
    check_cores,
    check_device,
    check_disk,
    check_games,
    check_memory,
    check_open_files,
)

Doctor = Callable[..., tuple[int, str, str]]
CPU = torch.device("cpu")
RATES = {"environment": 9000.0, "acting": 4000.0, "update": 900.0}


@pytest.fixture
def doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Doctor:
    """The verb in an empty folder, with rates that are made up: its exit code and what it prints on both streams."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("apex_acer.tools.doctor.run.measure", lambda run, names, **how: {n: RATES[n] for n in names})

    def call(*arguments: str) -> tuple[int, str, str]:
        code = main(["doctor", *arguments])
        return code, *capsys.readouterr()

    return call


def cartpole(section: str, **values: Any) -> RunConfig:
    """Cartpole with two actors and a section's values replaced."""
    config = load_run("cartpole")
    config = dataclasses.replace(config, actors=dataclasses.replace(config.actors, count=2))
    return dataclasses.replace(config, **{section: dataclasses.replace(getattr(config, section), **values)})


PLAIN = cartpole("actors")


def test_a_machine_that_can_train_is_told_how_fast(doctor: Doctor, tmp_path: Path) -> None:
    code, out, errors = doctor("cartpole", "--json")
    assert code == 0, errors
    said = json.loads(out)
    findings = {finding["topic"]: finding for finding in said["findings"]}
    assert (said["run"], said["works"]) == ("cartpole", True)
    assert {finding["level"] for finding in findings.values()} <= {"ok", "warning"}
    assert {"python", "packages", "cores", "gpu", "memory", "disk", "settings", "speed", "expect"} <= findings.keys()
    assert f"torch {torch.__version__}" in findings["packages"]["text"]
    assert findings["speed"]["figures"] == RATES
    expected = findings["expect"]["figures"]
    assert 50 < expected["ceiling"] <= 900 / 9  # a learner with one thread, replay ratio 8
    assert expected["env_steps_per_s"] == pytest.approx(0.9 * expected["ceiling"])
    assert not list(tmp_path.iterdir())


def test_a_run_that_cannot_work_exits_1_and_an_unknown_one_2(doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('environment.id = "Pong-v5"')
    code, out, errors = doctor("run.toml")
    assert code == 1, errors
    last = out.splitlines()[-1]
    assert last.startswith("problem  environment")
    assert "did you mean 'ALE/Pong-v5'?; correct the run file" in last
    assert "Traceback" not in errors
    code, _, errors = doctor("cartpol")
    assert (code, errors.count("\n")) == (2, 1)
    assert "did you mean 'cartpole' or " in errors


def test_missing_and_old_packages_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = ("beneath>=2", "torch>=1", 'lacking>=1; extra == "sweep"', 'beneath[all]; extra == "all"')
    for name, requires in {"ours": ours, "beneath": ('absent>=2; extra == "all"',)}.items():
        lines = [f"Name: {name}", "Version: 1.5", *(f"Requires-Dist: {text}" for text in requires)]
        extras = ["Provides-Extra: sweep", "Provides-Extra: all", "Provides-Extra: dev"]
        (tmp_path / f"{name}-1.5.dist-info").mkdir()
        (tmp_path / f"{name}-1.5.dist-info/METADATA").write_text("\n".join([*lines, *extras, ""]))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(installation, "DISTRIBUTION", "ours")
    python, packages, *extra = installation.check_installation()
    assert python.level == "ok"
    assert packages == Finding("packages", "problem", "beneath is 1.5, not >=2", "pip install ours")
    assert [(found.topic, found.level) for found in extra] == [("extra sweep", "ok"), ("extra all", "ok")]
    assert extra[0].text.startswith("lacking is not installed: pip install 'apex-acer[sweep]'")
    assert extra[1].text.startswith("absent is not installed: pip install 'apex-acer[all]'")


def test_files_memory_and_disk_that_a_run_has_not_enough_of_and_games_that_are_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda kind: (1024, 4096))
    assert check_open_files(PLAIN).level == "ok"
    found = check_open_files(cartpole("actors", count=400))
    assert (found.level, found.advice) == ("problem", "ulimit -n 1664")
    assert check_memory(PLAIN, 1e15).level == "problem"
    assert check_memory(PLAIN, 0).level != "problem"
    (tmp_path / "file").touch()
    stored = cartpole("checkpoint", replay=True)
    for config in (PLAIN, stored):
        assert check_disk(dataclasses.replace(config, out=str(tmp_path / "run")), 1.0).level == "ok"
        assert check_disk(dataclasses.replace(config, out=str(tmp_path / "file" / "run")), 0).level == "problem"
    # without it replay stays in memory
    assert [check_disk(config, 1e18).level for config in (PLAIN, stored)] == ["ok", "problem"]
    assert check_games(needed=True).level == "ok"
    monkeypatch.setenv("ALE_ROMS_DIR", str(tmp_path))
    assert [check_games(needed=needed).level for needed in (True, False)] == ["problem", "warning"]
    assert "0 of " in check_games(needed=True).text


def test_a_containers_limits_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apex_acer.engines.machine.CONTROL_GROUP", tmp_path)
    for name, text in {"cpu.max": "50000 100000", "memory.max": "3000000000", "memory.current": "2900000000"}.items():
        (tmp_path / name).write_text(f"{text}\n")
    cores, memory = check_cores(), check_memory(PLAIN, 0)
    assert cores.level == memory.level == "warning"
    assert "limited to the time of 0.5" in cores.text
    assert memory.text == "100.0 MB unused of 3.0 GB; about 1.4 GB needed"
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert "limited" not in check_cores().text


def test_a_device_that_is_not_there_or_lacks_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    device, found = check_device("cuda:99")
    assert (device, found.level) == (CPU, "problem")
    assert check_device("cpu")[1].level == "ok"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("apex_acer.engines.machine.has_gpu", lambda name: True)
    assert check_device("auto")[1].level == "warning"
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
    assert check_bfloat16(CPU, matters=True).level == "warning"  # to convolutions
    assert check_bfloat16(CPU, matters=False).level == "ok"
