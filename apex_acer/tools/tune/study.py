"""A study in a file: which settings were tried, their scores, and what to try next. Only this module imports Optuna."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from apex_acer.config import ConfigError, require, writing
from apex_acer.tools.sweep.training import lock_file, lock_folder
from apex_acer.tools.tune.plan import Range, TunePlan, group, start

NAME, JOURNAL = "apex-acer", "study.journal"
IDENTITY, ERROR = "identity", "error"  # attributes of the study, of a trial
LEAST_OTHERS = 5  # trials to compare one with, before it is ended
UNJUDGED = 0.1  # share of a seed's budget in which every policy is bad
State = Literal["unfinished", "complete", "pruned", "failed"]

optuna.logging.set_verbosity(optuna.logging.WARNING)


@dataclass(frozen=True)
class Trial:
    """A trial of a study."""

    number: int
    chosen: Mapping[str, Any]
    """A number or an option for each key of the plan's `space`."""
    state: State
    score: float | None
    """None unless it is complete."""
    error: str


class Study:
    """A study in a folder, on which several processes, also of several machines, may work at the same time.

    A trial belongs to the process that holds the lock of its folder. If no process holds it, the trial was left behind, and
    the next process that asks for a trial continues it.
    """

    def __init__(self, plan: TunePlan) -> None:
        """Opens the study in the plan's folder, which exists, or begins it; a new one tries the run as it is first.

        Raises `ConfigError` if the file is damaged or holds another study.
        """
        self._plan, self._folder = plan, plan.folder
        self._sign = -1 if plan.has_target else 1
        self._trials: dict[int, optuna.Trial] = {}  # of this process, by number
        with writing("out", plan.folder), self.alone():
            journal = _journal(plan.folder / JOURNAL)
            if not optuna.get_all_study_names(journal):
                better: Literal["minimize", "maximize"] = "minimize" if plan.has_target else "maximize"
                optuna.create_study(study_name=NAME, storage=journal, direction=better)
            self._study = optuna.load_study(study_name=NAME, storage=journal)
            known, text = self._study.user_attrs.get(IDENTITY), json.dumps(plan.identity, sort_keys=True)
            require(known in (None, text), "out", str(self._folder), "it holds another study; give a new folder")
            if known is None:
                self._study.set_user_attr(IDENTITY, text)
                if (first := start(plan.space, plan.base)) is not None:
                    self._study.enqueue_trial(first)

    def take(self, total: int) -> tuple[Trial, int] | None:
        """A trial to work on and the descriptor that locks it; None if `total` were begun and none was left behind."""
        with self.alone():
            trials = self._study.get_trials(deepcopy=False)
            for trial in trials:
                is_left = trial.state == TrialState.RUNNING and trial.number not in self._trials
                if is_left and (lock := lock_folder(self._folder / group(trial.number))) is not None:
                    return self._begin(optuna.Trial(self._study, trial._trial_id)), lock
            if sum(trial.state != TrialState.WAITING for trial in trials) >= total:
                return None
            new = self._study.ask()
            lock = lock_folder(self._folder / group(new.number))
            assert lock is not None
            return self._begin(new), lock

    def report(self, number: int, env_steps: int, value: float) -> bool:
        """Keeps the mean return `value` of a trial's seeds after `env_steps` of all; returns whether to end the trial."""
        if env_steps in self._frozen(number).intermediate_values:  # before it was left behind
            return False
        self._trials[number].report(self._sign * value, env_steps)
        budget = self._plan.base.stop.env_steps
        return is_in_lowest_quarter(self._study, self._frozen(number), env_steps, budget)

    def end(self, number: int, score: float | None = None, error: str = "") -> None:
        """Ends a trial with its score; without one it is bad, or its run failed with an `error`."""
        if error:
            self._trials[number].set_user_attr(ERROR, error)
        # a failed trial is pruned, too: Optuna would learn nothing from one in the state "failed"
        self._study.tell(number, score, state=TrialState.PRUNED if score is None else None)

    def trials(self) -> list[Trial]:
        """All trials that have their settings; one that another process is just beginning has none yet."""
        keys = self._plan.space.keys()
        return [_read(trial) for trial in self._study.get_trials(deepcopy=False) if trial.params.keys() == keys]

    def ranked(self) -> list[Trial]:
        """The complete trials, the best first."""
        complete = [trial for trial in self.trials() if trial.score is not None]
        return sorted(complete, key=lambda trial: -self._sign * (trial.score or 0.0))

    def importance(self) -> dict[str, float]:
        """The importance of each key for the score, largest first; they add up to 1. Empty before five are complete."""
        if sum(trial.score is not None for trial in self.trials()) < LEAST_OTHERS:
            return {}
        return optuna.importance.get_param_importances(self._study)

    def _begin(self, trial: optuna.Trial) -> Trial:
        self._trials[trial.number] = trial
        # a seed of its own, so that no trial is repeated when a study is continued
        seeds = np.random.SeedSequence([self._plan.base.seed, trial.number])
        self._study.sampler = optuna.samplers.TPESampler(seed=int(seeds.generate_state(1)[0]))
        for key, allowed in self._plan.space.items():  # what was suggested before it was left behind stays
            if not isinstance(allowed, Range):
                trial.suggest_categorical(key, list(allowed))
            elif isinstance(allowed.low, int) and isinstance(allowed.high, int):
                trial.suggest_int(key, allowed.low, allowed.high, log=allowed.log)
            else:
                trial.suggest_float(key, allowed.low, allowed.high, log=allowed.log)
        return _read(self._frozen(trial.number))

    def _frozen(self, number: int) -> FrozenTrial:
        return self._study.get_trials(deepcopy=False)[number]

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Keeps other processes from taking trials and writing files meanwhile."""
        lock = os.open(self._folder, os.O_RDONLY)
        try:
            lock_file(lock, self._folder, waits=True)
            yield
        finally:
            os.close(lock)


def _journal(path: Path) -> JournalStorage:
    with writing("out", path):
        try:
            return JournalStorage(JournalFileBackend(str(path)))
        except (LookupError, TypeError, ValueError):
            raise ConfigError(f"out: {str(path)!r} is damaged, or not of a study; give a new folder") from None


def is_in_lowest_quarter(study: optuna.Study, trial: FrozenTrial, step: int, budget: int) -> bool:
    """Whether `trial` is among the lowest quarter of the trials that came as far as `step`.

    A trial's seeds train one after another, and its steps are those of all seeds, each with room for its whole `budget`. The
    value at a step is the mean over the seeds so far of each one's best evaluation, so trials are compared over the same
    seeds after the same steps. A seed that ended at its target keeps its value for the rest of the budget.
    """
    if step % budget < UNJUDGED * budget:
        return False
    trials = study.get_trials(deepcopy=False)
    values = [value for other in trials if (value := _value_at(other, step, budget)) is not None]
    if len(values) <= LEAST_OTHERS:  # this trial is among them
        return False
    sign = 1 if study.direction == optuna.study.StudyDirection.MAXIMIZE else -1
    return bool(sign * trial.intermediate_values[step] < np.percentile(sign * np.array(values), 25))


def _value_at(trial: FrozenTrial, step: int, budget: int) -> float | None:
    """The value of `trial` at `step`; None if it did not come that far."""
    steps = [at for at in trial.intermediate_values if step - step % budget <= at <= step]
    came = trial.state == TrialState.COMPLETE or (trial.last_step or 0) >= step
    return trial.intermediate_values[max(steps)] if steps and came else None


def _read(trial: FrozenTrial) -> Trial:
    error = trial.user_attrs.get(ERROR, "")
    states: dict[TrialState, State] = {TrialState.COMPLETE: "complete", TrialState.RUNNING: "unfinished"}
    state = "failed" if error else states.get(trial.state, "pruned")
    return Trial(trial.number, trial.params, state, trial.value if state == "complete" else None, error)
