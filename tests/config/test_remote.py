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
REFUSED = {
    "engine": (a_run(engine="serial"), "engine: 'serial' is not allowed; environment.id remote needs engine local"),
    "actors": (
        a_run(actors={"count": 2, "environments": 1}),
        "actors.count: 2 is not allowed; one actor serves all remote clients; give 1",
    ),
    "environments": (
        a_run(actors={"environments": 8}),
        "actors.environments: 8 is not allowed; an unroll has the steps of one remote client; give 1",
    ),
    "on-policy": (
        a_run(algorithm={"name": "ppo"}),
        "algorithm.pipelined: False is not allowed; remote clients do not wait for each other; give True",
    ),
    "no observations": (
        a_run({"observation_shape": []}),
        "environment.remote.observation_shape: () is not allowed; give the shape of an observation",
    ),
    "no actions": (
        a_run({"num_actions": 0}),
        f"environment.remote.num_actions: 0 is not allowed; {ONE_KIND}",
    ),
    "both kinds of actions": (
        a_run({"action_low": [0.0], "action_high": [1.0]}),
        f"environment.remote.num_actions: 2 is not allowed; {ONE_KIND}",
    ),
}


@pytest.mark.parametrize(("run", "message"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_remote_clients(run: dict[str, Any], message: str) -> None:
    assert config_error(lambda: from_dict(run)) == message


def test_a_local_environment_stands_in_where_one_is_named() -> None:
    named = load_run("cartpole-remote").environment
    assert (named.id, named.local.id) == ("remote", "CartPole-v1")
    unnamed = from_dict(a_run()).environment
    assert config_error(lambda: unnamed.local).startswith("environment.remote.local: '' is not allowed")


@pytest.mark.parametrize(
    ("listen", "address", "loopback"),
    [
        ("127.0.0.1:7777", ("127.0.0.1", 7777), True),
        ("localhost:80", ("localhost", 80), True),
        ("[::1]:7777", ("::1", 7777), True),
        ("192.168.0.1:7777", ("192.168.0.1", 7777), False),
        ("host:7777", ("host", 7777), False),
    ],
)
def test_addresses(listen: str, address: tuple[str, int], loopback: bool) -> None:
    settings = ListenConfig(listen=listen, insecure=True)
    assert (settings.address, settings.is_loopback, settings.url) == (address, loopback, f"ws://{listen}")
