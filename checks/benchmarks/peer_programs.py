"""The peers' own environments, which `make bench-peers` and `make race` make, and programs that print their record last."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
# what computes has our version; the rest has what the peers ask for
SHARED = "torch", "numpy", "gymnasium", "ale-py", "mujoco"
PINS = [
    line
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    if line.split("==")[0] in SHARED
]


class Venv(NamedTuple):
    """An environment for peers whose requirements go together."""

    name: str
    requirements: tuple[str, ...]

    @property
    def folder(self) -> Path:
        """Where it is."""
        return ROOT / "build" / self.name

    @property
    def python(self) -> str:
        """Its interpreter."""
        return str(self.folder / "bin" / "python")

    def make(self) -> None:
        """Installs it, unless it is there."""
        done = self.folder / ".installed"
        wanted = "\n".join([*self.requirements, *PINS])
        if done.exists() and done.read_text(encoding="utf-8") == wanted:
            return
        venv.create(self.folder, with_pip=True, clear=True)
        install = [self.python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*install, *PINS, *self.requirements], check=True)
        done.write_text(wanted, encoding="utf-8")


PEERS = Venv(
    "peers",
    (
        "stable-baselines3==2.9.2",
        "rl_zoo3==2.9.2",
        "pfrl==0.4.0",
        "packaging",
        "gymnasium[box2d,mujoco]",
        "opencv-python-headless",  # PFRL does not say that it needs it
        "supersuit",
        "mpe2",
    ),
)
OURS = "apex_acer"
DISTRIBUTIONS = ("stable-baselines3", "sb3-contrib", "rl_zoo3", "pfrl", "supersuit", "torch", "gymnasium", "numpy")
DEADLINE_S = 300.0

Record = dict[str, Any]


class Failed(Exception):
    """A program that gave no record; the message is one line."""


def script(name: str, *flags: str) -> list[str]:
    """The command that runs a peer's script in its environment."""
    return [PEERS.python, "-W", "ignore", str(Path(__file__).with_name(name)), *flags]


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


def versions() -> dict[str, str]:
    """Versions of the packages that ran, by name."""
    code = "import json, sys; from importlib.metadata import version; print(json.dumps([version(n) for n in sys.argv[1:]]))"

    def of(python: str, *names: str) -> dict[str, str]:
        return dict(
            zip(names, json.loads(subprocess.check_output([python, "-c", code, *names], text=True)), strict=True)
        )

    return of(sys.executable, OURS) | of(PEERS.python, *DISTRIBUTIONS)
