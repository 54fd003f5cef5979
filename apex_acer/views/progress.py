"""The progress of a run, combined from its statuses, for the views that show it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean

from apex_acer.config import RunConfig
from apex_acer.protocol.messages import Outcome, Row, Status
from apex_acer.protocol.metrics import CLIENT
from apex_acer.system.output import printable

KEPT_RETURNS, KEPT_NEWS = 60, 10
FORMS = ("env_steps_per_s", "{:,.0f}/s"), ("episode_return", "return {:.1f}"), ("refused_clients", "{:,.0f} refused")
RATE_S = 30.0  # steps made this long ago have a weight of 1/e in the rate


@dataclass(frozen=True)
class Progress:
    """State of a run for display; immutable, so that one thread can show it while another receives the next status."""

    config: RunConfig
    env_steps: int = 0
    wall_s: float = 0.0
    best_evaluation: float | None = None
    device: str = ""
    """The learner's device and precision."""
    replay_memory: int = 0
    """Bytes of memory of a full replay; 0: not known yet."""
    rows: Mapping[str, Row] = field(default_factory=dict)
    """The newest metrics of each process and of each remote client with a name, by source."""
    states: Mapping[str, str] = field(default_factory=dict)
    """The state of each process by name, as in `SupervisedProcess.state`; `waiting: ` without remote clients."""
    restarts: Mapping[str, int] = field(default_factory=dict)
    returns: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """The mean returns of each actor and the evaluator's scores, by name, oldest first."""
    best: Mapping[str, float] = field(default_factory=dict)
    """The best return of a single episode, by name."""
    news: tuple[str, ...] = ()
    recent: tuple[float, float] = 0.0, 0.0
    """Steps and seconds, with weights that decrease exponentially with age."""

    @staticmethod
    def before(config: RunConfig) -> Progress:
        """The progress of a run that has not begun."""
        names = ["learner", *(f"actor_{index}" for index in range(config.actors.count))]
        names += ["evaluator"] if config.evaluation.every else []
        return Progress(config, states=dict.fromkeys(names, "starting"))

    def after(self, status: Status) -> Progress:
        """The progress after a `status` (see `Supervisor.tend`)."""
        news = [f"{clock(status['wall_s'])}  {printable(line)}" for line in status["news"]]
        return dataclasses.replace(
            self._with_rows(status["rows"]),
            env_steps=status["env_steps"],
            wall_s=status["wall_s"],
            best_evaluation=status["best"],
            device=status["learner"],
            replay_memory=status["replay_memory"],
            states={name: _state(state, status["rows"].get(name, {})) for name, state in status["states"].items()},
            restarts=status["restarts"],
            news=(*self.news, *news)[-KEPT_NEWS:],
            recent=self._recent_at(status["env_steps"], status["wall_s"]),
        )

    def ended(self, result: Outcome, written: Mapping[str, Row] | None = None) -> Progress:
        """The progress at the end of the run; `written` has the last row of each process, newer than the last status's."""
        rows = {**self.rows, **{name: {**self.rows.get(name, {}), **row} for name, row in (written or {}).items()}}
        rows["learner"] = {**rows.get("learner", {}), "updates": result.updates}
        known, score = self._with_rows(rows), result.eval_return
        scores = known.returns.get("evaluator", ())
        if score is not None and scores[-1:] != (score,):
            scores = (*scores, score)
        best = [it for it in (self.best_evaluation, rows["learner"].get("best_return")) if it is not None]
        return dataclasses.replace(
            known,
            env_steps=result.env_steps,
            wall_s=result.wall_s,
            states=dict.fromkeys(self.states, "ended"),
            best_evaluation=max(best, default=None),
            returns={**known.returns, "evaluator": scores} if scores else known.returns,
            recent=self._recent_at(result.env_steps, result.wall_s),
        )

    def _with_rows(self, rows: Mapping[str, Row]) -> Progress:
        fresh = {name: _new_return(row, self.rows.get(name, {})) for name, row in rows.items()}
        peaks = {name: row["episode_return_max"] for name, row in rows.items() if "episode_return_max" in row}
        return dataclasses.replace(
            self,
            rows=rows,
            returns={name: (*self.returns.get(name, ()), *new)[-KEPT_RETURNS:] for name, new in fresh.items()},
            best={**self.best, **{name: max(self.best.get(name, peak), peak) for name, peak in peaks.items()}},
        )

    def _recent_at(self, env_steps: int, wall_s: float) -> tuple[float, float]:
        """`recent` with what was added since; unchanged if either went back, as after a learner's restart."""
        steps, seconds = env_steps - self.env_steps, wall_s - self.wall_s
        if seconds <= 0 or steps < 0:
            return self.recent
        kept = math.exp(-seconds / RATE_S)
        return self.recent[0] * kept + steps, self.recent[1] * kept + seconds

    @property
    def clients(self) -> dict[str, Row]:
        """The newest metrics of each remote client, by its name."""
        return clients_in(self.rows)

    @property
    def steps_per_s(self) -> float:
        """Environment steps per second of late; 0 if nothing is known."""
        steps, seconds = self.recent
        return steps / seconds if seconds else 0.0

    @property
    def share(self) -> float:
        """The used share, 0 to 1, of the budget (steps or minutes) that is nearer its end."""
        stop = self.config.stop
        of_time = self.wall_s / (60 * stop.minutes) if stop.minutes else 0.0
        return min(1.0, max(self.env_steps / stop.env_steps, of_time))

    @property
    def left_s(self) -> float | None:
        """Seconds until the first budget is used up; None: not known yet."""
        stop, rate = self.config.stop, self.steps_per_s
        by_steps = (stop.env_steps - self.env_steps) / rate if rate else math.inf
        by_time = 60 * stop.minutes - self.wall_s if stop.minutes else math.inf
        left = min(by_steps, by_time)
        return None if math.isinf(left) else max(0.0, left)


