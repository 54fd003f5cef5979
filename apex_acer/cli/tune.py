"""`apex-acer tune RUN --vary KEY=LOW:HIGH [flags]`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro

from apex_acer.cli.parsing import Jobs, parse_run
from apex_acer.config import RunConfig
from apex_acer.config.imports import needs

FLAGS = {
    "--trials N": "settings to try in total (50)",
    "--seeds N": "seeds that each setting trains, counted from --seed (3)",
    "--vary KEY=LOW:HIGH": "a range of a key; KEY=LOW:HIGH:log: on a logarithmic scale; KEY=V1,V2: some values",
    "--jobs N": "runs at the same time; 0: as many as fit the cores",
}


@dataclass(frozen=True)
class Tune:
    """Looks for a better setting of a run. RUN and its keys are as for `train`; a study in `--out` is continued."""

    config: Annotated[RunConfig, tyro.conf.arg(name="")]
    trials: int = 50
    """Settings to try in total, those of other machines and of earlier commands on the same study included."""
    seeds: int = 3
    """Seeds that each setting trains, counted from `--seed`."""
    vary: Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="KEY=LOW:HIGH")] = ()
    """A range of a key; KEY=LOW:HIGH:log on a logarithmic scale; KEY=V1,V2 some values, as for `sweep`."""
    jobs: Jobs = 0


def run(arguments: list[str]) -> int:
    """Runs the study; returns its exit code."""
    given = parse_run(Tune, arguments, "tune", FLAGS)
    with needs("tune", "tune"):
        from apex_acer.tools.tune.tune import plan_tuning, tune
    plan = plan_tuning(
        given.config, arguments, trials=given.trials, seeds=given.seeds, vary=given.vary, at_once=given.jobs
    )
    return tune(plan)
