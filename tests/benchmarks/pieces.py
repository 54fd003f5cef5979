"""Measures the pieces of a run on one core, or a GPU beside it, and prints their rates as JSON: a process of `make bench`.

All rates are per second of one core, in environment steps (or samples: one step of a segment), so that
1 / rate is the time one step costs.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from apex_acer.algorithms.acer import Acer
from apex_acer.config import RunConfig
from apex_acer.environments import make_environments
from apex_acer.frames import stack_planes
from apex_acer.gradient import Gradient
from apex_acer.optimizer import Optimizer
from apex_acer.policy import Policy
from apex_acer.replay import UniformReplay
from apex_acer.rollout import Rollout
from apex_acer.runfile import load_run
from apex_acer.trajectory import Batch, layout

SECONDS = 4.0
SEGMENTS = 256  # in replay


def per_second(work: Callable[[], int]) -> float:
    """Items per second of `work`, which returns how many it did; the first call is not counted."""
    work()
    start, items = time.perf_counter(), 0
    while time.perf_counter() - start < SECONDS:
        items += work()
    return items / (time.perf_counter() - start)


class Pieces:
    """What a run of `config` does, one thing at a time."""

    def __init__(self, config: RunConfig, device: torch.device) -> None:
        k, num = config.algorithm.unroll_length, config.actors.environments
        self._config, self._environments = config, make_environments(config.environment, num, training=True)
        spec = self._environments.spec
        self._policy = Policy(config, spec)
        self._policy.compute_as_the_learner()
        self._rollout = Rollout(self._environments, self._policy, seed=0)
        self._algorithm = Acer(config, spec, device)
        self._optimizer = Optimizer(config, self._algorithm.network)
        self._gradient = Gradient(self._algorithm, self._optimizer, 1)
        shapes = layout(spec, k, Acer.behaviour_shapes(spec), Acer.state_shapes(config))
        self._replay = UniformReplay(shapes, SEGMENTS, 0, device)
        self._unroll = self._rollout.unroll(k)
        while len(self._replay) < SEGMENTS:
            self._replay.insert(self._unroll, 0)
        self._batch = self._draw()
        self._action = np.zeros(num, np.int64)

    def environment(self) -> int:
        """Environments alone, always the same action."""
        self._environments.step(self._action)
        return len(self._action)

    def acting(self) -> int:
        """An unroll: environments, the policy's forward pass and cutting."""
        return self._rollout.unroll(self._config.algorithm.unroll_length).num_steps

    def replay(self) -> int:
        """Drawing and gathering a batch."""
        return self._steps(self._draw())

    def update(self) -> int:
        """A whole update: drawing, both networks, the loss, its gradient, the step and the average."""
        batch = self._draw()
        output = self._gradient.compute(batch)
        self._optimizer.step(output.loss, 0)
        self._algorithm.after_step(output.metrics)
        return self._steps(batch)

    def average_pass(self) -> int:
        """The average network's forward pass, inputs prepared."""
        with torch.no_grad():
            self._algorithm.average_network.unroll(*self._inputs())
        return self._steps(self._batch)

    def _inputs(self) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
        stack, batch = self._config.environment.stack, self._batch
        obs = stack_planes(batch.obs, batch.episode_step, stack)
        reset = batch.episode_step[stack - 1 :] == 0
        return self._algorithm.network.prepare(obs.flatten(0, 1)), reset, batch.state

    def _draw(self) -> Batch:
        return self._replay.gather(self._replay.draw(self._config.learner.batch_size))

    @staticmethod
    def _steps(batch: Batch) -> int:
        return batch.mask.numel()


def main(preset: str, gate: str, device: str, *names: str) -> None:
    """Measures when the file `gate` is there, so that every core's process begins at once."""
    torch.set_num_threads(1)
    pieces = Pieces(load_run(preset), torch.device(device))
    print("ready", flush=True)
    while not Path(gate).exists():
        time.sleep(0.01)
    print(json.dumps({name: per_second(getattr(pieces, name)) for name in names}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
