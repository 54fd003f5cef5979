from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from apex_acer.engines.local import child
from apex_acer.engines.local.child import BEAT_S, Parent
from apex_acer.system.signals import Dismissed


@pytest.fixture(autouse=True)
def _handler() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def test_steps_are_reported_now_and_then_until_the_process_is_dismissed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hearing, telling = os.pipe()  # never closed: the end of a parent ends its child
    heard, reporting = os.pipe()
    os.write(telling, b'{"address": ""}\n')
    monkeypatch.setattr(child, "_take_standard_input", lambda: hearing)
    parent, now = Parent(str(tmp_path / "private"), reporting), 1000.0
    monkeypatch.setattr("apex_acer.engines.local.child.time.monotonic", lambda: now)
    for _ in range(25):
        parent.beat()
        now += BEAT_S / 10
    assert [json.loads(line) for line in os.read(heard, 4096).splitlines()] == [{"heartbeat": True}] * 3
    with parent.working():
        os.write(telling, b'{"leave": true}\n')
        while not parent.dismissed:
            time.sleep(0.01)
        with pytest.raises(Dismissed):
            parent.beat()
    while any(thread.name == "interrupt" for thread in threading.enumerate()):  # it may interrupt once more
        time.sleep(0.01)
