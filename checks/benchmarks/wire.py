"""What an environment step and the weights weigh on a network, and what LZ4 makes of the observations.

`python -m checks.benchmarks.wire --preset pong` prints JSON: bytes, megabytes of observations a second (one thread), and the
environment steps that networks carry. The unrolls are real, played by fresh weights.
"""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import lz4.frame
import numpy as np
import torch
import tyro

from apex_acer.actor.policy import Policy
from apex_acer.actor.rollout import Rollout
from apex_acer.algorithms import make_agent
from apex_acer.config import RunConfig
from apex_acer.config.runfile import load_run
from apex_acer.environments.vector import make_environments
from apex_acer.networks.weights import named_tensors, pack
from apex_acer.protocol.specification import Array, EnvironmentSpec
from apex_acer.tools.capacity.components import replay_bytes_per_step

GIGABITS = (1, 10, 25, 100)


def sizes(config: RunConfig, spec: EnvironmentSpec) -> dict[str, float]:
    """Bytes of an environment step, from the layout of its unroll and in replay, and of one version of the weights."""
    agent, k = make_agent(config, spec), config.algorithm.unroll_length
    column = agent.layout
    values = [getattr(column, field.name) for field in dataclasses.fields(column)]
    arrays = [*(v for v in values if isinstance(v, tuple)), *column.extras.values(), *column.state.values()]
    return {
        "step": sum(map(num_bytes, arrays)) / k,
        "its observations": num_bytes(column.obs) / k,
        "step in replay": replay_bytes_per_step(config, spec),
        "weights": len(pack(named_tensors(agent.network, "network"), {})),
    }


def num_bytes(array: tuple[tuple[int, ...], str]) -> int:
    shape, dtype = array
    return math.prod(shape) * np.dtype(dtype).itemsize


def play(config: RunConfig, unrolls: int) -> tuple[EnvironmentSpec, list[Array]]:
    """The observations of consecutive unrolls of one actor, `[T, N, …]`."""
    environments = make_environments(config.environment, config.actors.environments, training=True)
    rollout = Rollout(environments, Policy(config, environments.spec), seed=config.seed)
    played = [rollout.unroll(config.algorithm.unroll_length).obs for _ in range(unrolls)]
    environments.close()
    return environments.spec, played


def compress(arrays: list[Array]) -> dict[str, float]:
    """How many times smaller LZ4 makes the arrays, and megabytes of the original a second (medians of each)."""
    arrays = [np.ascontiguousarray(array) for array in arrays]
    packed = [lz4.frame.compress(array) for array in arrays]
    megabytes = arrays[0].nbytes / 1e6
    return {
        "times smaller": sum(array.nbytes for array in arrays) / sum(map(len, packed)),
        "compress MB/s": megabytes / statistics.median(seconds(lz4.frame.compress, array) for array in arrays),
        "decompress MB/s": megabytes / statistics.median(seconds(lz4.frame.decompress, data) for data in packed),
    }


def seconds(call: Callable[[Any], object], argument: Any) -> float:
    start = time.perf_counter()
    call(argument)
    return time.perf_counter() - start


def main(preset: str = "pong", unrolls: int = 30) -> int:
    """Prints the figures of a preset."""
    torch.set_num_threads(1)
    config = load_run(preset)
    spec, played = play(config, unrolls)
    size = sizes(config, spec)
    lz4s = {"as sent": compress(played), "environment by environment": compress([obs.swapaxes(0, 1) for obs in played])}
    packed = size["its observations"] / lz4s["as sent"]["times smaller"]
    steps = {"plain": size["step"], "LZ4": size["step"] - size["its observations"] + packed}
    carried = {
        name: {f"{gigabits} Gbit/s": gigabits * 1e9 / 8 / step for gigabits in GIGABITS} for name, step in steps.items()
    }
    print(json.dumps({"bytes": size, "LZ4": lz4s, "bytes of a step": steps, "steps a second": carried}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
