"""Actors wait for updates and are killed all the time: the turn of each goes to another, and every step stays on-policy."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from apex_acer.actor.policy import load_policy
from tests.programs import Program, program, report

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="processes are looked up in /proc")

STRICT: dict[str, Any] = {
    "algorithm__name": "ppo",
    "algorithm__epochs": 2,
    "algorithm__minibatches": 2,
    "actors__count": 8,
    "learner__batch_size": 12,  # three unrolls, so five actors wait
    "stop__env_steps": 10**9,
    "supervision__restarts": 10**6,
    "supervision__hung_seconds": 20.0,
    "logging__every_seconds": 0.1,
    "backoff_s": 0.02,
    "ready_s": 60.0,
}


def kill_actors(run: Program, chance: random.Random, kills: int, within_s: float, pause_s: float) -> int:
    """SIGKILL to so many actors, or as many as time allows, each at a random moment; the run must go on all the time."""
    done, deadline, killed = 0, time.monotonic() + within_s, set()
    while done < kills and time.monotonic() < deadline:
        time.sleep(chance.uniform(0, pause_s))
        assert run.running, run.said[-1:]
        actors = [pid for name, pid in run.children().items() if name.startswith("actor") and pid not in killed]
        if actors:
            pid = chance.choice(sorted(actors))
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)
            done += 1
        if done % 20 == 0:
            run.wait_until_it_learns()
    return done


@pytest.mark.chaos
@pytest.mark.timeout(1200)
def test_every_step_is_on_policy_through_kills(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    count, kills = STRICT["actors__count"], 1000
    with program(tmp_path / "run", **STRICT) as run:
        run.wait_until_it_learns()
        done = kill_actors(run, random.Random(0), kills, within_s=900, pause_s=0.4)
        restarts = sum(run.statuses[-1]["restarts"].values())
        run.wait_until_it_learns(1000)
        run.wait_for(lambda: len(run.children()) == 1 + count)
        run.send(signal.SIGINT)
        result = run.ended(within_s=20)
    assert result["reason"] == "SIGINT"
    rows = [json.loads(line) for line in (run.out / "metrics.jsonl").read_text().splitlines()]
    learner = [row for row in rows if row["source"] == "learner"]
    steps = [row["env_steps"] for row in learner]
    assert steps == sorted(steps)
    assert all(row["policy_lag"] == 0 for row in learner if "policy_lag" in row)
    assert all(row["policy_lag"] == 0 for row in rows if row["source"].startswith("actor"))
    assert {row["source"] for row in rows} >= {f"actor_{index}" for index in range(count)}
    assert "the learner refused" not in (run.out / "log.txt").read_text()  # a living actor would say so
    assert load_policy(result["weights"]).metadata["env_steps"] == result["env_steps"]
    refused = learner[-1]["refused_messages"]
    assert refused <= done  # the unroll on its way when its actor died
    assert restarts >= min(done, kills) - 2 * count  # those in backoff at the last look
    found = {"kills": done, "restarts": restarts, "refused": refused, "env_steps": result["env_steps"]}
    report(capsys, "turns", **found, updates=result["updates"], wall_s=round(result["wall_s"]))
