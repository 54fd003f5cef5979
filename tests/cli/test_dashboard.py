"""`apex-acer dashboard`: what it serves, how it begins and ends."""

from __future__ import annotations

import dataclasses
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

from apex_acer.config import settings_classes
from apex_acer.manager.manager import train
from apex_acer.storage.writers import charts_of
from tests.boards import lines
from tests.conftest import Refused, assert_refused
from tests.programs import eventually, processes_of
from tests.remote.conftest import free_port
from tests.runs import tiny_run

CATEGORIES = ["Actors and evaluator", "Losses and values", "Trust region", "Exploration", "Throughput and waiting"]
LINES = {  # of two runs with two actors and an evaluator each, where they are more than those of two learners
    "Return": 6,
    "Episode length": 6,
    "Environment steps per second": 4,
    "Policy lag": 6,
    "Value and its target": 4,
    "Share of time waiting": 6,
}
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


def test_the_layout_has_a_line_for_each_process_of_each_run(served: Served) -> None:
    layout, charts = served.get("plugin/custom_scalars/layout")["category"], charts_of(settings_classes()["acer"]())
    titles = {category["title"]: [chart["title"] for chart in category["chart"]] for category in layout}
    assert titles == {name: list(category) for name, category in charts.items()}
    assert list(titles) == CATEGORIES
    written = [tag for tags in served.get("plugin/scalars/tags").values() for tag in tags]
    patterns = {chart["title"]: chart["multiline"]["tag"] for category in layout for chart in category["chart"]}
    num = {title: sum(bool(re.match("|".join(tags), tag)) for tag in written) for title, tags in patterns.items()}
    assert num == dict.fromkeys(num, 2) | LINES


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
