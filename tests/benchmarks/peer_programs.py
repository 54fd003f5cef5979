"""The peers' own environment, which `make bench-peers` makes, and programs that print their record last."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
VENV = ROOT / "build" / "peers"
PYTHON = VENV / "bin" / "python"
REQUIREMENTS = (
    "stable-baselines3==2.9.2",
    "pfrl==0.4.0",
    "packaging",
    "ale-py",
    "gymnasium[box2d]",
    "opencv-python-headless",
)  # PFRL does not say that it needs the last
OURS = "apex_acer"
DISTRIBUTIONS = ("stable-baselines3", "pfrl", "torch", "gymnasium", "numpy")
DEADLINE_S = 300.0

Record = dict[str, Any]


class Failed(Exception):
    """A program that gave no record; the message is one line."""


def script(name: str, *flags: str) -> list[str]:
    """The command that runs a peer's script in the peers' own environment."""
    return [str(PYTHON), "-W", "ignore", str(Path(__file__).with_name(name)), *flags]


def last_json(command: list[str], deadline_s: float = DEADLINE_S, variables: dict[str, str] | None = None) -> Record:
    """The JSON object that a program prints last, run with more environment `variables`. Raises `Failed`.

    The program and what it started end within the deadline.
    """
    pipe, environment = subprocess.PIPE, {**os.environ, **(variables or {})}
    with subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, start_new_session=True, env=environment
    ) as process:
        try:
            output, errors = process.communicate(timeout=deadline_s)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                raise Failed(f"no end within {deadline_s:.0f} s") from None
            raise
    if process.returncode or not output.strip():
        raise Failed(f"exit code {process.returncode}: {(errors.strip() or 'no message').splitlines()[-1]}")
    record: Record = json.loads(output.splitlines()[-1])
    return record


def make_venv() -> None:
    """The peers' environment, unless it is there: the packages the project pins, in the same versions, and the peers."""
    done, constraints = VENV / ".installed", ROOT / "constraints.txt"
    wanted = "\n".join([*REQUIREMENTS, constraints.read_text(encoding="utf-8")])
    if done.exists() and done.read_text(encoding="utf-8") == wanted:
        return
    venv.create(VENV, with_pip=True, clear=True)
    install = [str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    install += ["--constraint", str(constraints)]
    subprocess.run([*install, "torch"], check=True)
    subprocess.run([*install, *REQUIREMENTS], check=True)
    done.write_text(wanted, encoding="utf-8")


def versions() -> dict[str, str]:
    """Those of the packages that ran."""
    code = "import json, sys; from importlib.metadata import version; print(json.dumps([version(n) for n in sys.argv[1:]]))"
    found = subprocess.check_output([str(PYTHON), "-c", code, *DISTRIBUTIONS], text=True)
    own = subprocess.check_output([sys.executable, "-c", code, OURS], text=True)
    return dict(zip((OURS, *DISTRIBUTIONS), json.loads(own) + json.loads(found), strict=True))
