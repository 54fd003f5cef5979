"""What several test modules share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from apex_acer.config import ConfigError, EnvironmentConfig, RunConfig
from apex_acer.environments import Environments, make_environments
from apex_acer.policy import Policy
from apex_acer.trajectory import ARRAY_FIELDS, Unroll

COUNTDOWN = "tests.environments_for_tests:Countdown-v0"


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


def config_error(call: Callable[[], Any]) -> str:
    """The message of the `ConfigError` that `call` raises, checked to be one line."""
    with pytest.raises(ConfigError) as caught:
        call()
    message = str(caught.value)
    assert message
    assert "\n" not in message
    return message


def play(
    config: RunConfig, count: int, *, training: bool = True, sharpness: float = 1.0
) -> tuple[Environments, Policy]:
    """Environments and a fresh policy for them, its logits scaled by `sharpness`; seeded."""
    environments = make_environments(config.environment, count, training=training)
    torch.manual_seed(config.seed)
    policy = Policy(config, environments.spec)
    with torch.no_grad():
        policy.network.pi_logits.weight.mul_(sharpness)
    return environments, policy


def run_config(**environment: Any) -> RunConfig:
    """The defaults, in this environment."""
    return RunConfig(environment=EnvironmentConfig(**environment))


def joined(unrolls: list[Unroll], name: str) -> np.ndarray:
    """One field of consecutive unrolls over their whole time; of planes, the lead-in only once."""
    parts = [getattr(unroll, name) for unroll in unrolls]
    if name not in ("obs", "episode_step"):
        return np.concatenate(parts)
    length = len(unrolls[0].action)
    return np.concatenate([parts[0], *(part[-length:] for part in parts[1:])])


def assert_equal_unrolls(one: Unroll, other: Unroll) -> None:
    for name in ARRAY_FIELDS:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    assert one.behaviour.keys() == other.behaviour.keys()
    for name, array in one.behaviour.items():
        np.testing.assert_array_equal(array, other.behaviour[name], err_msg=name)
