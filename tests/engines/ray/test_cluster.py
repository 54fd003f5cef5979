"""A cluster of several nodes, all of them on this machine: CartPole is learned while nodes go and come."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from apex_acer.config import RayConfig, RunConfig
from apex_acer.config.runfile import load_run
from tests.nodes import Nodes, three_nodes
from tests.programs import processes_of, program

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="processes are looked up in /proc"),
    pytest.mark.timeout(600),
]


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    with three_nodes() as started:
        yield started


def cartpole(nodes: Nodes) -> RunConfig:
    """It goes on until it is told to end, however fast the machine learns."""
    config = load_run("cartpole")
    return dataclasses.replace(
        config,
        engine="ray",
        actors=dataclasses.replace(config.actors, count=3),
        checkpoint=dataclasses.replace(config.checkpoint, every=2000),
        stop=dataclasses.replace(config.stop, at_return=None, env_steps=10_000_000),
        ray=RayConfig(address=nodes.address),
    )


def test_cartpole_is_learned_while_a_node_goes_another_comes_and_the_learner_is_killed(
    nodes: Nodes, tmp_path: Path
) -> None:
    with program(tmp_path / "run", config=cartpole(nodes), backoff_s=0.05) as run:
        run.wait_for(lambda: any((run.out / "checkpoint").glob("*")))
        nodes.do("remove")
        run.wait_for(lambda: run.news)
        assert {line.partition(": ")[2].partition(";")[0] for line in run.news} == {"its machine was lost"}
        nodes.do("add")
        run.wait_until_it_learns()
        (learner,) = [pid for pid, name in processes_of(nodes.session).items() if name == "learner_0"]
        os.kill(learner, signal.SIGKILL)
        run.wait_for(lambda: run.statuses[-1]["restarts"]["learner"] == 1)
        known = run.statuses[-1]["env_steps"]

        def learned() -> bool:
            scored = run.statuses[-1]["rows"].get("evaluator", {})
            return bool(scored.get("eval_env_steps", 0) > known and scored["eval_return"] >= 475)

        run.wait_for(learned, within_s=300)
        run.send(signal.SIGINT)
        assert run.ended(within_s=60)["reason"] == "SIGINT"
