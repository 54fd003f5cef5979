"""An environment is tried in a process of its own, which keeps what it does from the program."""

from __future__ import annotations

import dataclasses
import sys
import threading
import time
from pathlib import Path

import pytest

from apex_acer.config import RunConfig
from apex_acer.environments import check
from apex_acer.environments.check import check_environment
from apex_acer.manager.preparation import prepare
from tests.conftest import config_error
from tests.environments.test_check import own
from tests.environments_for_tests import Clock, register
from tests.runs import tiny_run

NAME = "own_environment:Own-v0"
LATE = f"environment.id: {NAME!r} did not answer within 0.6 s; give one that answers"


def apart(folder: Path, monkeypatch: pytest.MonkeyPatch, made: str) -> RunConfig:
    """The configuration of a run of processes in an environment whose constructor does what `made` says."""
    return dataclasses.replace(own(folder, monkeypatch, made=made), engine="local", out="run")


def runs(pid: int) -> bool:
    """Whether the process `pid` has not ended; one that nobody has waited for has."""
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def test_folders_threads_prints_and_programs_are_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    written = f"open({str(tmp_path / 'pid')!r}, 'a').write(f'{{subprocess.Popen([\"sleep\", \"987\"]).pid}} ')"
    made = f"print('made'); os.chdir('/'); threading.Thread(target=time.sleep, args=(10_000,)).start(); {written}"
    run = prepare(apart(tmp_path, monkeypatch, made), 0.0)
    assert run.folder == tmp_path / "run"
    assert Path.cwd() == tmp_path
    assert {thread for thread in threading.enumerate() if not thread.daemon} == {threading.main_thread()}
    assert "own_environment" not in sys.modules
    assert capfd.readouterr() == ("", "made\nmade\n")
    assert run.notes == (run.spec.describe(),)
    programs = [int(pid) for pid in (tmp_path / "pid").read_text().split()]
    assert len(programs) == 2
    until = time.monotonic() + 10
    while any(map(runs, programs)) and time.monotonic() < until:
        time.sleep(0.01)
    assert not any(map(runs, programs))


@pytest.mark.parametrize(
    ("made", "problem"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "ended the process that tried it (SIGSEGV); give one that goes on"),
        ("os._exit(3)", "ended the process that tried it (exit code 3); give one that goes on"),
    ],
)
def test_a_crash_of_it_is_one_line_and_no_folder_is_made(
    made: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = config_error(lambda: prepare(apart(tmp_path, monkeypatch, made), 0.0))
    assert message.startswith(f"environment.id: {NAME!r} {problem}")
    assert not (tmp_path / "run").exists()


def test_a_hang_of_it_is_told_and_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(check, "NOTICE_S", 0.2)
    monkeypatch.setattr(check, "DEADLINE_S", 0.6)
    assert config_error(lambda: check_environment(apart(tmp_path, monkeypatch, "time.sleep(60)"))) == LATE
    where = "own_environment.py:10 in __init__"
    said = f"environment.id: {NAME!r} has not answered for 0.2 s, at {where}; Ctrl-C ends this"
    assert caplog.messages == [said]


def test_native_code_that_never_returns_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "DEADLINE_S", 0.6)
    monkeypatch.setattr(check, "GRACE_S", 0.0)
    assert config_error(lambda: check_environment(apart(tmp_path, monkeypatch, "sum(range(10 ** 12))"))) == LATE


class Here(Clock):
    """Is registered by this module, which processes do not import."""


def test_an_id_of_this_program_alone_is_for_the_serial_engine() -> None:
    register("Here-v0", Here)
    config = tiny_run(engine="local", environment__id="Here-v0")
    message = config_error(lambda: check_environment(config))
    assert message.startswith("environment.id: 'Here-v0' is registered in this program only, which its processes do")
    check_environment(dataclasses.replace(config, engine="serial"))
