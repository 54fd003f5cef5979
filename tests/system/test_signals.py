from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from apex_acer.system import signals
from apex_acer.system.signals import Signals

INT, TERM, HUP = signal.SIGINT, signal.SIGTERM, signal.SIGHUP


@pytest.fixture(autouse=True)
def _heard_hangups() -> Iterator[None]:
    """Undoes a `nohup` that the tests themselves may run under."""
    before = signal.signal(HUP, signal.SIG_DFL)
    yield
    signal.signal(HUP, before)


def noted(*sent: signal.Signals, pause_s: float = 0.0) -> list[signal.Signals]:
    """What is noted of signals sent to this process."""
    with Signals() as received:
        for number in sent:
            os.kill(os.getpid(), number)
            time.sleep(pause_s)
    return received.received


@pytest.mark.parametrize(
    ("sent", "expected"),
    [([INT], [INT]), ([TERM], [TERM]), ([HUP], [HUP]), ([INT, TERM], [INT, TERM]), ([HUP, INT], [HUP, INT])],
)
def test_signals_are_noted(
    sent: list[signal.Signals], expected: list[signal.Signals], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signals, "SAME_SIGNAL_S", -1.0)
    assert noted(*sent) == expected


def test_one_press_that_comes_twice_counts_once() -> None:
    assert noted(INT, INT) == [INT]
    assert noted(INT, INT, pause_s=0.25) == [INT, INT]


def test_a_terminal_s_end_never_kills(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "SAME_SIGNAL_S", -1.0)
    assert noted(HUP, HUP) == [HUP]
    assert noted(INT, HUP) == [INT]


def test_handlers_are_put_back_and_nohup_is_kept() -> None:
    before = [signal.getsignal(number) for number in (INT, TERM, HUP)]
    with Signals():
        assert signal.getsignal(HUP) not in before
    assert [signal.getsignal(number) for number in (INT, TERM, HUP)] == before
    signal.signal(HUP, signal.SIG_IGN)
    assert noted(HUP, INT) == [INT]


def test_each_signal_wakes() -> None:
    woken: list[bool] = []
    with Signals() as received:
        received.wake = lambda: woken.append(True)
        os.kill(os.getpid(), TERM)
    assert woken == [True]
