"""Writes the pictures in docs/images: `python -m docs.pictures [dashboard] [browser] [live] [agent]`.

They show pages of real runs in Chromium, which Selenium controls: `apt-get install chromium chromium-driver`.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.wait import WebDriverWait

from apex_acer.algorithms.acer.settings import AcerConfig
from apex_acer.storage.writers import charts_of
from docs import recordings

IMAGES = Path(__file__).parent / "images"
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
WITHIN_S = 30
# elements of a page and of its components
ALL = """const all = (root, selector) => [...root.querySelectorAll(selector),
    ...[...root.querySelectorAll("*")].filter(e => e.shadowRoot).flatMap(e => all(e.shadowRoot, selector))];"""


def apex_acer(*arguments: str, cwd: Path | None = None) -> subprocess.Popen[str]:
    """Starts the command line in a new process."""
    command = [sys.executable, "-m", "apex_acer", *arguments]
    return subprocess.Popen(
        command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@contextlib.contextmanager
def dashboard(folder: str, cwd: Path | None = None) -> Iterator[str]:
    """Runs `apex-acer dashboard` for `folder`; yields the address that it prints."""
    process = apex_acer("dashboard", folder, "--port", "0", cwd=cwd)
    try:
        assert process.stdout
        yield process.stdout.readline().split()[0]
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=WITHIN_S)


@contextlib.contextmanager
def browser(width: int, height: int) -> Iterator[webdriver.Chrome]:
    """Chromium without a window, `width` × `height` pixels."""
    if not (CHROMIUM and DRIVER):
        raise SystemExit("pictures: chromium and chromedriver are not both installed")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", f"--window-size={width},{height}"):
        options.add_argument(flag)
    driver = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
    try:
        yield driver
    finally:
        driver.quit()


def texts(driver: webdriver.Chrome, selector: str) -> list[str]:
    """Texts of the elements that match `selector`."""
    return list(driver.execute_script(f"{ALL} return all(document, arguments[0]).map(e => e.innerText)", selector))


def lines(driver: webdriver.Chrome) -> dict[str, list[int]]:
    """Number of points of each line in the custom-scalars charts, by title of the chart."""
    charts: dict[str, Any] = driver.execute_script(
        f"""{ALL} return Object.fromEntries(all(document, "tf-custom-scalar-multi-line-chart-card").map(chart => [
        chart.title, all(chart.shadowRoot, ".line-plot:not(.ghost) path.line").map(
            line => (line.getAttribute("d") || "").split("L").length)]))"""
    )
    return charts


def open_charts(driver: webdriver.Chrome, url: str) -> dict[str, list[int]]:
    """Opens the charts and waits until each has lines; returns `lines(driver)`."""
    titles = {title for charts in charts_of(AcerConfig()).values() for title in charts}
    driver.get(url)

    def drawn(driver: webdriver.Chrome) -> bool:
        shown = lines(driver)
        return shown.keys() == titles and all(shown.values()) and min(map(min, shown.values())) > 1

    WebDriverWait(driver, WITHIN_S).until(drawn, "charts without lines")
    return lines(driver)


def dashboard_picture() -> None:
    """Writes dashboard.png: the charts of 20,000 env steps of CartPole with two actors."""
    with tempfile.TemporaryDirectory() as folder:
        flags = ("--actors", "2", "--steps", "20000", "--stop.at-return", "None", "--evaluation.every", "1000")
        often = ("--logging.every-seconds", "0.3")
        run = apex_acer("train", "cartpole", *flags, *often, "--out", "cartpole", cwd=Path(folder))
        _, errors = run.communicate(timeout=600)
        assert run.returncode == 0, errors
        with dashboard("cartpole", Path(folder)) as url, browser(1900, 2070) as driver:
            open_charts(driver, url)
            IMAGES.mkdir(exist_ok=True)
            driver.save_screenshot(str(IMAGES / "dashboard.png"))


def shown_number(driver: webdriver.Chrome, name: str) -> float:
    """The number in an element of the page; 0 if there is none yet."""
    text = driver.find_element("id", name).text.replace(",", "")
    return float(text) if text.replace(".", "").isdecimal() else 0.0


def browser_picture() -> None:
    """Writes cartpole-browser.png: carts of a page that keep their poles upright although they are pushed."""
    with tempfile.TemporaryDirectory() as folder, browser(1200, 960) as driver:
        command = [sys.executable, "-m", "docs.examples.cartpole_browser", "--no-open", "--out", f"{folder}/run"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
            assert run.stdout
            driver.get(run.stdout.readline().split()[0])
            within = WebDriverWait(driver, 120)
            within.until(lambda _: shown_number(driver, "mean") > 350)
            steps = shown_number(driver, "steps")
            driver.find_element("id", "push").send_keys(Keys.ARROW_RIGHT * 4)
            within.until(lambda _: shown_number(driver, "steps") > 1.5 * steps)
            driver.save_screenshot(str(IMAGES / "cartpole-browser.png"))
            run.send_signal(signal.SIGINT)


PICTURES = {
    "dashboard": dashboard_picture,
    "browser": browser_picture,
    "live": recordings.live,
    "agent": recordings.agent,
}

if __name__ == "__main__":
    for name in sys.argv[1:] or PICTURES:
        PICTURES[name]()
