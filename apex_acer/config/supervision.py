"""When a process counts as hung, and how often one that ended is started again."""

from __future__ import annotations

from dataclasses import dataclass

from apex_acer.config.checks import at_least, positive, typed


@dataclass(frozen=True)
class SupervisionConfig:
    """Processes that die, hang or are frozen are started again, up to a limit, while the run goes on."""

    hung_seconds: float = 60.0
    """Seconds without progress after which a process that waits for nobody is killed."""
    evaluation_minutes: float = 30.0
    """The same for the evaluator: minutes that one evaluation may take."""
    restarts: int = 10
    """Restarts of one process within `window_minutes`; one more ends the run. 0: the first death does."""
    window_minutes: float = 10.0
    """Minutes after which a restart no longer counts."""

    def __post_init__(self) -> None:
        typed("supervision", self)
        hung = {"hung_seconds": self.hung_seconds, "evaluation_minutes": self.evaluation_minutes}
        positive("supervision", hung | {"window_minutes": self.window_minutes})
        at_least(0, "supervision", {"restarts": self.restarts})
