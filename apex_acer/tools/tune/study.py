"""A study in a file: which settings were tried, how they learned, and what to try next. Only this module imports Optuna."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import optuna
from optuna.pruners import BasePruner
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from apex_acer.config import ConfigError, require, writing
from apex_acer.tools.sweep.training import lock_folder
from apex_acer.tools.tune.plan import Choice, Dimension, TunePlan, group, start

NAME, JOURNAL = "apex-acer", "study.journal"
IDENTITY, ERROR = "identity", "error"  # attributes of the study, of a trial
LEAST_OTHERS = 5  # trials that came that far, before one is ended
END_BELOW = 25  # percentile
UNJUDGED = 0.1  # share of a seed's budget in which every policy is bad
State = Literal["unfinished", "complete", "pruned", "failed"]

optuna.logging.set_verbosity(optuna.logging.WARNING)


class LowestQuarter(BasePruner):
    """Ends a trial that is in the lowest quarter of those that came as far.

    A trial's seeds train one after another, and its steps are those of all seeds together, each with room for its whole
    budget. The value at a step is the mean over the seeds so far of each one's best evaluation; so trials are compared
    over the same seeds after the same steps. One whose seed ended at its target keeps its value for the rest of the budget.
    """

    def __init__(self, budget: int) -> None:
        self._budget = budget

    def prune(self, study: optuna.Study, trial: FrozenTrial) -> bool:
        """Whether the trial ends here."""
        step = trial.last_step
        if step is None or step % self._budget < UNJUDGED * self._budget:
            return False
        others = [value for other in study.get_trials(deepcopy=False) if (value := self._at(other, step)) is not None]
        if len(others) <= LEAST_OTHERS:  # this trial is among them
            return False
        sign = 1 if study.direction == optuna.study.StudyDirection.MAXIMIZE else -1
        return bool(sign * trial.intermediate_values[step] < np.percentile(sign * np.array(others), END_BELOW))

    def _at(self, trial: FrozenTrial, step: int) -> float | None:
        """The value of `trial` at `step`; None if it did not come that far."""
        steps = [at for at in trial.intermediate_values if step - step % self._budget <= at <= step]
        came = trial.state == TrialState.COMPLETE or (trial.last_step or 0) >= step
        return trial.intermediate_values[max(steps)] if steps and came else None


@dataclass(frozen=True)
class Trial:
    """A trial of a study."""

    number: int
    chosen: Mapping[str, Any]
    """The value that each dimension has, by its key."""
    state: State
    score: float | None
    """None unless it is complete."""
    error: str


class Study:
    """A study in a folder that several processes, also on several machines, may work on at the same time.

    A trial belongs to the process that holds the lock of its folder. One that nobody holds was left behind, and is
    continued by whoever asks for a trial next.
    """

    def __init__(self, plan: TunePlan) -> None:
        """Opens the study in the plan's folder, which exists, or begins it; raises `ConfigError` if the file is damaged."""
        self._plan, self._folder = plan, plan.folder
        self._sign = -1 if plan.has_target else 1
        pruner = LowestQuarter(plan.base.stop.env_steps)
        with writing("out", plan.folder), self.alone():
            journal = _journal(plan.folder / JOURNAL)
            if not optuna.get_all_study_names(journal):
                better: Literal["minimize", "maximize"] = "minimize" if plan.has_target else "maximize"
                optuna.create_study(study_name=NAME, storage=journal, direction=better)
            self._study = optuna.load_study(study_name=NAME, storage=journal, pruner=pruner)
        self._taken: dict[int, optuna.Trial] = {}

    def begin(self) -> None:
        """Compares the study with what is asked for; a new one tries the run as it is at first, if the space has it."""
        first = start(self._plan.space, self._plan.base)
        text = json.dumps(self._plan.identity, sort_keys=True)
        with self.alone():
            known = self._study.user_attrs.get(IDENTITY)
            require(known in (None, text), "out", str(self._folder), "it holds another study; give a new folder")
            if known is None:
                self._study.set_user_attr(IDENTITY, text)
                if first is not None:
                    self._study.enqueue_trial(first)

    def take(self, total: int) -> tuple[Trial, int] | None:
        """A trial to work on, and the descriptor that locks it; None if `total` were begun and none was left behind."""
        with self.alone():
            trials = self._study.get_trials(deepcopy=False)
            for trial in trials:
                if trial.state == TrialState.RUNNING and trial.number not in self._taken:
                    lock = lock_folder(self._folder / group(trial.number))
                    if lock is not None:
                        return self._taking(optuna.Trial(self._study, trial._trial_id)), lock
            if sum(trial.state != TrialState.WAITING for trial in trials) >= total:
                return None
            new = self._study.ask()
            lock = lock_folder(self._folder / group(new.number))
            assert lock is not None
            return self._taking(new), lock

    def report(self, number: int, env_steps: int, value: float) -> bool:
        """Notes what a trial's seeds have reached after these steps of all; returns whether to end the trial."""
        trial = self._taken[number]
        if env_steps in self._frozen(number).intermediate_values:  # before it was left behind
            return False
        trial.report(self._sign * value, env_steps)
        return trial.should_prune()

    def complete(self, number: int, score: float) -> None:
        """Ends a trial with its score."""
        self._study.tell(number, score)

    def end(self, number: int, error: str = "") -> None:
        """Ends a trial that is too bad to go on, or whose run failed with an `error`."""
        if error:
            self._taken[number].set_user_attr(ERROR, error)
        # a failed trial is pruned, too: Optuna would learn nothing from one that is told to have failed
        self._study.tell(number, state=TrialState.PRUNED)

    def trials(self) -> list[Trial]:
        """All trials that have their setting; one that another process begins just now has none yet."""
        whole = {of.key for of in self._plan.space}
        return [_read(trial) for trial in self._study.get_trials(deepcopy=False) if trial.params.keys() == whole]

    def best(self) -> Trial | None:
        """The complete trial with the best score."""
        complete = [trial for trial in self.trials() if trial.score is not None]
        return max(complete, key=lambda trial: self._sign * (trial.score or 0.0), default=None)

    def importance(self) -> dict[str, float]:
        """The share of each key in what makes a trial one of the best, largest first; empty before five are complete."""
        if sum(trial.score is not None for trial in self.trials()) < LEAST_OTHERS:
            return {}
        return optuna.importance.get_param_importances(self._study)

    def _taking(self, trial: optuna.Trial) -> Trial:
        self._taken[trial.number] = trial
        self._study.sampler = self._sampler(trial.number)
        for of in self._plan.space:
            _suggest(trial, of)  # what was suggested before it was left behind stays
        return _read(self._frozen(trial.number))

    def _frozen(self, number: int) -> FrozenTrial:
        return self._study.get_trials(deepcopy=False)[number]

    def _sampler(self, number: int) -> optuna.samplers.TPESampler:
        """Each trial draws from its own numbers, so a study that goes on, or on a second machine, repeats none."""
        seeds = np.random.SeedSequence([self._plan.base.seed, number])
        return optuna.samplers.TPESampler(seed=int(seeds.generate_state(1)[0]))

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """No other process takes a trial meanwhile."""
        lock = os.open(self._folder, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


def _journal(path: Path) -> JournalStorage:
    with writing("out", path):
        try:
            return JournalStorage(JournalFileBackend(str(path)))
        except (LookupError, TypeError, ValueError):
            raise ConfigError(f"out: {str(path)!r} is damaged, or not of a study; give a new folder") from None


def _suggest(trial: optuna.Trial, of: Dimension) -> None:
    if isinstance(of, Choice):
        trial.suggest_categorical(of.key, list(of.options))
    elif isinstance(of.low, int) and isinstance(of.high, int):
        trial.suggest_int(of.key, of.low, of.high, log=of.log)
    else:
        trial.suggest_float(of.key, of.low, of.high, log=of.log)


def _read(trial: FrozenTrial) -> Trial:
    error = trial.user_attrs.get(ERROR, "")
    states: dict[TrialState, State] = {TrialState.COMPLETE: "complete", TrialState.RUNNING: "unfinished"}
    state = "failed" if error else states.get(trial.state, "pruned")
    return Trial(trial.number, trial.params, state, trial.value if state == "complete" else None, error)