def _state(state: str, row: Row) -> str:
    return "waiting: for a client" if state == "running" and row.get("clients") == 0 else printable(state)


def _new_return(row: Row, before: Row) -> tuple[float, ...]:
    """The return that is new in `row`; empty if there is none or it is not finite."""
    score, counter = ("eval_return", "eval_env_steps") if "eval_return" in row else ("episode_return", "episodes")
    is_new = score in row and row.get(counter) != before.get(counter)
    return (row[score],) if is_new and math.isfinite(row[score]) else ()


def variety(rows: Mapping[str, Row]) -> tuple[str, float | None]:
    """Metric and newest value of how much actions vary: `entropy`, or `action_std` of continuous actions.

    The learner's value comes first, then the mean of the actors'.
    """
    learner, name = rows.get("learner", {}), "action_std"
    spreads = [row[name] for row in rows.values() if name in row]
    if not spreads:
        return "entropy", learner.get("entropy")
    return name, learner.get(name, fmean(spreads))


def clients_in(rows: Mapping[str, Row]) -> dict[str, Row]:
    """The rows of remote clients among `rows` by source, by the clients' names."""
    return {name.removeprefix(f"{CLIENT}_"): row for name, row in rows.items() if name.startswith(f"{CLIENT}_")}


def describe_clients(clients: Mapping[str, Row], most: int) -> list[str]:
    """A text for each of the `most` busiest clients: `robot 812/s, return 21.3, 1 refused`."""
    busiest = sorted(clients.items(), key=lambda named: -named[1].get("env_steps_per_s", -1.0))[:most]
    return [
        f"{name} {', '.join(form.format(row[key]) for key, form in FORMS if row.get(key))}" for name, row in busiest
    ]


def clock(seconds: float) -> str:
    """A duration in its two largest units: `45 s`, `3 min 20 s`, `2 h 05 min`."""
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
    return f"{minutes // 60:,} h {minutes % 60:02} min"
