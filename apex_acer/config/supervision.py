"""The settings of supervision: when a process counts as hung, and how often processes are restarted."""

from __future__ import annotations

from dataclasses import dataclass

from apex_acer.config.checks import at_least, positive, typed


@dataclass(frozen=True)
class SupervisionConfig:
    """Processes that die or hang are restarted, up to a limit, while the run continues."""

    hung_seconds: float = 60.0
    """Seconds without progress, for an actor without a step of its environments, after which a process is killed, unless it
    waits for another one."""
    evaluation_minutes: float = 30.0
    """Minutes without a step of its environments after which the evaluator is killed."""
    restarts: int = 10
    """Restarts of one process allowed within `window_minutes`; another death ends the run. 0: the first death does."""
    window_minutes: float = 10.0
    """Minutes after which a restart no longer counts."""

    def __post_init__(self) -> None:
        typed("supervision", self)
        hung = {"hung_seconds": self.hung_seconds, "evaluation_minutes": self.evaluation_minutes}
        positive("supervision", hung | {"window_minutes": self.window_minutes})
        at_least(0, "supervision", {"restarts": self.restarts})
