"""The results of a study: `results.json`, `best.toml`, the table and the figure. None of them contains an absolute path."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from apex_acer.config import RunConfig
from apex_acer.config.runfile import dump_run, short_keys, short_text
from apex_acer.system.files import write
from apex_acer.tools.sweep.report import as_text, draw_curves, write_json
from apex_acer.tools.sweep.training import Training
from apex_acer.tools.sweep.variants import override
from apex_acer.tools.tune.space import Dimension, settings
from apex_acer.tools.tune.study import Study, Trial, group

BEST = "best.toml"
MOST_ROWS = 10  # of the table
MOST_LINES = 5  # of the figure, besides the run that was tuned


def trainings(folder: Path, number: int, config: RunConfig, seeds: Sequence[int]) -> list[Training]:
    """The run of each seed of a trial."""
    return [Training(folder, group(number), dataclasses.replace(config, seed=seed, out="")) for seed in seeds]


class Report:
    """What a study has found so far, in its folder."""

    def __init__(
        self,
        folder: Path,
        command: str,
        identity: Mapping[str, Any],
        base: RunConfig,
        space: Sequence[Dimension],
        study: Study,
    ) -> None:
        self._folder, self._base, self._space, self._study = folder, base, space, study
        self._head = {"command": command, **identity}
        self._curves: dict[int, dict[str, Any]] = {}  # by the number of a trial, which is complete
        self._labels = short_keys([key for of in space for end in of.ends[:1] for key in end])

    def save(self) -> None:
        """Writes `results.json` and `best.toml`."""
        ranked, best = self._ranked(), self._study.best()
        data = self._head | {
            "best": best and best.number,
            "importance": {key: round(share, 3) for key, share in self._study.importance().items()},
            "trials": [self._row(trial) for trial in self._study.trials()],
            "variants": {f"trial {trial.number}": self._runs(trial) for trial in self._drawn(ranked)},
        }
        with self._study.alone():
            write_json(self._folder / "results.json", data)
            if best is not None:
                write(self._folder / BEST, self._run_file(best).encode())

    def draw(self) -> None:
        """Draws the curves of the best trials, and of the run that was tuned, into `curves.png`."""
        variants = {f"trial {trial.number}": self._runs(trial) for trial in self._drawn(self._ranked())}
        if drawing := draw_curves({"variants": variants}, [self._base.environment.id]):
            with self._study.alone():
                write(self._folder / "curves.png", drawing)

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
            values = settings(self._space, trial.chosen)
            shown.add_row(str(trial.number), self._score(trial), *(_short(values[key]) for key in self._labels))
        states = [trial.state for trial in self._study.trials()]
        counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
        shares = ", ".join(f"{key} {share:.0%}" for key, share in self._study.importance().items())
        return "\n".join(filter(None, [as_text(shown), f"trials: {counts}", shares and f"importance: {shares}"]))

    def _ranked(self) -> list[Trial]:
        complete = [trial for trial in self._study.trials() if trial.score is not None]
        return sorted(complete, key=lambda trial: trial.score or 0.0, reverse=self._base.stop.at_return is None)

    def _drawn(self, ranked: Sequence[Trial]) -> list[Trial]:
        return [*ranked[:MOST_LINES], *(trial for trial in ranked[MOST_LINES:] if trial.number == 0)]

    def _row(self, trial: Trial) -> dict[str, Any]:
        facts = {"number": trial.number, "state": trial.state, "score": trial.score}
        error = {"error": trial.error} if trial.error else {}
        return {**facts, "overrides": settings(self._space, trial.chosen), **error}

    def _runs(self, trial: Trial) -> dict[str, Any]:
        """A complete trial in the form of a sweep's variant."""
        if trial.number not in self._curves:
            jobs = trainings(self._folder, trial.number, self._config(trial), self._seeds)
            runs = {str(job.config.seed): job.record(found) for job in jobs if (found := job.finished())}
            self._curves[trial.number] = {"overrides": settings(self._space, trial.chosen), "runs": runs}
        return self._curves[trial.number]

    def _config(self, trial: Trial) -> RunConfig:
        return dataclasses.replace(override(self._base, settings(self._space, trial.chosen)), out="")

    def _run_file(self, trial: Trial) -> str:
        seeds = f"mean of {len(self._seeds)} seeds from {self._seeds[0]} on"
        return f"# {self._score(trial)}, {seeds}: trial {trial.number} of a study\n\n{dump_run(self._config(trial))}"

    @property
    def _seeds(self) -> list[int]:
        return list(self._head["seeds"])

    def _score(self, trial: Trial) -> str:
        if trial.score is None:
            return "–"
        return f"{trial.score:.2f}" if self._base.stop.at_return is None else f"{trial.score:,.0f} env steps"

    def _setting(self, trial: Trial) -> str:
        return ", ".join(f"{self._labels[k]}={_short(v)}" for k, v in settings(self._space, trial.chosen).items())


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else short_text(value)
