from __future__ import annotations

from typing import Any

import pytest

from apex_acer.engines.local import child
from apex_acer.engines.local.child import BEAT_S, Heartbeat
from apex_acer.system.signals import Dismissed


class FakeLifeline:
    dismissed = False

    def check(self) -> None:
        if self.dismissed:
            raise Dismissed


def test_steps_are_reported_now_and_then_until_the_process_is_dismissed(monkeypatch: pytest.MonkeyPatch) -> None:
    now, reports, lifeline = 1000.0, list[dict[str, Any]](), FakeLifeline()
    monkeypatch.setattr(child.time, "monotonic", lambda: now)
    beat = Heartbeat(lifeline, lambda **said: reports.append(said))  # type: ignore[arg-type]
    for _ in range(25):
        beat()
        now += BEAT_S / 10
    assert reports == [{"heartbeat": True}] * 3
    lifeline.dismissed = True
    with pytest.raises(Dismissed):
        beat()
