"""Writes docs/images/live.svg, the live view of a short run just before its end: `python -m docs.pictures live`."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path

from apex_acer import Callbacks, RunConfig, live_view, load_run, train
from apex_acer.config import StopConfig
from apex_acer.protocol.messages import Status
from apex_acer.views.console import recorded
from apex_acer.views.progress import Progress

PATH = Path(__file__).parent / "images" / "live.svg"
COMMAND = "apex-acer train cartpole --actors 3 --steps 40000 --until 1000"
SIZE = 96, 24  # columns, and lines at most


def example(folder: str) -> RunConfig:
    """The run of COMMAND."""
    stop = StopConfig(env_steps=40_000, at_return=1000.0)
    return load_run("cartpole", out=folder, actors={"count": 3}, stop=stop)


def seen(config: RunConfig) -> Progress:
    """Of a whole run, what was seen last while everybody worked."""
    pictures = []
    with live_view(config, io.StringIO()) as view:

        def look(status: Status) -> None:
            view.update(status)
            if set(status["states"].values()) == {"running"}:
                pictures.append(view.progress)

        train(config, Callbacks(on_status=look))
    return pictures[-1]


def main() -> None:
    """Trains in a folder that is gone afterwards, and writes the picture."""
    with tempfile.TemporaryDirectory() as folder:
        progress = seen(example(folder))
    PATH.parent.mkdir(exist_ok=True)
    PATH.write_text(recorded(progress, *SIZE).export_svg(title=COMMAND), encoding="utf-8")
