"""`apex-acer serve`: what it answers, that it notices new weights, and its end."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apex_acer import load_policy, train
from apex_acer.client import Client
from apex_acer.config import RunConfig
from tests.conftest import Refused, assert_refused
from tests.continuous import continuous_run
from tests.programs import eventually
from tests.remote.conftest import free_port
from tests.runs import tiny_run

PPO: dict[str, Any] = {"algorithm__name": "ppo", "network__lstm": 8, "algorithm__minibatches": 1}
RUNS: dict[str, Callable[..., RunConfig]] = {
    "acer": tiny_run,
    "ppo_lstm": lambda out, **changes: tiny_run(out, **PPO, **changes),
    "sac": lambda out, **changes: continuous_run(out, "sac", **changes),
}


class Serving:
    """The command, as typed, until it is interrupted."""

    def __init__(self, weights: Path, *flags: str) -> None:
        self.url = f"127.0.0.1:{free_port()}"
        command = [sys.executable, "-m", "apex_acer", "serve", str(weights), "--listen", self.url, *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ)
        self.said: list[str] = []
        assert self.process.stdout
        while "token" not in (self.said or [""])[-1]:
            self.said.append(self.process.stdout.readline())
            assert self.said[-1]

    def interrupt(self) -> str:
        """What it still says."""
        self.process.send_signal(signal.SIGINT)
        return self.process.communicate(timeout=20)[0]


@pytest.fixture
def weights(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    return Path(train(RUNS[request.param](tmp_path / "run", stop__env_steps=300)).weights)


@pytest.fixture
def serving(weights: Path) -> Iterator[Serving]:
    found = Serving(weights)
    with found.process:
        yield found
        found.process.kill()


@pytest.mark.slow
@pytest.mark.parametrize("weights", RUNS, indirect=True)
def test_it_acts_as_the_policy_itself_does(weights: Path, serving: Serving) -> None:
    policy, rng = load_policy(weights), np.random.default_rng(0)
    token = (weights.parent / "token").read_text().strip()
    space = policy.spec.actions
    action = {"n": 2} if space.kind == "Discrete" else {"low": [-1.0, 0.0], "high": [3.0, 10.0]}
    observation = {"shape": list(policy.spec.given_shape), "dtype": "float32"}
    with Client(f"ws://{serving.url}", token, observation=observation, action=action) as client:
        for _ in range(3):
            policy.reset()
            for step, obs in enumerate(rng.normal(size=(20, *policy.spec.given_shape)).astype(np.float32)):
                given = client.step(obs, 1.0) if step else client.reset(obs)
                np.testing.assert_array_equal(given, policy.act(obs))
            client.end(obs, 0.0, terminated=True)


@pytest.mark.parametrize("weights", ["acer"], indirect=True)
def test_new_weights_act_from_the_next_request_on(weights: Path, serving: Serving, tmp_path: Path) -> None:
    token = (weights.parent / "token").read_text().strip()
    other = Path(train(tiny_run(tmp_path / "other", stop__env_steps=300, seed=1)).weights)
    old, new, obs = load_policy(weights), load_policy(other), np.random.default_rng(0).normal(size=(200, 4))
    differs = next(one for one in obs.astype(np.float32) if old.act(one) != new.act(one))
    spaces: dict[str, Any] = {"observation": {"shape": [4], "dtype": "float32"}, "action": {"n": 2}}
    with Client(f"ws://{serving.url}", token, **spaces) as client:
        assert client.reset(differs) == old.act(differs)
        shutil.copy(other, weights.with_suffix(".new"))
        weights.with_suffix(".new").replace(weights)
        eventually(lambda: client.step(differs, 0.0) == new.act(differs), within_s=5.0)
        weights.write_bytes(b"no weights")
        time.sleep(0.5)
        assert client.step(differs, 0.0) == new.act(differs)
    with Client(f"ws://{serving.url}", token, **spaces, agents=1, name="robot") as client:
        client.steps(["reset"], [differs], [0.0])
    said = serving.interrupt()
    assert serving.process.returncode == 0
    assert "client 'robot' has come with 1 agents\nclient 'robot' has left: 1 agents, 0 steps, " in said
    assert re.search(r"served \d+ actions, from request to action p50 [\d.]+ ms, p99 [\d.]+ ms\n$", said)
    assert f"{weights}: new weights\n{weights}: not taken: {weights}: " in said


def test_bad_input_is_one_line(finished_run: Path, refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "empty").touch(0o600)
    table = {
        "--listen 7777": "serve.listen: '7777' is not allowed; give ADDRESS:PORT, with a port from 1 to 65535",
        "--listen 0.0.0.0:7777": "serve.listen: '0.0.0.0:7777' is not allowed; beyond this machine, give certificate",
        f"--token-file {tmp_path}/no": f"serve.token_file: '{tmp_path}/no': No such file or directory; give a file",
        f"--token-file {tmp_path}/empty": f"serve.token_file: '{tmp_path}/empty' is not allowed; give a file",
    }
    weights = finished_run / "weights.safetensors"
    assert_refused(refused, {f"serve {weights} {flags}": parts for flags, parts in table.items()})
