"""`apex-acer sweep RUN [flags]`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro

from apex_acer.cli.parsing import Jobs, parse_run
from apex_acer.config import RunConfig
from apex_acer.config.imports import needs

FLAGS = {
    "--seeds N": "seeds of each variant, counted from --seed (5)",
    "--vary KEY=V1,V2": "values of a key; with several --vary, each combination is a variant",
    "--jobs N": "runs at the same time; 0: as many as fit the cores",
    "--final-episodes N": "fresh episodes to play with the weights of each finished run (0)",
}


@dataclass(frozen=True)
class Sweep:
    """Trains seeds of variants of a run. RUN and its keys are as for `train`; a sweep in `--out` is continued."""

    config: Annotated[RunConfig, tyro.conf.arg(name="")]
    seeds: int = 5
    """Seeds of each variant, counted from `--seed`."""
    vary: Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="KEY=V1,V2,...")] = ()
    """Values of a key; with several `--vary`, each combination is a variant. 64+64 is a tuple, K1:K2=V1:V2,W1:W2 a pair."""
    jobs: Jobs = 0
    final_episodes: int = 0
    """Fresh episodes to play with the weights of each finished run; 0: none."""


def run(arguments: list[str]) -> int:
    """Runs the sweep; returns its exit code."""
    given = parse_run(Sweep, arguments, "sweep", FLAGS)
    with needs("sweep", "sweep"):
        from apex_acer.tools.sweep.sweep import plan_sweep, sweep
    plan = plan_sweep(
        given.config,
        arguments,
        seeds=given.seeds,
        vary=given.vary,
        at_once=given.jobs,
        final_episodes=given.final_episodes,
    )
    return sweep(plan)
