"""Runs whose environments are remote clients: what the rest of the run must be."""

from __future__ import annotations

from typing import Any

import pytest

from apex_acer.config import ListenConfig
from apex_acer.config.runfile import from_dict, load_run
from tests.conftest import config_error

SPACES = {"observation_shape": [4], "num_actions": 2}


def a_run(remote: dict[str, Any] | None = None, **sections: Any) -> dict[str, Any]:
    environment = {"id": "remote", "remote": SPACES | (remote or {})}
    return {"environment": environment, "actors": {"environments": 1}, **sections}


ONE_KIND = "give one of num_actions, num_choices, and action_low with action_high"
REFUSED = [
    (a_run(engine="serial"), "engine: 'serial' is not allowed; environment.id remote needs engine local"),
    (a_run(actors={"count": 2, "environments": 1}), "actors.count: 2 is not allowed; one actor serves all"),
    (a_run(actors={"environments": 8}), "actors.environments: 8 is not allowed; an unroll has the steps of one"),
    (a_run(algorithm={"name": "ppo"}), "algorithm.pipelined: False is not allowed; remote clients do not wait"),
    (a_run({"observation_shape": []}), "environment.remote.observation_shape: () is not allowed; give the shape"),
    (a_run({"num_actions": 0}), f"environment.remote.num_actions: 0 is not allowed; {ONE_KIND}"),
    (
        a_run({"action_low": [0.0], "action_high": [1.0]}),
        f"environment.remote.num_actions: 2 is not allowed; {ONE_KIND}",
    ),
]


@pytest.mark.parametrize(("run", "message"), REFUSED, ids=str)
def test_what_does_not_fit_remote_clients(run: dict[str, Any], message: str) -> None:
    assert config_error(lambda: from_dict(run)).startswith(message)


def test_a_local_environment_stands_in_where_one_is_named() -> None:
    named = load_run("cartpole-remote").environment
    assert (named.id, named.local.id) == ("remote", "CartPole-v1")
    unnamed = from_dict(a_run()).environment
    assert config_error(lambda: unnamed.local).startswith("environment.remote.local: '' is not allowed")


@pytest.mark.parametrize(
    ("listen", "address", "loopback"),
    [
        ("127.0.0.1:7777", ("127.0.0.1", 7777), True),
        ("[::1]:7777", ("::1", 7777), True),
        ("host:7777", ("host", 7777), False),
    ],
)
def test_addresses(listen: str, address: tuple[str, int], loopback: bool) -> None:
    settings = ListenConfig(listen=listen, insecure=True)
    assert (settings.address, settings.is_loopback, settings.url) == (address, loopback, f"ws://{listen}")
