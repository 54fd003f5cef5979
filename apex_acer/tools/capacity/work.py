"""Measures on this machine what one environment step of a run takes."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Mapping

from apex_acer.config import RunConfig
from apex_acer.config.runfile import dump_run
from apex_acer.engines.machine import available_cores
from apex_acer.protocol.specification import EnvironmentSpec
from apex_acer.tools.capacity.components import measure, replay_bytes_per_step, samples_per_step
from apex_acer.tools.capacity.plan import Machines, Work

ACTOR, SIZES = ("acting", "sending"), ("unroll_bytes", "weights_bytes")
LEARNER, UPDATES = ("intake", *SIZES), ("update", "stepping")
SECONDS = 1.0  # for each component


def measure_work(
    config: RunConfig, spec: EnvironmentSpec, machines: Machines, gpu: str, samples_per_s: float | None
) -> Work:
    """The work of `config`, in which each of `learner.count` learners computes its share of a batch.

    Updates are measured on the cores here. If `machines` have GPUs, they are measured on the device `gpu`, unless that is
    empty or their rate is given as `samples_per_s`. Raises `RuntimeError` if a component fails.
    """
    learner = config.learner
    share = dataclasses.replace(learner, count=1, batch_size=learner.batch_size // learner.count)
    with tempfile.NamedTemporaryFile("w", suffix=".toml", encoding="utf-8") as file:
        masks = spec.masks_in_info or config.environment.action_masks  # which is not found out again
        environment = dataclasses.replace(config.environment, action_masks=masks)
        file.write(dump_run(dataclasses.replace(config, environment=environment, learner=share)))
        file.flush()
        ways = ["alone_by_processor", *(["in_turns"] if machines.nodes == 1 else [])]
        found = [_measure(file.name, way, machines.gpus, "" if samples_per_s else gpu) for way in ways]
    given = {"update": samples_per_s} if samples_per_s else {}
    size = replay_bytes_per_step(config, spec)
    work, *in_turns = (make_work(rates | given, config, size) for rates in found)
    return dataclasses.replace(work, in_turns=in_turns[0]) if in_turns else work


def make_work(rates: Mapping[str, float], config: RunConfig, replay_bytes: float) -> Work:
    """The work of components with these `rates`; the rates of updates may be missing."""
    samples = samples_per_step(config, config.algorithm.replay_ratio)
    settings = config.algorithm
    steps_per_batch = config.learner.batch_size * (1 if settings.sampling.n_steps else settings.unroll_length)
    stepping_s = samples / rates["stepping"] if "stepping" in rates else 0.0
    return Work(
        acting_s=1 / rates["acting"] + 1 / rates["sending"],
        intake_s=1 / rates["intake"],
        stepping_s=stepping_s,
        gradient_s=max(0.0, samples / rates["update"] - stepping_s) if "update" in rates else None,
        samples=samples,
        updates=samples / steps_per_batch,
        requests=1 / (config.actors.weights_every * config.actors.environments),
        unroll_bytes=rates["unroll_bytes"],
        weights_bytes=rates["weights_bytes"],
        replay_bytes=replay_bytes,
    )


def _measure(run: str, way: str, gpus: int, gpu: str) -> dict[str, float]:
    """Rates of the components of `run` on all cores at once; those of the learner on `gpu`, if that is given."""
    names = (*ACTOR, *LEARNER) if gpus else (*ACTOR, *LEARNER, *UPDATES)
    rates = measure(run, names, seconds=SECONDS, count=available_cores(), way=way)
    return rates | (measure(run, ("intake", "update"), seconds=SECONDS, device=gpu) if gpu else {})
