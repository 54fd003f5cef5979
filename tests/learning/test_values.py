"""What is learned of the future: a time limit is not an end, a death is."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from apex_acer import load_policy, train
from tests.environments_for_tests import clock_observations
from tests.runs import tiny_run

GAMMA, LENGTH = 0.9, 20


@pytest.mark.slow
@pytest.mark.parametrize("truncate", [False, True])
def test_the_value_goes_on_beyond_a_time_limit_and_ends_with_a_death(tmp_path: Path, truncate: bool) -> None:
    config = tiny_run(
        tmp_path,
        environment__id="tests.environments_for_tests:Clock-v0",
        environment__kwargs=json.dumps({"length": LENGTH, "truncate": truncate}),
        actors__count=1,
        actors__environments=8,
        learner__batch_size=16,
        optimizer__name="adam",
        optimizer__learning_rate=1e-2,
        optimizer__schedule="linear",
        network__hidden_sizes=(32, 32),
        network__activation="tanh",
        replay__capacity=10_000,
        algorithm__gamma=GAMMA,
        algorithm__unroll_length=10,
        algorithm__replay_ratio=12.0,
        stop__env_steps=8000,
    )
    network = load_policy(train(config).weights).network
    with torch.no_grad():
        output = network(torch.from_numpy(clock_observations(LENGTH)))
    values = (output.pi_logits.softmax(-1) * output.q_values).sum(-1).numpy()  # V at every step, `[LENGTH]`
    left = np.inf if truncate else np.arange(LENGTH, 0, -1)
    np.testing.assert_allclose(values, np.broadcast_to((1 - GAMMA**left) / (1 - GAMMA), LENGTH), atol=0.5)
    if not truncate:
        assert values[-1] == pytest.approx(1, abs=0.2)
