"""`apex-acer train RUN [flags]`."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import tyro

from apex_acer import IMPORTED_AT
from apex_acer.cli import EXIT_FAILED, PROGRAM
from apex_acer.cli.parsing import Flag, parse_run
from apex_acer.config import RunConfig

if TYPE_CHECKING:
    from apex_acer.engines.engine import Run

FLAGS = {
    "--json": "print one JSON object as the last line of standard output",
    "--quiet": "print no progress: only errors, and what --json asks for",
}


@dataclass(frozen=True)
class Output:
    """What a run prints."""

    json: Flag = False
    """Print one JSON object as the last line of standard output, and progress on standard error."""
    quiet: Flag = False
    """Print no progress: only errors, and what `--json` asks for."""


@dataclass(frozen=True)
class Train:
    """Trains an agent. RUN, given first, is a preset (`apex-acer presets`) or a TOML file; flags override its keys."""

    config: Annotated[RunConfig, tyro.conf.arg(name="")]
    output: Annotated[Output, tyro.conf.arg(name="")] = field(default_factory=Output)


def run(arguments: list[str]) -> int:
    """Trains; returns the run's exit code."""
    config, output = parse_train(arguments)
    from apex_acer.manager.preparation import prepare

    return finish(prepare(config, IMPORTED_AT), output)


def parse_train(arguments: list[str]) -> tuple[RunConfig, Output]:
    """The configuration that the arguments of `train` describe, and what to print."""
    parsed = parse_run(Train, arguments, "train", FLAGS)
    return parsed.config, parsed.output


def finish(run: Run, output: Output) -> int:
    """Trains a prepared run to its end, with a live view unless `output.quiet`; returns the exit code."""
    from apex_acer.manager.manager import RunFailed, manage, watch
    from apex_acer.system.output import say

    # standard output belongs to the result: the serial engine's environments print in this process
    printed = contextlib.redirect_stdout(sys.stderr) if output.json else contextlib.nullcontext()
    try:
        with printed:
            result = manage(run) if output.quiet else watch(run, stream=sys.stdout)
    except RunFailed as error:
        say(f"{error}\n{PROGRAM}: the run failed; the lines above say where", sys.stderr)
        return EXIT_FAILED
    if output.quiet and result.exit_code == EXIT_FAILED:
        say(f"{PROGRAM}: {result.warning}", sys.stderr)
    if output.json:
        say(json.dumps(dataclasses.asdict(result)))
    return result.exit_code
