from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from apex_acer.config import EnvironmentConfig
from apex_acer.environments.vector import make_environments, make_vector

mujoco = pytest.importorskip("mujoco")


def test_what_mujoco_warns_of_is_logged_and_leaves_no_file(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    config = EnvironmentConfig(id="HalfCheetah-v5")
    environments = make_environments(config, 1, training=True)
    assert environments.spec.actions.shape == (6,)
    environments.close()
    assert not caplog.records
    simulation = make_vector(config, 1).envs[0].unwrapped
    simulation.data.qpos[0] = np.nan
    with caplog.at_level(logging.WARNING):
        mujoco.mj_step(simulation.model, simulation.data)
    assert "The simulation is unstable" in caplog.text
    assert not capfd.readouterr().err
    assert not list(tmp_path.iterdir())
