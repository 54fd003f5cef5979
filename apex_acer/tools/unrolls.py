"""Writes unrolls from elsewhere, such as recorded games, as a replay memory from which runs may start."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path

from apex_acer.config import ConfigError, RunConfig
from apex_acer.config.runfile import load_run
from apex_acer.environments.check import check_environment
from apex_acer.learner.stored_replay import store_unrolls
from apex_acer.protocol.unroll import Unroll


def write_unrolls(folder: str | Path, run: str | Path | RunConfig, unrolls: Iterable[Unroll]) -> None:
    """Writes `unrolls` to a new `folder`, from which `run` may start: `train(run, replay={"load": folder})`.

    Args:
        folder: a new folder.
        run: a preset, run file or configuration, whose environment and algorithm say what an unroll must hold.
        unrolls: of `algorithm.unroll_length` steps and one environment or more. The observation after a step is of the same
            episode (`episode_step` one more) unless the step is terminated or masked; so the autoreset step, after a
            truncated step, is masked.

    Raises `ConfigError` that names the first unroll and array that does not fit; nothing is written then.
    """
    config = load_run(run)
    if not isinstance(unrolls, Iterable):
        raise ConfigError(f"unrolls: {type(unrolls).__name__}, allowed is an iterable of Unroll")
    here = dataclasses.replace(config, engine="serial")  # no other process needs to know the environment
    store_unrolls(Path(folder), config, check_environment(here).spec, list(unrolls))
