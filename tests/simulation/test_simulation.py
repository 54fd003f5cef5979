from __future__ import annotations

import pytest

from apex_acer.learner.inbox import Inbox
from tests.simulation.faults import plan
from tests.simulation.schedule import run, shrink

SCHEDULES, AT_ONCE = 500, 50


@pytest.mark.parametrize("first", range(0, SCHEDULES, AT_ONCE))
def test_whatever_happens_nothing_is_lost_or_learned_twice_and_the_run_ends(first: int) -> None:
    for seed in range(first, first + AT_ONCE):
        assert not run(seed).wrong, f"`python -m tests.simulation {seed}` shows it"


def test_a_schedule_repeats_exactly() -> None:
    assert run(3) == run(3)
    assert run(3).trace != run(4).trace


def test_a_fault_of_the_program_is_found_and_told_by_as_few_faults_of_the_world(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Here the inbox takes a message for a second time."""
    refusal = Inbox._refusal
    monkeypatch.setattr(Inbox, "_refusal", lambda self, message: _unless_repeated(refusal(self, message)))
    seed = next(seed for seed in range(200) if len(plan(seed)[1]) > 2 and run(seed).wrong)
    assert {run(seed).faults[number].kind for number in shrink(seed)} == {"repeat"}


def _unless_repeated(refusal: str) -> str:
    return "" if refusal.startswith("sequence") else refusal
