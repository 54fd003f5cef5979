"""`apex-acer dashboard`: what it serves, how it begins and ends, and the page itself in a browser."""

from __future__ import annotations

import dataclasses
import html
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.support.wait import WebDriverWait

from apex_acer.config import settings_classes
from apex_acer.config.runfile import parse_run
from apex_acer.manager.manager import train
from apex_acer.storage.writers import charts_of
from docs import pictures
from tests.boards import lines
from tests.cli.conftest import Refused, assert_refused
from tests.programs import eventually, processes_of
from tests.remote.conftest import free_port
from tests.runs import tiny_run

CATEGORIES = ["Actors and evaluator", "Losses and values", "Trust region", "Exploration", "Throughput and waiting"]
ADDRESS = re.compile(r"(http://127\.0\.0\.1:(\d+)/)#custom_scalars  \(Ctrl-C ends it\)\n")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of two runs that differ in `algorithm.gamma`."""
    folder = tmp_path_factory.mktemp("runs")
    changes = {"evaluation__every": 300, "stop__env_steps": 1300, "logging__every_seconds": 0.05}
    for name, gamma in {"near": 0.9, "far": 0.99}.items():
        train(tiny_run(folder / name, algorithm__gamma=gamma, **changes))
    return folder


class Served:
    """The command, as typed, in a session of its own."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        command = [sys.executable, "-m", "apex_acer", "dashboard", *arguments]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env=os.environ | environment,
        )
        assert self.process.stdout
        self.line = self.process.stdout.readline()

    @property
    def url(self) -> str:
        found = ADDRESS.fullmatch(self.line)
        assert found, self.line
        return found[1]

    def get(self, path: str, **query: str) -> Any:
        """JSON of an address."""
        address = f"{self.url}data/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(address, timeout=20) as answer:
            return json.load(answer)

    def end(self, number: int = signal.SIGINT) -> tuple[int, str]:
        """Its exit code and what it said on standard error; nothing is left of it."""
        if number == signal.SIGINT and self.process.poll() is None:  # a terminal's, for the whole session
            os.killpg(self.process.pid, number)
        else:
            self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=10)
        eventually(lambda: not processes_of(self.process.pid), 5)
        return self.process.returncode, errors


