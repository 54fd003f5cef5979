"""A cluster of several nodes, all of them on this machine: CartPole is learned while nodes go and come."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from apex_acer.config import RayConfig, RunConfig
from apex_acer.config.runfile import load_run
from tests.programs import Program, eventually, processes_of, program

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="processes are looked up in /proc"),
    pytest.mark.timeout(600),
]

# in a process of its own, where Ray is not in use yet; it does what it reads, line by line, and answers each
NODES = """
import sys
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "node_ip_address": "127.0.0.1"})
nodes = []
def add(): nodes.append(cluster.add_node(num_cpus=2, node_ip_address="127.0.0.1"))
def remove(): cluster.remove_node(nodes.pop(0))
def shutdown(): cluster.shutdown()
print(cluster.address, flush=True)
for line in sys.stdin:
    globals()[line.strip()]()
    print("done", flush=True)
"""


class Nodes:
    """A head and as many more nodes as were added."""

    def __init__(self) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            [sys.executable, "-c", NODES], stdin=pipe, stdout=pipe, text=True, start_new_session=True
        )
        self.session = self._process.pid
        self.address = self._hear()

    def do(self, what: str) -> None:
        assert self._process.stdin
        print(what, file=self._process.stdin, flush=True)
        assert self._hear() == "done"

    def _hear(self) -> str:
        assert self._process.stdout
        return self._process.stdout.readline().strip()

    def close(self) -> None:
        """Ends it with its input, however far it has come."""
        try:
            self._process.communicate(timeout=60)
        finally:
            self._process.kill()


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    """A head and two more."""
    started = Nodes()
    try:
        for _ in range(2):
            started.do("add")
        yield started
        started.do("shutdown")
    finally:
        started.close()
    eventually(lambda: not processes_of(started.session), within_s=30)


def cartpole(nodes: Nodes, **more: Any) -> RunConfig:
    config = load_run("cartpole")
    actors = dataclasses.replace(config.actors, count=3)
    return dataclasses.replace(config, engine="ray", actors=actors, ray=RayConfig(address=nodes.address), **more)


def assert_learned(run: Program) -> None:
    result = run.ended(within_s=300)
    assert result["reason"] == "at_return"
    assert result["eval_return"] >= 475


def test_cartpole_is_learned_while_a_node_goes_and_another_comes(nodes: Nodes, tmp_path: Path) -> None:
    with program(tmp_path / "run", config=cartpole(nodes), backoff_s=0.05) as run:
        run.wait_until_it_learns()
        nodes.do("remove")
        run.wait_for(lambda: run.news)
        assert {line.partition(": ")[2].partition(";")[0] for line in run.news} == {"its machine was lost"}
        nodes.do("add")
        assert_learned(run)


def test_cartpole_is_learned_by_a_learner_that_was_killed(nodes: Nodes, tmp_path: Path) -> None:
    config = cartpole(nodes)
    config = dataclasses.replace(config, checkpoint=dataclasses.replace(config.checkpoint, every=2000))
    with program(tmp_path / "run", config=config, backoff_s=0.05) as run:
        run.wait_for(lambda: any((run.out / "checkpoint").glob("*")))
        run.wait_until_it_learns()
        (learner,) = [pid for pid, name in processes_of(nodes.session).items() if name == "learner_0"]
        os.kill(learner, signal.SIGKILL)
        run.wait_for(lambda: run.statuses[-1]["restarts"]["learner"] == 1)
        assert_learned(run)
