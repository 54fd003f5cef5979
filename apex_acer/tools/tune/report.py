"""The results of a study: `results.json`, `best.toml`, the table and the figure. None of them contains an absolute path."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from apex_acer.config.runfile import dump_run, short_keys, short_text
from apex_acer.system.files import write
from apex_acer.tools.sweep.report import as_text, draw_curves, write_json
from apex_acer.tools.tune.plan import TunePlan, settings
from apex_acer.tools.tune.study import Study, Trial

BEST = "best.toml"
MOST_ROWS = 10  # of the table
MOST_LINES = 5  # of the figure, besides the run that was tuned


class Report:
    """What a study has found so far, in its folder."""

    def __init__(self, plan: TunePlan, study: Study) -> None:
        self._plan, self._study = plan, study
        self._environment = plan.base.environment.id
        self._curves: dict[int, dict[str, Any]] = {}  # by the number of a trial, which is complete
        self._labels = short_keys([key for of in plan.space for end in of.ends[:1] for key in end])

    def save(self) -> None:
        """Writes `results.json` and `best.toml`."""
        ranked, best = self._ranked(), self._study.best()
        data = {
            "command": self._plan.command,
            **self._plan.identity,
            "best": best and best.number,
            "importance": {key: round(share, 3) for key, share in self._study.importance().items()},
            "trials": [self._row(trial) for trial in self._study.trials()],
            "variants": {f"trial {trial.number}": self._runs(trial) for trial in self._drawn(ranked)},
        }
        with self._study.alone():
            write_json(self._plan.folder / "results.json", data)
            if best is not None:
                write(self._plan.folder / BEST, self._run_file(best).encode())

    def draw(self) -> None:
        """Draws the curves of the best trials, and of the run that was tuned, into `curves.png`."""
        variants = {f"trial {trial.number}": self._runs(trial) for trial in self._drawn(self._ranked())}
        if drawing := draw_curves({"variants": variants}, [self._environment]):
            with self._study.alone():
                write(self._plan.folder / "curves.png", drawing)

    def line(self, number: int) -> str:
        """What became of a trial."""
        trial = next(trial for trial in self._study.trials() if trial.number == number)
        ends = {"failed": f"failed: {trial.error}", "pruned": "ended early"}
        return f"{ends.get(trial.state, self._score(trial))}: {self._setting(trial)}"

    def text(self) -> str:
        """The best trials in a table, and what matters most."""
        shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for head in ("trial", "score", *self._labels.values()):
            shown.add_column(head, justify="right")
        for trial in self._ranked()[:MOST_ROWS]:
            values = self._values(trial)
            shown.add_row(str(trial.number), self._score(trial), *(_short(values[key]) for key in self._labels))
        states = [trial.state for trial in self._study.trials()]
        counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
        shares = ", ".join(f"{key} {share:.0%}" for key, share in self._study.importance().items())
        return "\n".join(filter(None, [as_text(shown), f"trials: {counts}", shares and f"importance: {shares}"]))

    def _ranked(self) -> list[Trial]:
        complete = [trial for trial in self._study.trials() if trial.score is not None]
        return sorted(complete, key=lambda trial: trial.score or 0.0, reverse=not self._plan.has_target)

    def _drawn(self, ranked: Sequence[Trial]) -> list[Trial]:
        return [*ranked[:MOST_LINES], *(trial for trial in ranked[MOST_LINES:] if trial.number == 0)]

    def _row(self, trial: Trial) -> dict[str, Any]:
        facts = {"number": trial.number, "state": trial.state, "score": trial.score}
        error = {"error": trial.error} if trial.error else {}
        return {**facts, "overrides": self._values(trial), **error}

    def _runs(self, trial: Trial) -> dict[str, Any]:
        """A complete trial in the form of a sweep's variant."""
        if trial.number not in self._curves:
            jobs = self._plan.jobs(trial.number, self._plan.config(trial.chosen))
            runs = {str(job.config.seed): job.record(result) for job in jobs if (result := job.finished())}
            self._curves[trial.number] = {"overrides": self._values(trial), "runs": runs}
        return self._curves[trial.number]

    def _run_file(self, trial: Trial) -> str:
        seeds = self._plan.seeds
        head = f"# {self._score(trial)}, mean of {len(seeds)} seeds from {seeds[0]} on: trial {trial.number} of a study"
        config = dataclasses.replace(self._plan.config(trial.chosen), out="")
        return f"{head}\n\n{dump_run(config)}"

    def _score(self, trial: Trial) -> str:
        if trial.score is None:
            return "–"
        return f"{trial.score:,.0f} env steps" if self._plan.has_target else f"{trial.score:.2f}"

    def _setting(self, trial: Trial) -> str:
        return ", ".join(f"{self._labels[key]}={_short(value)}" for key, value in self._values(trial).items())

    def _values(self, trial: Trial) -> dict[str, Any]:
        """Values by dotted key."""
        return settings(self._plan.space, trial.chosen)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else short_text(value)
