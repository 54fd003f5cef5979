"""The fixtures of `tests`, here too."""

from tests.conftest import _interruptible, _one_thread, finished_run, make_learner

__all__ = ["_interruptible", "_one_thread", "finished_run", "make_learner"]
