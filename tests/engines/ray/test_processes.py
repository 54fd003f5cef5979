"""Ray's processes in whole runs: where they listen, what is started again, and that none is left."""

from __future__ import annotations

import importlib
import os
import re
import signal
import sys
from pathlib import Path

import pytest

from apex_acer.actor.policy import load_policy
from apex_acer.config import ConfigError
from apex_acer.engines.ray import cluster
from apex_acer.engines.ray.cluster import Cluster
from apex_acer.engines.ray.handle import cause_of_death
from apex_acer.manager.manager import train
from tests.conftest import config_error
from tests.engines.local.test_programs import actor, closed, simulated, simulators
from tests.processes import sockets_of
from tests.programs import processes_of, program
from tests.runs import tiny_run

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="processes are looked up in /proc")
ENDLESS = {"engine": "ray", "stop__env_steps": 10**9, "checkpoint__every": 500, "replay__capacity": 2_000_000}
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
LISTENS = "0A"


def listening(pids: list[int]) -> list[str]:
    """Addresses, as /proc writes them, on which these processes listen."""
    inodes = sockets_of(pids)
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return [row[1].partition(":")[0] for row in rows if row[3] == LISTENS and row[9] in inodes]


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_run_listens_here_alone_goes_on_through_deaths_and_ctrl_c_saves_and_leaves_nothing(tmp_path: Path) -> None:
    with program(tmp_path / "run", **ENDLESS, ray__compress=True, backoff_s=0.05) as run:
        run.wait_until_it_learns()
        addresses = listening(list(processes_of(run.pid)))
        assert len(addresses) >= 5
        assert set(addresses) <= LOOPBACK
        run.wait_for(lambda: "actor_1" in run.children())
        run.kill_child("actor_1")
        run.wait_for(lambda: run.statuses[-1]["restarts"]["actor_1"] == 1)
        assert run.news[-1].startswith("actor_1: its process died (")
        run.wait_for(lambda: "actor_1" in run.children())
        run.wait_for(lambda: any((run.out / "checkpoint").glob("*")))
        before = {name: pid for name, pid in run.children().items() if name != "learner_0"}
        run.kill_child("learner_0")
        run.wait_for(lambda: run.statuses[-1]["restarts"]["learner"] == 1)
        known = run.statuses[-1]["env_steps"]
        run.wait_until_it_learns()
        assert run.statuses[-1]["env_steps"] > known
        assert before == {name: pid for name, pid in run.children().items() if name != "learner_0"}
        run.kill_child("actor_0", signal.SIGSTOP)
        run.send(signal.SIGINT, group=True)  # as a terminal does
        result = run.ended(within_s=15)
    assert result["reason"] == "SIGINT"
    assert load_policy(result["weights"]).metadata["env_steps"] == result["env_steps"] > 1000
    assert "learner on cpu" in (run.out / "log.txt").read_text()


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_environments_are_closed_in_an_evaluation_and_their_programs_end_with_a_role(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with simulated(tmp_path, monkeypatch, engine="ray", backoff_s=60.0) as run:
        os.kill(actor(run), signal.SIGKILL)
        run.wait_for(lambda: run.news)
        run.wait_for(lambda: simulators(run) == 2)  # the evaluator's
        run.send(signal.SIGINT, group=True)
        assert run.ended(within_s=15)["reason"] == "SIGINT"
        assert closed(tmp_path) == {"evaluator_0.close"}


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_nothing_is_left_of_a_run_whose_manager_is_killed(tmp_path: Path) -> None:
    with program(tmp_path / "run", **ENDLESS) as run:
        run.wait_until_it_learns()
        run.kill_child("actor_0", signal.SIGSTOP)
        run.send(signal.SIGKILL)
        run.assert_nothing_left(within_s=20)


def test_the_package_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    message = config_error(lambda: train(tiny_run(tmp_path, engine="ray")))
    assert "ray is not installed; pip install 'apex-acer[ray]'" in message


def test_more_than_the_machine_has_is_refused(tmp_path: Path, ray_here: Cluster) -> None:
    cpus = ray_here.nodes()[ray_here.home]["CPU"]
    with pytest.raises(ConfigError, match=rf"ray\.actor_cpus: {cpus:g}; .* there are {cpus:g}"):
        train(tiny_run(tmp_path / "cpus", engine="ray", ray__actor_cpus=cpus))
    with pytest.raises(ConfigError, match=r"actors\.count: 200000000 .* have room for"):
        train(tiny_run(tmp_path / "actors", engine="ray", actors__count=200_000_000))


def test_workers_do_not_give_way_to_everybody(ray_here: Cluster) -> None:
    ray = importlib.import_module("ray")
    assert ray.get(ray.remote(lambda: os.nice(0)).remote()) == os.nice(0)


def test_a_cluster_that_is_not_there_is_refused_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "JOIN_S", 5.0)
    assert re.match(r"ray\.address: .*; start Ray there", config_error(lambda: cluster._probe("127.0.0.1:1")))


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("The actor died.\nWorker exit detail: Killed. Or not.", "its process died (Killed)"),
        ("The actor died because its node has died. Node Id: 5", "its machine was lost"),
        ("Oh\nModuleNotFoundError: No module named 'apex_acer'", "its process died (ModuleNotFoundError: No module"),
    ],
)
def test_deaths_are_told_in_one_line(said: str, cause: str) -> None:
    assert cause_of_death(said).startswith(cause)
