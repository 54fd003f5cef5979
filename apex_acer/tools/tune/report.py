"""The results of a study: `results.json`, `best.toml`, the table and the figure. None of them contains an absolute path."""

from __future__ import annotations

import dataclasses
from typing import Any

from rich.table import Table

from apex_acer.config.runfile import dump_run, short_keys, short_text
from apex_acer.system.files import write
from apex_acer.tools.sweep.report import as_text, draw_curves, write_json
from apex_acer.tools.tune.plan import TunePlan, settings
from apex_acer.tools.tune.study import Study, Trial

BEST = "best.toml"
MOST_ROWS = 10  # of the table
MOST_LINES = 5  # of the figure, besides trial 0


class Report:
    """Reports of a study's trials so far, written to its folder."""

    def __init__(self, plan: TunePlan, study: Study) -> None:
        self._plan, self._study = plan, study
        self._runs: dict[int, dict[str, Any]] = {}  # by the number of a complete trial
        self._labels = short_keys([key for keys in plan.space for key in keys.split(":")])

    def save(self) -> None:
        """Writes `results.json` and `best.toml`."""
        ranked = self._study.ranked()
        data = {
            "command": self._plan.command,
            **self._plan.identity,
            "best": ranked[0].number if ranked else None,
            "importance": {key: round(share, 3) for key, share in self._study.importance().items()},
            "trials": [self._row(trial) for trial in self._study.trials()],
            "variants": self._variants(),
        }
        with self._study.alone():
            write_json(self._plan.folder / "results.json", data)
            if ranked:
                write(self._plan.folder / BEST, self._run_file(ranked[0]).encode())

    def draw(self) -> None:
        """Draws the curves of the best trials and of trial 0 into `curves.png`."""
        if drawing := draw_curves({"variants": self._variants()}, [self._plan.base.environment.id]):
            with self._study.alone():
                write(self._plan.folder / "curves.png", drawing)

    def line(self, number: int) -> str:
        """How a trial ended, and its settings."""
        trial = next(trial for trial in self._study.trials() if trial.number == number)
        ends = {"failed": f"failed: {trial.error}", "pruned": "ended early"}
        values = ", ".join(f"{self._labels[key]}={_short(value)}" for key, value in self._values(trial).items())
        return f"{ends.get(trial.state, self._score(trial))}: {values}"

    def text(self) -> str:
        """A table of the best trials, the number of trials in each state, and each key's importance."""
        shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for head in ("trial", "score", *self._labels.values()):
            shown.add_column(head, justify="right")
        for trial in self._study.ranked()[:MOST_ROWS]:
            values = self._values(trial)
            shown.add_row(str(trial.number), self._score(trial), *(_short(values[key]) for key in self._labels))
        states = [trial.state for trial in self._study.trials()]
        counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
        shares = ", ".join(f"{key} {share:.0%}" for key, share in self._study.importance().items())
        return "\n".join(filter(None, [as_text(shown), f"trials: {counts}", shares and f"importance: {shares}"]))

    def _variants(self) -> dict[str, Any]:
        """The trials of the figure, as variants of a sweep."""
        variants = {}
        for rank, trial in enumerate(self._study.ranked()):
            if rank >= MOST_LINES and trial.number != 0:
                continue
            if trial.number not in self._runs:
                jobs = self._plan.jobs(trial.number, self._plan.config(trial.chosen))
                results = {str(job.config.seed): job.record(result) for job in jobs if (result := job.finished())}
                self._runs[trial.number] = results
            variants[f"trial {trial.number}"] = {"overrides": self._values(trial), "runs": self._runs[trial.number]}
        return variants

    def _row(self, trial: Trial) -> dict[str, Any]:
        row = {"number": trial.number, "state": trial.state, "score": trial.score, "overrides": self._values(trial)}
        return row | ({"error": trial.error} if trial.error else {})

    def _run_file(self, trial: Trial) -> str:
        seeds = self._plan.seeds
        head = f"# {self._score(trial)}, mean of {len(seeds)} seeds from {seeds[0]} on: trial {trial.number} of a study"
        config = dataclasses.replace(self._plan.config(trial.chosen), out="")
        return f"{head}\n\n{dump_run(config)}"

    def _score(self, trial: Trial) -> str:
        if trial.score is None:
            return "–"
        return f"{trial.score:,.0f} env steps" if self._plan.has_target else f"{trial.score:.2f}"

    def _values(self, trial: Trial) -> dict[str, Any]:
        return settings(self._plan.space, trial.chosen)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else short_text(value)
