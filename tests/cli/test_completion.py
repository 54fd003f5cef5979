"""Completion as the shells themselves make it of the printed scripts."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from apex_acer.cli import main
from apex_acer.cli.verbs import VERBS
from apex_acer.config.runfile import presets
from tests.conftest import Refused, assert_refused
from tests.terminals import terminal
from tests.test_layering import loaded_by

BASH = """source "$1"
function=$(complete -p apex-acer | sed 's/.*-F \\([^ ]*\\) .*/\\1/')
COMP_WORDS=("${@:2}"); COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
$function; printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the script of each shell."""
    folder = tmp_path_factory.mktemp("scripts")
    for shell in ("bash", "zsh", "fish"):
        with (folder / shell).open("w") as file, contextlib.redirect_stdout(file):
            assert main(["completion", shell]) == 0
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a user stands: a run file, a run, its weights, and something else."""
    (tmp_path / "my runs").mkdir()
    for name in ("mine.toml", "best.safetensors", "notes.txt"):
        (tmp_path / name).touch()
    return tmp_path


def in_bash(script: Path, folder: Path, *words: str) -> set[str]:
    done = subprocess.run(["bash", "-c", BASH, "bash", script, *words], capture_output=True, text=True, cwd=folder)
    assert not done.stderr
    return set(done.stdout.splitlines()) - {""}


def in_fish(script: Path, folder: Path, *words: str) -> set[str]:
    command = ["fish", "--no-config", "-c", f"source {script}; complete -C '{' '.join(words)}'"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env={**os.environ, "HOME": str(folder)})
    assert not done.stderr
    return {line.partition("\t")[0].rstrip("/") for line in done.stdout.splitlines()}


needs_fish = pytest.mark.skipif(not shutil.which("fish"), reason="fish is not installed")
SHELLS = [pytest.param("bash", in_bash, id="bash"), pytest.param("fish", in_fish, id="fish", marks=needs_fish)]


@pytest.mark.parametrize(("shell", "complete"), SHELLS)
def test_each_place_gets_what_belongs_there(
    scripts: Path, folder: Path, shell: str, complete: Callable[..., set[str]]
) -> None:
    def offered(*words: str) -> set[str]:
        return complete(scripts / shell, folder, "apex-acer", *words)

    assert offered("") >= set(VERBS)
    assert offered("res") == {"resume"}
    assert offered("train", "") == {*presets(), "mine.toml", "my runs"}
    assert offered("train", "atari") == {name for name in presets() if name.startswith("atari")}
    assert offered("resume", "") == {"my runs"}
    assert offered("evaluate", "") == {"best.safetensors", "my runs"}
    assert offered("train", "pong", "--algorithm.trust") == {"--algorithm.trust-region-delta"}
    assert offered("train", "pong", "--engine", "") == {"local", "serial", "ray"}
    assert offered("resume", "my runs", "--log-level", "") == {"debug", "info", "warning", "error"}
    assert offered("evaluate", "--po") == {"--policy"}
    assert offered("sweep", "pong", "--see") == {"--seed", "--seeds"}
    assert offered("completion", "") == {"bash", "zsh", "fish"}
    assert offered("presets", "sh") == {"show"}
    assert offered("train", "pong", "--out", "my") == {"my runs"}


@pytest.mark.parametrize(("shell", "options"), [("bash", ("--norc", "--noprofile")), ("zsh", ("-f",))])
def test_the_tab_key_completes(scripts: Path, folder: Path, shell: str, options: tuple[str, ...]) -> None:
    """In an interactive shell on a real terminal."""
    if not shutil.which(shell):
        pytest.skip(f"no {shell}")
    with terminal(folder, 200, command=(shell, *options, "-i"), TERM="dumb", HOME=str(folder)) as screen:
        for keys, shown in (
            (f"source {scripts / shell}; echo sour''ced\n", "^sourced"),
            ("apex-acer tra\t", "apex-acer train"),
            ("mine\t", r"mine\.toml"),
            (" --optimizer.le\t", "--optimizer.learning-rate"),
            ("1e-3 --engine se\t", "serial"),
            ("\x15apex-acer evaluate be\t", r"best\.safetensors"),
            ("\x15apex-acer resume my\t", r"my\\ runs/"),
        ):
            screen.type(keys)
            screen.wait_for(shown)


def test_completing_runs_no_python(scripts: Path, folder: Path) -> None:
    """With nothing on the path a shell still completes."""
    words = "COMP_WORDS=(apex-acer train po); COMP_CWORD=2"
    script = f'source {scripts / "bash"}; PATH=; {words}; _apex_acer; echo "$COMPREPLY"'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, cwd=folder, check=True)
    assert (done.stdout, done.stderr) == ("pong\n", "")


def test_printing_a_script_loads_no_torch() -> None:
    loaded = loaded_by("import sys\nfrom apex_acer.cli import main\nmain(['completion', 'fish'])")
    assert "apex_acer" in loaded
    assert not loaded & {"torch", "gymnasium", "matplotlib"}


def test_other_shells_are_refused(refused: Refused) -> None:
    table = {"completion": "SHELL is missing", "completion tcsh": "give bash, zsh or fish"}
    assert_refused(refused, table | {"completion bash zsh": "unexpected argument 'zsh'"})
