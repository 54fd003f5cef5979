from __future__ import annotations

import os
import signal
import time
import warnings
from collections.abc import Iterator

import pytest

from apex_acer.system import signals
from apex_acer.system.signals import Signals, interrupting

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


def test_signals_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "SAME_SIGNAL_S", -1.0)
    for sent in [INT], [TERM], [HUP], [INT, TERM], [HUP, INT]:
        assert noted(*sent) == sent
    assert noted(HUP, HUP) == [HUP], "a terminal's end never kills"
    assert noted(INT, HUP) == [INT]


def test_one_press_that_comes_twice_counts_once() -> None:
    assert noted(INT, INT) == [INT]
    assert noted(INT, INT, pause_s=0.25) == [INT, INT]


def test_handlers_are_put_back_and_nohup_is_kept() -> None:
    before = [signal.getsignal(number) for number in (INT, TERM, HUP)]
    woken: list[bool] = []
    with Signals() as received:
        assert signal.getsignal(HUP) not in before
        received.wake = lambda: woken.append(True)
        os.kill(os.getpid(), TERM)
    assert woken == [True]
    assert [signal.getsignal(number) for number in (INT, TERM, HUP)] == before
    signal.signal(HUP, signal.SIG_IGN)
    assert noted(HUP, INT) == [INT]


@pytest.mark.parametrize("number", [TERM, HUP])
def test_signals_that_would_kill_interrupt_so_that_what_is_open_is_closed(number: signal.Signals) -> None:
    before = signal.signal(TERM, signal.SIG_DFL)
    try:
        with pytest.raises(KeyboardInterrupt) as raised, interrupting():
            signal.raise_signal(number)
        assert raised.value.args == (number,)
        assert signal.getsignal(number) == signal.SIG_DFL
    finally:
        signal.signal(TERM, before)


def test_a_fork_is_ended_by_the_signals_that_its_parent_only_notes() -> None:
    """As `multiprocessing` ends the processes that an environment has."""
    with Signals(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of threads that other tests have left
        begun, begin = os.pipe()
        pid = os.fork()
        if not pid:
            os.write(begin, b".")
            time.sleep(60)
            os._exit(0)
        os.read(begun, 1)
        os.kill(pid, TERM)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -TERM
        os.close(begun)
        os.close(begin)
