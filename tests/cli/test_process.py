"""The command line as a process among others: its streams, its signals and the folder it stands in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT

COMMAND = str(Path(sys.executable).with_name("apex-acer"))
MODULE = f"{sys.executable} -m apex_acer"
TINY = "cartpole --actors 1 --steps 400 --evaluation.every 100000"
MINE = "import gymnasium\ngymnasium.register('Mine-v0', 'gymnasium.envs.classic_control:CartPoleEnv', max_episode_steps=50)"


def shell(command: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """In bash, whose exit code is that of the first program of a pipe."""
    script = f"{command}; exit ${{PIPESTATUS[0]}}"
    environment = {**os.environ, **variables}
    return subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, timeout=250, cwd=folder, env=environment
    )


@pytest.mark.parametrize("engine", ["serial", pytest.param("local", marks=pytest.mark.slow)])
@pytest.mark.parametrize("streams", ["| true", ">&- 2>&- <&-"])
def test_a_reader_who_leaves_and_closed_streams_end_no_run_and_give_no_traceback(
    tmp_path: Path, streams: str, engine: str
) -> None:
    unbuffered = {"PYTHONUNBUFFERED": "1"} if engine == "local" else {}
    for command in ("--help", f"train {TINY} --engine {engine} --out run"):
        done = shell(f"{COMMAND} {command} {streams}", tmp_path, **unbuffered)
        assert (done.returncode, done.stderr) == (0, "")
    assert "ended: TrainResult(reason='env_steps'" in (tmp_path / "run" / "log.txt").read_text()


def test_what_cannot_be_printed_is_said_in_one_line(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    done = shell(f"{COMMAND} --help > /dev/full", tmp_path)
    assert done.returncode == 1
    assert done.stderr == "apex-acer: the output cannot be written: No space left on device\n"


INTERRUPT = """
import os, signal, sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["AT_IMPORT_OF"]:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
"""


@pytest.mark.parametrize(("command", "module"), [(COMMAND, "numpy"), (MODULE, "apex_acer.cli.verbs")])
def test_ctrl_c_while_python_imports_is_one_line(tmp_path: Path, command: str, module: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(INTERRUPT)
    done = shell(f"{command} train {TINY}", tmp_path, PYTHONPATH=f"{tmp_path}:{ROOT}", AT_IMPORT_OF=module)
    assert (done.returncode, done.stderr) == (130, "apex-acer: interrupted\n")


@pytest.fixture
def shadows(tmp_path: Path) -> Path:
    """A folder with modules of the names of Python's own, and one of the user's."""
    for name in ("random", "queue", "signal", "typing", "logging", "json", "copy", "tempfile"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not the one of Python')")
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "mine.toml").write_text('base = "cartpole"\n[environment]\nid = "mine:Mine-v0"\n')
    return tmp_path


RUN = "mine.toml --actors 1 --steps 400 --evaluation.every 100000 --engine"


@pytest.mark.parametrize(
    "command",
    [
        f"{COMMAND} train {RUN} serial --json",
        *(
            pytest.param(command, marks=pytest.mark.slow)
            for command in (
                f"{MODULE} train {RUN} local --json",
                f"{COMMAND} sweep {RUN} serial --seeds 1",
                f"{MODULE} plan mine.toml --json",
            )
        ),
    ],
)
def test_a_user_s_module_is_found_and_takes_the_place_of_none_of_python_s(shadows: Path, command: str) -> None:
    done = shell(command, shadows)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " train " not in command or list(shadows.glob("runs/mine-v0-*/weights.safetensors"))
    if "--json" in command:
        assert json.loads(done.stdout.splitlines()[-1])


def test_a_folder_that_is_gone_is_one_line(tmp_path: Path) -> None:
    done = shell(f"mkdir gone; cd gone; rmdir ../gone; {COMMAND} train {TINY}", tmp_path)
    said = "apex-acer: the current folder cannot be used (No such file or directory); cd to one that exists\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said)
