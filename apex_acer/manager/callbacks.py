"""The functions through which a program hears of the run that it trains. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from apex_acer.manager.result import TrainResult
from apex_acer.protocol.messages import Status
from apex_acer.storage.history import LoggedRow

# the metrics that are the fields of an `Evaluation`
EVALUATED = ["eval_env_steps", "eval_return", "eval_return_std", "eval_return_min", "eval_return_max", "eval_length"]


@dataclass(frozen=True)
class Evaluation:
    """The unclipped returns of one evaluation."""

    env_steps: int
    """Environment steps of training behind the evaluated weights."""
    mean: float
    std: float
    min: float
    max: float
    length: float
    """Mean length of an episode, in environment steps."""


def _ignore(news: object) -> None:
    """Does nothing: the default of every callback."""


@dataclass(frozen=True)
class Callbacks:
    """Functions that are called in the caller's own process and thread while a run trains, about twice a second.

    The run continues during a call, but no process is restarted. A first Ctrl-C waits for the call to return; a second one
    interrupts it, and the run ends unsaved. An exception ends the run: it is saved, and `train` raises the exception again.
    """

    on_status: Callable[[Status], object] = _ignore
    """Gets the newest row of every process, and of every remote client with a name, in `rows`, none at the start, and in
    `news` which processes were restarted and why."""
    on_rows: Callable[[list[LoggedRow]], object] = _ignore
    """Gets the rows that were written to `metrics.jsonl` since the last call, each once. If a learner has died, `env_steps`
    goes back to its checkpoint, and later rows are written again."""
    on_evaluation: Callable[[Evaluation], object] = _ignore
    """Gets each evaluation, after its row."""
    on_stop: Callable[[TrainResult], object] = _ignore
    """Gets the result when the whole run is over; not called if the run failed, because `train` then raises."""
