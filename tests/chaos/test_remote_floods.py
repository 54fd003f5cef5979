"""Floods of peers without the token take nothing from a client that is connected, keep no newcomer out, and leave no trace."""

from __future__ import annotations

import contextlib
import logging
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests import ROOT
from tests.chaos.floods import KINDS
from tests.chaos.test_remote_fuzz import Beside, open_files
from tests.programs import report
from tests.remote.conftest import HELLO, Acting, Peer, Serve, serve, until

assert serve  # the fixture
MOST_LOST = 0.1  # of the steps per second of the client beside the flood
MOST_LINES = 10
NEWCOMERS = 10


@contextlib.contextmanager
def flooded(kind: str, port: str) -> Iterator[None]:
    """While a process of its own floods the server."""
    with subprocess.Popen([sys.executable, "-m", "tests.chaos.floods", kind, port], cwd=ROOT) as process:
        try:
            time.sleep(1.0)  # for its start
            yield
        finally:
            process.kill()


def rate(acting: Acting, beside: Beside, seconds: float) -> float:
    """Steps per second of the client."""
    began, before = time.monotonic(), beside.steps
    time.sleep(seconds)
    del acting.events[:]
    return (beside.steps - before) / (time.monotonic() - began)


class Rates(NamedTuple):
    """Steps per second in turns without and with a flood."""

    calm: float
    flooded: float
    newcomers_s: float
    """Seconds until so many newcomers had played."""


def measure(acting: Acting, beside: Beside, kind: str, seconds: float, turns: int) -> Rates:
    """The medians of several turns, because this machine has other work."""
    port, calm, loud, newcomers = acting.server.url.rpartition(":")[2], list[float](), list[float](), list[float]()
    for _ in range(turns):
        calm.append(rate(acting, beside, seconds / turns))
        with flooded(kind, port):
            loud.append(rate(acting, beside, seconds / turns))
            began = time.monotonic()
            for _ in range(NEWCOMERS):
                with contextlib.closing(Peer(acting.server.url, HELLO, open_timeout=30).socket):
                    pass
            newcomers.append(time.monotonic() - began)
    return Rates(statistics.median(calm), statistics.median(loud), max(newcomers))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("seconds", "turns"), [pytest.param(float(__import__("os").environ.get("SEC","120")), int(__import__("os").environ.get("TURNS","12")), marks=pytest.mark.chaos)])
@pytest.mark.timeout(900)
def test_a_flood_takes_nothing_from_the_others(
    kind: str,
    seconds: float,
    turns: int,
    serve: Serve,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    acting = serve(clients=8, grace_s=0.1)
    beside = Beside(acting.server.url)
    try:
        beside.assert_goes_on()
        files = open_files()
        rates = measure(acting, beside, kind, seconds, turns)
        until(lambda: open_files() <= files, 30)
    finally:
        beside.close()
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    lost = 1 - rates.flooded / rates.calm
    figures = {"calm": round(rates.calm), "flooded": round(rates.flooded), "lost": round(lost, 3)}
    report(capsys, f"flood of {kind}", **figures, lines=len(lines), newcomers_s=round(rates.newcomers_s, 2))
    assert lost < MOST_LOST
    assert len(lines) < MOST_LINES, lines[:20]
