"""What tests of several verbs share."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable

import pytest

from apex_acer.cli import main
from tests.programs import eventually


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line with which a command is refused before it says anything else."""
    capsys.readouterr()
    assert main(list(arguments)) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1), said
    return said.err


def signal_when(condition: Callable[[], object], *signals: signal.Signals) -> None:
    """Sends this process signals, a second apart, from another thread."""

    def send() -> None:
        eventually(condition, 60)
        for index, number in enumerate(signals):
            time.sleep(index and 1.0)
            os.kill(os.getpid(), number)

    threading.Thread(target=send, daemon=True).start()
