"""Whole runs whose environments are remote clients."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TextIO

import gymnasium
import pytest

from apex_acer import Callbacks, RunFailed, load_policy, resume, train
from apex_acer.client import Client, RemoteError, Summary, run, spaces
from apex_acer.config import RunConfig
from apex_acer.config.runfile import load_run
from apex_acer.manager.manager import watch
from apex_acer.manager.preparation import prepare
from apex_acer.manager.result import TrainResult
from tests import on_policy
from tests.conftest import config_error
from tests.continuous import AIM, settings_of
from tests.processes import processes
from tests.programs import eventually
from tests.remote.conftest import free_port
from tests.runs import tiny_run

CARTPOLE = {"observation_shape": (4,), "num_actions": 2}
TAKING_AIM = {"observation_shape": (2,), "action_low": (-1.0, 0.0), "action_high": (3.0, 10.0)}
PIPELINED = {"algorithm__pipelined": True}
DISCRETE: dict[str, dict[str, Any]] = {
    "apex_dqn": {"algorithm__name": "apex_dqn"},
    **{name: on_policy.ALGORITHMS[name] | PIPELINED for name in ("ppo", "ppo_lstm", "trpo", "reinforce", "a3c")},
}
CONTINUOUS = "sac", "ddpg", "continuous_acer", "impala"


class Together(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Begins once every client of its group has connected: a run may be over before the last one comes."""

    def __init__(self, env: gymnasium.Env[Any, Any], connected: threading.Barrier) -> None:
        super().__init__(env)
        self._connected = connected

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:  # the first one
            self._connected.wait(30)
        return self.env.reset(seed=seed, options=options)


class Clients:
    """Clients in threads, which begin once the run has a token and play until it says goodbye."""

    def __init__(self, folder: Path, url: str, name: str, num: int, *, train: bool = True) -> None:
        self._given, self._connected = (folder, url, name, train), threading.Barrier(num)
        self._playing = [ThreadPoolExecutor(1).submit(self._play, seed) for seed in range(num)]

    def _play(self, seed: int) -> Summary:
        folder, url, name, train = self._given
        eventually((folder / "token").exists, 30)
        env = Together(gymnasium.make(name), self._connected)
        return run(env, url, (folder / "token").read_text().strip(), train=train, seed=seed, patience_s=30)

    def join(self) -> list[Summary]:
        """What each of them has played; raises what one of them has raised."""
        return [playing.result(40) for playing in self._playing]


def remote_run(out: Path, spaces: dict[str, Any] = CARTPOLE, **changes: Any) -> RunConfig:
    remote = {"listen": f"127.0.0.1:{free_port()}", "grace_s": 1.0, **spaces}
    fixed = {"environment__id": "remote", "environment__remote": remote, "actors__count": 1, "actors__environments": 1}
    return tiny_run(out, **{**changes, "engine": "local", **fixed})


def rows(folder: Path, source: str) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if row["source"] == source]


def test_clients_are_learned_from_and_evaluated_and_the_run_can_be_resumed(tmp_path: Path) -> None:
    config = remote_run(tmp_path, evaluation__every=500, stop__env_steps=1500)
    url = config.environment.remote.url
    clients = [
        Clients(tmp_path, url, "CartPole-v1", 3),
        Clients(tmp_path, url, "CartPole-v1", 2, train=False),
    ]
    result = train(config)
    training, evaluated = (group.join() for group in clients)
    assert result.reason == "env_steps"
    assert 1500 <= result.env_steps <= sum(played.steps for played in training)
    assert result.eval_return is not None
    assert max(row["clients"] for row in rows(tmp_path, "actor_0")) == 3
    assert [row["eval_env_steps"] for row in rows(tmp_path, "evaluator")][:1] != []
    assert min(played.episodes for played in evaluated) > 0
    assert load_policy(result.weights).metadata["env_steps"] == result.env_steps
    token = (tmp_path / "token").read_text()
    assert token.strip() not in "".join(path.read_text() for path in tmp_path.glob("*.t*xt"))
    again = Clients(tmp_path, url, "CartPole-v1", 2)
    assert resume(tmp_path, {"env_steps": 2000}).env_steps >= 2000
    again.join()
    assert (tmp_path / "token").read_text() == token


@pytest.mark.slow
def test_clients_may_make_several_choices_at_once(tmp_path: Path) -> None:
    """The environment raises if an action is not in its space."""
    dials = {"observation_shape": (9,), "num_choices": (3, 2, 4)}
    check_that_it_learns(remote_run(tmp_path, dials, stop__env_steps=600), "tests.environments_for_tests:Dials-v0")


@pytest.mark.parametrize("algorithm", [pytest.param(name, marks=pytest.mark.slow) for name in DISCRETE])
def test_every_algorithm_learns_from_clients(tmp_path: Path, algorithm: str) -> None:
    check_that_it_learns(remote_run(tmp_path, **DISCRETE[algorithm], stop__env_steps=600), "CartPole-v1")


