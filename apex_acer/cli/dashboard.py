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
from apex_acer.config.imports import needs


@dataclass(frozen=True)
class Dashboard:
    """Shows a run or a folder of runs in TensorBoard on 127.0.0.1, also while they train. Ctrl-C ends it."""

    folder: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
    """The folder of a run, or a folder of runs."""
    port: int | None = None
    """Port of the page; by default 6006 or the next free port; 0: any free port."""


def run(arguments: list[str]) -> int:
    """Prints the address and serves until Ctrl-C."""
    given = parse(Dashboard, arguments, "dashboard")
    require(given.port is None or 0 <= given.port < 2**16, "port", given.port, "give 0 to 65535")
    folder = Path(given.folder)
    has_events = next(folder.rglob("*.tfevents.*"), None) is not None
    require(has_events, "dashboard", given.folder, "give the folder of a run, or a folder of runs")
    tb = folder / "tb"
    print(f"{serve(tb if tb.is_dir() else folder, given.port)}#custom_scalars  (Ctrl-C ends it)", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        signal.pause()
    return 0


def serve(folder: Path, port: int | None) -> str:
    """Starts TensorBoard for `folder`; it runs until this process ends. Returns its address.

    TensorBoard starts one process, which reads the files and ends with this one. If that process is not ready within 15 s,
    TensorBoard reads the files itself. Raises `ConfigError` if `port` cannot be used or TensorBoard is not installed.
    """
    with needs("dashboard", "dashboard"):
        from tensorboard import program
    board = program.TensorBoard()
    board.configure(argv=("", "--logdir", str(folder), "--host", "127.0.0.1"), port=port)
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # its messages name its own options
            return str(board.launch())
    except program.TensorBoardPortInUseError:
        raise ConfigError(f"port: {port} is in use; give another port, or none for the next free one") from None
    except program.TensorBoardServerException as error:
        raise ConfigError(f"port: {error.msg}") from None
