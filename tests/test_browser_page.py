"""The page of docs/examples in a real browser: carts that it plays, and from which a run learns."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver import Chrome

from docs import pictures
from docs.examples.cartpole_browser import pages
from tests import ROOT
from tests.programs import eventually, processes_of
from tests.remote.conftest import Serve, serve

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (pictures.CHROMIUM and pictures.DRIVER), reason="chromium and chromedriver are missing"),
]
assert serve  # the fixture


@pytest.fixture
def chromium() -> Iterator[Chrome]:
    with pictures.browser(1200, 1000) as driver:
        yield driver


def says(driver: Chrome, part: str) -> None:
    """Waits until the page says `part` of how it fares."""
    eventually(lambda: part in driver.find_element("id", "state").text, 20)


def test_it_says_what_is_wrong_and_pauses(chromium: Chrome, serve: Serve) -> None:
    with pages() as origin:
        acting = serve(origins=(origin,))
        page, url = f"{origin}/cartpole.html", acting.server.url
        chromium.get(page)
        says(chromium, "The address lacks")
        chromium.get(f"{page}#url={url}&token=another")
        says(chromium, "The server refuses this page: wrong token.")
        chromium.get(f"{page}#url={url}&token=open%20sesame")
        says(chromium, "Learning.")
        acting.holds = True
        says(chromium, f"No answer from {url}")
        acting.holds = False
        says(chromium, "Learning.")
        chromium.find_element("css selector", "input[value=paused]").click()
        says(chromium, "Paused.")
        eventually(lambda: pictures.shown_number(chromium, "rate") == 0, 10)
        chromium.find_element("css selector", "input[value=real]").click()
        # eight carts of 50 steps per second
        eventually(lambda: 200 < pictures.shown_number(chromium, "rate") < 450, 20)
        chromium.get(f"{page.replace('127.0.0.1', 'localhost')}#url={url}&token=open%20sesame")
        says(chromium, "The server refuses this page: origin 'http://localhost:")


def test_a_run_learns_while_one_watches(chromium: Chrome, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "docs.examples.cartpole_browser", "--no-open", "--out", str(tmp_path / "run")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True) as run:
        try:
            assert run.stdout
            page = run.stdout.readline().split()[0]
            eventually(lambda: listens(int(re.findall(r"ws://127\.0\.0\.1:(\d+)", page)[0])), 60)
            chromium.get(page)
            eventually(lambda: pictures.shown_number(chromium, "mean") > 150, 120)
            assert not chromium.get_log("browser")  # type: ignore[no-untyped-call]
            assert chromium.save_screenshot(str(tmp_path / "page.png"))
            os.killpg(run.pid, signal.SIGINT)
            assert run.wait(20) == 130
            says(chromium, "The server said goodbye: the run has ended.")
        finally:
            run.kill()
    eventually(lambda: not processes_of(run.pid), 5)
    assert (tmp_path / "run" / "weights.safetensors").exists()


def listens(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0
