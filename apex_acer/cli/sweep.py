"""`apex-acer sweep RUN [flags]`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro

from apex_acer.cli.parsing import parse_run
from apex_acer.config import RunConfig
from apex_acer.config.imports import missing

FLAGS = {
    "--seeds N": "seeds of every variant, from --seed upwards (5)",
    "--vary KEY=V1,V2": "values of a key; every combination of several --vary is a variant",
    "--jobs N": "runs at the same time; 0: what fits the cores",
    "--final-episodes N": "fresh episodes that every finished run's weights play (0)",
}


@dataclass(frozen=True)
class Sweep:
    """Trains seeds of variants of a run. RUN and its keys are as for `train`; a sweep goes on where its `--out` ended."""

    config: Annotated[RunConfig, tyro.conf.arg(name="")]
    seeds: int = 5
    """Seeds of every variant, from `--seed` upwards."""
    vary: Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="KEY=V1,V2,...")] = ()
    """Values of a key; every combination of several `--vary` is a variant. 64+64 is a tuple, K1:K2=V1:V2,W1:W2 a pair."""
    jobs: int = 0
    """Runs at the same time; 0: one per core with the serial engine, one per two cores otherwise."""
    final_episodes: int = 0
    """Fresh episodes that every finished run's weights play; 0: none."""


def run(arguments: list[str]) -> int:
    """Trains them all; the exit code says whether each run ended well."""
    given = parse_run(Sweep, arguments, "sweep", FLAGS)
    try:
        from apex_acer.tools.sweep.sweep import plan_sweep, sweep
    except ModuleNotFoundError as error:
        raise missing("sweep", "sweep", error) from None
    plan = plan_sweep(
        given.config,
        arguments,
        seeds=given.seeds,
        vary=given.vary,
        at_once=given.jobs,
        final_episodes=given.final_episodes,
    )
    return sweep(plan)
