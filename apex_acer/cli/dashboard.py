"""`apex-acer dashboard DIR [--port N]`."""

from __future__ import annotations

import contextlib
import io
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from apex_acer.cli.parsing import parse
from apex_acer.config import ConfigError, require
from apex_acer.config.imports import missing


@dataclass(frozen=True)
class Dashboard:
    """Shows a run or a folder of runs, also while they train, in TensorBoard on 127.0.0.1. Ends with Ctrl-C."""

    folder: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
    """A run's folder, or one with runs in it."""
    port: int | None = None
    """Port of the page; by default 6006 or the next free one; 0: any free one."""


def run(arguments: list[str]) -> int:
    """Prints the address and serves until Ctrl-C."""
    given = parse(Dashboard, arguments, "dashboard")
    require(given.port is None or 0 <= given.port < 2**16, "port", given.port, "give 0 to 65535")
    folder = Path(given.folder)
    has_events = next(folder.rglob("*.tfevents.*"), None) is not None
    require(has_events, "dashboard", given.folder, "give a run's folder, or one with runs in it")
    tb = folder / "tb"
    print(f"{serve(tb if tb.is_dir() else folder, given.port)}#custom_scalars  (Ctrl-C ends it)", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        signal.pause()
    return 0


def serve(folder: Path, port: int | None) -> str:
    """TensorBoard of `folder` from now until this process ends; returns its address.

    TensorBoard gives its reader of files, the one process that it starts, 15 s, and does its work itself after that.
    The reader ends when this process does.

    Raises:
        ConfigError: if `port` cannot be had, or TensorBoard is not installed.
    """
    try:
        from tensorboard import program
    except ModuleNotFoundError as error:
        raise missing("dashboard", "dashboard", error) from None
    board = program.TensorBoard()
    board.configure(argv=("", "--logdir", str(folder), "--host", "127.0.0.1"), port=port)
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # it speaks of its own options
            return str(board.launch())
    except program.TensorBoardPortInUseError:
        raise ConfigError(f"port: {port} is in use; give another one, or none for the next free one") from None
    except program.TensorBoardServerException as error:
        raise ConfigError(f"port: {error.msg}") from None