@pytest.fixture(scope="module")
def served(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A dashboard of all runs, on the port that was asked for; once it is interrupted, nothing is left of it."""
    port, temporary = free_port(), tmp_path_factory.mktemp("temporary")
    served = Served(str(runs), "--port", str(port), TMPDIR=str(temporary))
    try:
        assert served.url.endswith(f":{port}/")
        eventually(lambda: sum(map(bool, served.get("plugin/scalars/tags").values())) == 8, 20)
        yield served
        assert served.end() == (0, "")
        assert not list(temporary.iterdir())
    finally:
        served.process.kill()


# ── beginning and ending ──


@pytest.mark.slow
def test_without_a_port_the_next_free_one_is_taken_and_nothing_is_left_of_who_is_killed(runs: Path) -> None:
    one, other = Served(str(runs)), Served(str(runs))
    try:
        assert one.url != other.url
        assert one.get("runs") is not None
        assert other.get("runs") is not None
        assert one.end(signal.SIGTERM) == (0, "")
    finally:
        assert other.end(signal.SIGKILL) == (-signal.SIGKILL, "")


def test_what_cannot_be_shown_is_one_line(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    monkeypatch.chdir(tmp_path)
    table = {
        "dashboard absent": "dashboard: 'absent' is not allowed; give the folder of a run, or a folder of runs",
        "dashboard .": "dashboard: '.' is not allowed; give the folder of a run, or a folder of runs",
        "dashboard . --port 65536": "port: 65536 is not allowed; give 0 to 65535",
    }
    assert_refused(refused, table)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        in_use = Served(str(runs), "--port", port)
        in_use.process.wait(60)
        said = f"apex-acer: port: {port} is in use; give another port, or none for the next free one\n"
        assert (in_use.line, in_use.end()) == ("", (2, said))
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    missing = "dashboard: tensorboard is not installed; pip install 'apex-acer[dashboard]'"
    assert_refused(refused, {f"dashboard {runs}": missing})


# ── what it serves ──


def test_every_algorithm_has_the_charts_that_it_has_lines_for() -> None:
    titles = {
        name: {title for charts in charts_of(kind()).values() for title in charts}
        for name, kind in settings_classes().items()
    }
    shared = {"Policy loss", "Entropy"}
    assert titles["acer"] - titles["apex_dqn"] == {"Share of samples it changed", "KL from the average policy", *shared}
    assert titles["apex_dqn"] - titles["acer"] == {"TD error"}
    spread, temperature = "Standard deviation of actions", "Temperature of the entropy"
    assert titles["sac"] - titles["apex_dqn"] == {spread, temperature, *shared}
    acer = settings_classes()["acer"]()
    assert charts_of(dataclasses.replace(acer, name="mine:MyAcer")) == charts_of(acer)


def test_the_layout_finds_every_process_of_every_run(served: Served) -> None:
    layout, charts = served.get("plugin/custom_scalars/layout")["category"], charts_of(settings_classes()["acer"]())
    assert [category["title"] for category in layout] == list(charts) == CATEGORIES
    for category in layout:
        assert [chart["title"] for chart in category["chart"]] == list(charts[category["title"]])
    returns = layout[0]["chart"][0]["multiline"]["tag"]
    assert returns == ["^episode_return$", "^eval_return$"]
    for run, tag in (("far/tb/actor_1", returns[0]), ("near/tb/evaluator", returns[1])):
        found = served.get("plugin/custom_scalars/scalars", run=run, tag=tag)
        assert found["regex_valid"]
        ((name, points),) = found["tag_to_events"].items()
        assert re.match(tag, name)  # and not episode_return_max, eval_return_std
        assert len(points) > 2


def test_the_text_is_the_configuration(served: Served, runs: Path) -> None:
    (event,) = served.get("plugin/text/text", run="far/tb/learner", tag="config/text_summary")
    code = re.search(r"<code>(.*)</code>", event["text"], re.DOTALL)
    assert code
    assert parse_run(html.unescape(code[1]), "text") == parse_run((runs / "far" / "config.toml").read_text(), "file")


def test_hyper_parameters_that_differ_come_first_and_scores_beside_them(served: Served, runs: Path) -> None:
    query = {"request": json.dumps({"experimentName": ""})}
    found = served.get("plugin/hparams/experiment", **query)
    first, *others = found["hparamInfos"]
    assert (first["name"], first["differs"]) == ("algorithm.gamma", True)
    assert not any(info.get("differs") for info in others)
    statuses = ["STATUS_UNKNOWN", "STATUS_SUCCESS", "STATUS_FAILURE", "STATUS_RUNNING"]
    query = {"request": json.dumps({"allowedStatuses": statuses, "colParams": [], "startIndex": 0, "sliceSize": 9})}
    groups = served.get("plugin/hparams/session_groups", **query)["sessionGroups"]
    assert {group["name"]: group["hparams"]["algorithm.gamma"] for group in groups} == {
        "far/tb/learner": 0.99,
        "near/tb/learner": 0.9,
    }
    for group in groups:
        values = {value["name"]["tag"]: value["value"] for value in group["metricValues"]}
        rows = lines(runs / group["name"].split("/")[0])
        assert (values["best_return"], values["env_steps"]) == (rows[-1]["best_return"], rows[-1]["env_steps"])


# ── the page ──


def shown(driver: Chrome, served: Served, tab: str, selector: str, part: str) -> list[str]:
    """What the elements of a tab say, once `part` is among it."""
    driver.get(f"{served.url}#{tab}")
    within = WebDriverWait(driver, pictures.WITHIN_S)
    within.until(lambda _: any(part in text for text in pictures.texts(driver, selector)), part)
    return pictures.texts(driver, selector)


@pytest.mark.slow
@pytest.mark.skipif(not (pictures.CHROMIUM and pictures.DRIVER), reason="chromium and chromedriver are missing")
def test_the_page_draws_all_processes_shows_the_configurations_and_compares_the_runs(served: Served) -> None:
    with pictures.browser(1900, 2300) as chromium:
        drawn = pictures.open_charts(chromium, f"{served.url}#custom_scalars")
        headings = pictures.texts(chromium, ".category-name")
        assert [heading.strip() for heading in headings] == CATEGORIES
        several = {  # lines, of two runs with two actors and an evaluator each
            "Return": 6,
            "Episode length": 6,
            "Environment steps per second": 4,
            "Policy lag": 6,
            "Value and its target": 4,
            "Share of time waiting": 6,
        }
        assert {title: len(points) for title, points in drawn.items()} == dict.fromkeys(drawn, 2) | several
        texts = shown(chromium, served, "text", "code", "[algorithm]")
        assert len(texts) == 2
        assert {re.findall(r"^gamma = (.*)$", text, re.MULTILINE)[0] for text in texts} == {"0.9", "0.99"}
        cells = shown(chromium, served, "hparams", "vaadin-grid-cell-content", "far/tb/learner")
        words = [cell.strip() for cell in cells if cell.strip()]
        assert words.index("algorithm.gamma") < words.index("best_return") < words.index("env_steps")
        assert {"near/tb/learner", "0.90000", "0.99000"} <= set(words)
