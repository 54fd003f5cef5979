"""Whole runs whose environments are remote clients."""

from __future__ import annotations

import contextlib
import io
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import gymnasium
import numpy as np
import pytest

from apex_acer import Callbacks, load_policy, resume, train
from apex_acer.client import Client, Ended, RemoteError, Summary, run, spaces
from apex_acer.config import RunConfig
from apex_acer.config.runfile import load_run
from apex_acer.manager.manager import watch
from apex_acer.manager.preparation import prepare
from tests.conftest import config_error
from tests.continuous import AIM, rows_of, settings_of
from tests.programs import eventually
from tests.remote.conftest import free_port
from tests.runs import tiny_run

CARTPOLE = {"observation_shape": (4,), "num_actions": 2}
TAKING_AIM = {"observation_shape": (2,), "action_low": (-1.0, 0.0), "action_high": (3.0, 10.0)}


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


def test_clients_are_learned_from_and_evaluated_and_the_run_can_be_resumed(tmp_path: Path) -> None:
    """A client of another environment is refused meanwhile, and at the end all hear of it."""
    config = remote_run(tmp_path, evaluation__every=500, stop__env_steps=1500)
    url = config.environment.remote.url
    refused = ThreadPoolExecutor(1).submit(refusal, tmp_path, url)
    clients = [
        Clients(tmp_path, url, "CartPole-v1", 3),
        Clients(tmp_path, url, "CartPole-v1", 2, train=False),
    ]
    news: list[str] = []
    result = train(config, Callbacks(on_status=lambda status: news.extend(status["news"])))
    assert news == [f"remote clients connect to {url}"]
    training, evaluated = (group.join() for group in clients)
    assert result.reason == "env_steps"
    assert 1500 <= result.env_steps <= sum(played.steps for played in training)
    assert result.eval_return is not None
    assert max(row["clients"] for row in rows_of(tmp_path, "actor_0")) == 3
    assert [row["eval_env_steps"] for row in rows_of(tmp_path, "evaluator")][:1] != []
    assert min(played.episodes for played in evaluated) > 0
    assert load_policy(result.weights).metadata["env_steps"] == result.env_steps
    assert refused.result().startswith("observation is {'dtype': 'float32', 'shape': [2]}, this server's is")
    assert "actor_0: refused a client at 127.0.0.1: observation is" in (tmp_path / "log.txt").read_text()
    token = (tmp_path / "token").read_text()
    assert token.strip() not in "".join(path.read_text() for path in tmp_path.glob("*.t*xt"))
    again = Clients(tmp_path, url, "CartPole-v1", 2)
    assert resume(tmp_path, {"env_steps": 2000}).env_steps >= 2000
    again.join()
    assert (tmp_path / "token").read_text() == token


def test_a_client_with_a_name_has_metrics_of_its_own(tmp_path: Path) -> None:
    """A client of two agents; its name becomes the name of a folder."""
    config = remote_run(tmp_path, stop__env_steps=600, logging__every_seconds=0.05)
    played = ThreadPoolExecutor(1).submit(play_two, tmp_path, config.environment.remote.url)
    train(config)
    returns = played.result(40)
    rows = rows_of(tmp_path, "client_unity_arena")
    assert max(row["clients"] for row in rows) == 2
    means = [row["episode_return"] for row in rows if "episode_return" in row]
    assert means
    assert min(returns) <= min(means) <= max(means) <= max(returns)
    assert rows[-1]["episodes"] <= len(returns)
    assert [*(tmp_path / "tb" / "client_unity_arena").iterdir()]
    assert "actor_0: client 'unity/arena' has left: 2 agents, " in (tmp_path / "log.txt").read_text()


def play_two(folder: Path, url: str) -> list[float]:
    """Plays two copies of CartPole on one connection until the run ends; returns the episodes' returns."""
    eventually((folder / "token").exists, 30)
    envs = [gymnasium.make("CartPole-v1") for _ in range(2)]
    described: dict[str, Any] = {**spaces(envs[0])}
    token = (folder / "token").read_text().strip()
    returns, totals, over = list[float](), [0.0, 0.0], [True, True]
    with (
        Client(url, token, **described, agents=2, name="unity/arena", patience_s=30) as client,
        contextlib.suppress(Ended),
    ):
        actions: list[Any] = [None, None]
        while True:
            kinds, observations, rewards = list[str](), list[Any](), list[float]()
            for at, env in enumerate(envs):
                if over[at]:
                    obs, reward, kind, over[at], totals[at] = env.reset()[0], 0.0, "reset", False, 0.0
                else:
                    obs, given, terminated, truncated, _ = env.step(actions[at])
                    reward, over[at] = float(given), terminated or truncated
                    kind = "terminated" if terminated else "truncated" if truncated else "step"
                    totals[at] += reward
                    returns += [totals[at]] if over[at] else []
                kinds.append(kind)
                observations.append(obs)
                rewards.append(reward)
            actions = client.steps(kinds, np.array(observations), rewards)
    return returns


def refusal(folder: Path, url: str) -> str:
    """What a client of another environment hears."""
    eventually((folder / "token").exists, 30)
    their_spaces: dict[str, Any] = {**spaces(gymnasium.make(AIM))}
    with pytest.raises(RemoteError) as raised:
        Client(url, (folder / "token").read_text().strip(), **their_spaces)
    return str(raised.value)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["ppo_lstm", "sac"])
def test_a_recurrent_policy_and_continuous_actions_are_learned_from_clients(tmp_path: Path, algorithm: str) -> None:
    changes = settings_of(algorithm) | (
        {"algorithm__pipelined": True} if algorithm == "ppo_lstm" else {"replay__start": 100}
    )
    config = remote_run(tmp_path, TAKING_AIM, **(changes | {"stop__env_steps": 600}))
    clients = Clients(tmp_path, config.environment.remote.url, AIM, 3)
    result = train(config)
    assert (result.updates > 0, result.skipped_updates) == (True, 0)
    assert result.env_steps <= sum(played.steps for played in clients.join())


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


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_token_is_shown_to_a_terminal_only(
    tmp_path: Path, is_terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: is_terminal)
    monkeypatch.setattr("apex_acer.manager.manager.manage", mock.Mock())
    monkeypatch.setattr("apex_acer.views.console.live_view", mock.MagicMock())
    watch(prepare(remote_run(tmp_path), time.monotonic()), stream=stream)
    said, token = stream.getvalue(), (tmp_path / "token").read_text().strip()
    assert f"the token of remote clients is in {tmp_path}/token\n" in said
    assert (f"token: {token}\n" in said) == (token in said) == is_terminal
