"""`apex-acer doctor [RUN] [--json]`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tyro

from apex_acer.cli import EXIT_FAILED
from apex_acer.cli.notice import Notice
from apex_acer.cli.parsing import Flag, parse
from apex_acer.system.output import printable

if TYPE_CHECKING:
    from apex_acer.tools.doctor.finding import Finding


@dataclass(frozen=True)
class Doctor:
    """Checks this machine and installation for a run, and measures how fast it would be.

    That takes about half a minute, and longer while other programs keep the cores busy.
    """

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")] = "pong"
    """A preset, a TOML file or the folder of a run."""
    json: Flag = False
    """Print one JSON object instead of lines."""


def run(arguments: list[str]) -> int:
    """Prints the findings; returns 1 if a run could not work."""
    given = parse(Doctor, arguments, "doctor")
    findings = []
    with Notice(quiet=given.json) as notice:
        for finding in examine(given.run, notice.say):
            findings.append(finding)
            if not given.json:
                notice.clear()
                advice = f"; {finding.advice}" if finding.advice else ""
                print(printable(f"{finding.level:<8} {finding.topic:<12} {finding.text}{advice}"), flush=True)
    works = all(finding.level != "problem" for finding in findings)
    if given.json:
        print(json.dumps({"run": given.run, "works": works, "findings": [f._asdict() for f in findings]}))
    return 0 if works else EXIT_FAILED


def examine(run: str, say: Callable[[str], None]) -> Iterator[Finding]:
    """Findings about the installation and, if that is complete, about the machine and the run.

    `say` is told what is being done.
    """
    from apex_acer.tools.doctor.installation import check_installation

    complete = True
    for finding in check_installation():
        complete = complete and finding.level != "problem"
        yield finding
    if complete:
        say("loading torch")
        from apex_acer.tools.doctor.run import check_run

        yield from check_run(run, say)
