"""`apex-acer train RUN [flags]`."""

from __future__ import annotations

import dataclasses
import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tyro

from apex_acer import IMPORTED_AT
from apex_acer.cli import EXIT_FAILED, PROGRAM
from apex_acer.cli.parsing import Flag, parse_run
from apex_acer.config import RunConfig

if TYPE_CHECKING:
    from apex_acer.engines.engine import Run

FLAGS = {"--json": "one JSON object as the last line of standard output"}


@dataclass(frozen=True)
class Train:
    """Trains an agent. RUN, given first, is a preset (`apex-acer presets`) or a TOML file; flags override its keys."""

    config: Annotated[RunConfig, tyro.conf.arg(name="")]
    json: Flag = False
    """Print one JSON object as the last line of standard output, and progress on standard error."""


def run(arguments: list[str]) -> int:
    """Trains; the exit code is the run's."""
    config, as_json = parse_train(arguments)
    from apex_acer.manager import prepare

    return watch(prepare(config, IMPORTED_AT), as_json)


def parse_train(arguments: list[str]) -> tuple[RunConfig, bool]:
    """The configuration that the arguments of `train` give, and whether `--json` is among them."""
    parsed = parse_run(Train, arguments, "train", FLAGS)
    return parsed.config, parsed.json


def watch(run: Run, as_json: bool) -> int:
    """A prepared run to its end, with its live view; returns the exit code."""
    from apex_acer.callbacks import Callbacks
    from apex_acer.console import live_view
    from apex_acer.manager import RunFailed, manage
    from apex_acer.output import printable_lines, say
    from apex_acer.placement import describe
    from apex_acer.signals import Signals

    stream = sys.stderr if as_json else sys.stdout
    say(describe(run.config), stream)
    try:
        with Signals() as signals, live_view(run.config, stream) as view:  # no signal finds the terminal half restored
            result = manage(run, Callbacks(on_status=view.update), signals)
            view.conclude(result)
    except RunFailed as error:
        say(f"{printable_lines(str(error))}\n{PROGRAM}: the run failed; the lines above say where", sys.stderr)
        return EXIT_FAILED
    if as_json:
        say(json.dumps(dataclasses.asdict(result)))
    return result.exit_code
