"""Floods by peers without the token take nothing from a client, keep no newcomer out, and fill no log."""

from __future__ import annotations

import contextlib
import logging
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from apex_acer.remote.listener import PER_SECOND
from checks.chaos.floods import KINDS
from checks.chaos.test_remote_fuzz import Beside, open_files
from tests import ROOT
from tests.programs import report
from tests.remote.conftest import Acting, Peer, Serve, serve, until

assert serve  # the fixture
MOST_LOST = 0.1  # of the steps per second of the client beside the flood
MOST_COST = 2 * PER_SECOND  # of a flood, in honest newcomers per second: a core's seconds depend on the machine
MOST_LINES = 10
NEWCOMERS, WELCOME_S = 3, 30.0  # for each of them
TURN_S = 10.0


@contextlib.contextmanager
def flooded(kind: str, acting: Acting) -> Iterator[None]:
    """While a process of its own floods the server."""
    command = [sys.executable, "-m", "checks.chaos.floods", kind, acting.server.url.rpartition(":")[2]]
    with subprocess.Popen(command, cwd=ROOT) as process:
        try:
            time.sleep(1.0)  # for its start
            yield
        finally:
            process.kill()


def cores(seconds: float) -> float:
    """Cores that this process uses."""
    began, before = time.monotonic(), time.process_time()
    time.sleep(seconds)
    return (time.process_time() - before) / (time.monotonic() - began)


def newcomer_s(acting: Acting) -> float:
    """A core's seconds that a new client costs this process, which is both its sides."""
    before, count = time.process_time(), int(PER_SECOND)
    for _ in range(count):
        come_and_go(acting)
    return (time.process_time() - before) / count


def rate(beside: Beside, seconds: float) -> float:
    """Steps per second of the client."""
    began, before = time.monotonic(), beside.steps
    time.sleep(seconds)
    return (beside.steps - before) / (time.monotonic() - began)


def come_and_go(acting: Acting) -> float:
    """Seconds that a new client takes to be welcome."""
    began = time.monotonic()
    with contextlib.closing(Peer(acting.server.url, open_timeout=WELCOME_S).socket):
        return time.monotonic() - began


@pytest.mark.parametrize(
    ("kind", "seconds"),
    [
        *(pytest.param(kind, 5.0, marks=pytest.mark.slow) for kind in ("deaf", "resets", "drips")),
        *(pytest.param(kind, 120.0, marks=pytest.mark.chaos) for kind in KINDS),
    ],
)
@pytest.mark.timeout(900)
def test_a_flood_takes_nothing_from_the_others(
    kind: str, seconds: float, serve: Serve, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    acting, calm, loud, welcome_s = serve(clients=12, grace_s=0.1), list[float](), list[float](), list[float]()
    files, idle, unit = open_files(), cores(1.0), newcomer_s(acting)
    with flooded(kind, acting):  # twice, because the first connections come in all at once
        cost = min(cores(seconds / 2) - idle for _ in range(2))
    beside = Beside(acting.server.url)
    try:
        beside.assert_goes_on()
        for _ in range(max(1, int(seconds / TURN_S))):
            calm.append(rate(beside, min(TURN_S, seconds / 2)))
            with flooded(kind, acting):
                loud.append(rate(beside, min(TURN_S, seconds / 2)))
                welcome_s += [come_and_go(acting) for _ in range(NEWCOMERS)]
            del acting.events[:]
    finally:
        beside.close()
    until(lambda: open_files() <= files, 30)
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    before, after = statistics.median(calm), statistics.median(loud)
    figures = {"per_s": round(before), "flooded_per_s": round(after), "lost": round(1 - after / before, 3)}
    figures |= {"newcomers_per_s": round(cost / unit, 1), "welcome_s": round(max(welcome_s), 2), "lines": len(lines)}
    report(capsys, f"flood of {kind}", seconds=seconds, **figures)
    assert cost < MOST_COST * unit
    assert max(welcome_s) < WELCOME_S
    assert len(lines) < MOST_LINES, lines
    if seconds >= 120:
        assert 1 - after / before < MOST_LOST