@pytest.mark.parametrize("algorithm", [pytest.param(name, marks=pytest.mark.slow) for name in CONTINUOUS])
def test_every_algorithm_learns_from_clients_with_continuous_actions(tmp_path: Path, algorithm: str) -> None:
    changes = settings_of(algorithm) | ({} if algorithm in on_policy.ALGORITHMS else {"replay__start": 100})
    check_that_it_learns(remote_run(tmp_path, TAKING_AIM, **(changes | {"stop__env_steps": 600})), AIM)


def check_that_it_learns(config: RunConfig, name: str) -> None:
    clients = Clients(Path(config.out), config.environment.remote.url, name, 3)
    result = train(config)
    assert (result.updates > 0, result.skipped_updates) == (True, 0)
    assert result.env_steps <= sum(played.steps for played in clients.join())


@pytest.mark.slow
def test_a_run_waits_while_nobody_is_connected_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer than a process may be silent: one that waits for clients does not hang."""
    config = remote_run(tmp_path, supervision__hung_seconds=4.0, stop__env_steps=100)
    threading.Timer(10.0, lambda: Clients(tmp_path, config.environment.remote.url, "CartPole-v1", 1)).start()
    waiting: list[float] = []
    callbacks = Callbacks(on_status=lambda status: waiting.append(status["rows"].get("actor_0", {}).get("clients", 1)))
    result = train(config, callbacks)
    assert result.env_steps >= 100
    assert 0 in waiting
    assert "incarnation 1" not in (tmp_path / "log.txt").read_text()


def test_clients_hear_goodbye_when_a_run_fails(tmp_path: Path) -> None:
    config = dataclasses.replace(remote_run(tmp_path), stop=dataclasses.replace(remote_run("").stop, env_steps=10**9))
    clients, killed = Clients(tmp_path, config.environment.remote.url, "CartPole-v1", 2), set[int]()

    def fail(status: dict[str, Any]) -> None:
        learner = processes(os.getpid()).get("learner_0")
        if status["rows"].get("actor_0", {}).get("clients") == 2 and learner and learner not in killed:
            killed.add(learner)
            os.kill(learner, signal.SIGKILL)

    supervision = dataclasses.replace(config.supervision, restarts=0)
    with pytest.raises(RunFailed, match="learner: killed by SIGKILL"):
        train(dataclasses.replace(config, supervision=supervision), Callbacks(on_status=fail))
    assert [played.steps > 0 for played in clients.join()] == [True, True]


def test_a_port_in_use_is_one_line(tmp_path: Path) -> None:
    config = remote_run(tmp_path)
    with socket.create_server(config.environment.remote.address):
        message = config_error(lambda: train(config))
    listen = config.environment.remote.listen
    assert message == f"environment.remote.listen: '{listen}': Address already in use; give an address and a free port"
    assert not [*tmp_path.iterdir()], "it was noticed before anything began"


def test_a_local_environment_must_be_like_the_clients(tmp_path: Path) -> None:
    run = load_run("cartpole-remote", environment={"remote": {"local": "Acrobot-v1"}}, out=str(tmp_path))
    message = config_error(lambda: train(run))
    assert message.startswith("environment.remote.local: 'Acrobot-v1' is not allowed; from clients to it, the shape of")


def test_spaces_of_another_environment_are_refused_and_the_run_goes_on(tmp_path: Path) -> None:
    config = remote_run(tmp_path, stop__env_steps=200)
    refusals: list[str] = []

    def intrude() -> None:
        while not (tmp_path / "token").exists():
            time.sleep(0.02)
        try:
            Client(
                config.environment.remote.url, (tmp_path / "token").read_text().strip(), **spaces(gymnasium.make(AIM))
            )
        except RemoteError as error:
            refusals.append(str(error))
        Clients(tmp_path, config.environment.remote.url, "CartPole-v1", 1)

    thread = threading.Thread(target=intrude)
    thread.start()
    assert train(config).env_steps >= 200
    thread.join()
    assert refusals[0].startswith("observation is {'dtype': 'float32', 'shape': [2]}, this server's is")
    assert "actor_0: refused a client: observation is" in (tmp_path / "log.txt").read_text()


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_token_is_shown_to_a_terminal_only_and_an_address_once_it_answers(tmp_path: Path, is_terminal: bool) -> None:
    config = remote_run(tmp_path, stop__env_steps=100)
    clients = Clients(tmp_path, config.environment.remote.url, "CartPole-v1", 1)
    stream = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        run = prepare(config, time.monotonic())
        patch.setattr(stream, "isatty", lambda: is_terminal)
        patch.setattr("apex_acer.views.console.live_view", lambda config, stream: contextlib.nullcontext(Plain(stream)))
        watch(run, stream=stream)
    clients.join()
    said, token = stream.getvalue(), (tmp_path / "token").read_text().strip()
    assert f"the token of remote clients is in {tmp_path}/token\n" in said
    assert (f"token: {token}\n" in said) == (token in said) == is_terminal
    assert f"news: remote clients connect to {config.environment.remote.url}\n" in said


class Plain:
    """A view that prints news."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def update(self, status: dict[str, Any]) -> None:
        for line in status["news"]:
            print(f"news: {line}", file=self._stream)

    def tell(self, line: str) -> None:
        pass

    def conclude(self, result: TrainResult) -> None:
        pass
