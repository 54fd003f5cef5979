"""Updates per second of a learner for continuous actions, from a real feed: `python -m checks.benchmarks.updates sac`.

The algorithm's settings are its preset's for Pendulum; networks, batch and replay have sizes that other trainers have, too.
An update is what the learner's is: choosing and gathering the batch, the step, and the priorities back to replay.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Iterator
from typing import Literal

import numpy as np
import torch
import tyro

from apex_acer.algorithms import make_agent
from apex_acer.config import RunConfig
from apex_acer.config.runfile import load_run
from apex_acer.engines.machine import place
from apex_acer.learner.parts import make_batch_queue
from apex_acer.learner.trainer import Trainer
from apex_acer.protocol.actions import Box
from apex_acer.protocol.specification import EnvironmentSpec
from apex_acer.protocol.unroll import Unroll

ENVIRONMENTS, CHUNK, WARM_UP = 8, 10, 50


def sized(config: RunConfig, hidden: tuple[int, ...], batch_size: int, env_steps: int, threads: int) -> RunConfig:
    """`config` with such networks, batches, threads and replay, from which single steps are drawn, from the first one on."""
    return dataclasses.replace(
        config,
        network=dataclasses.replace(config.network, hidden_sizes=hidden, normalise=False),
        learner=dataclasses.replace(config.learner, batch_size=batch_size, threads=threads),
        replay=dataclasses.replace(config.replay, capacity=env_steps, start=1, sampling="uniform"),
        algorithm=dataclasses.replace(config.algorithm, replay_ratio=float(batch_size), n_steps=1),  # type: ignore[call-arg]
    )


def box_spec(obs: int, actions: int) -> EnvironmentSpec:
    """Vectors of `obs` numbers, and `actions` numbers in [-1, 1]."""
    bounds = Box((-1.0,) * actions, (1.0,) * actions, (actions,), "float32")
    return EnvironmentSpec((obs,), "float32", bounds, 1, False, 1, (obs,))


def random_unrolls(config: RunConfig, spec: EnvironmentSpec) -> Iterator[Unroll]:
    """Unrolls of noise, without end."""
    k, num, rng = config.algorithm.unroll_length, ENVIRONMENTS, np.random.default_rng(0)
    shapes = make_agent(config, spec).layout
    while True:
        yield Unroll(
            obs=rng.normal(size=(k + 1, num, *spec.plane_shape)).astype(spec.dtype),
            episode_step=np.tile(np.arange(k + 1, dtype=np.int32)[:, None], (1, num)),
            action=spec.actions.sample(rng, k, num),
            reward=rng.normal(size=(k, num)).astype(np.float32),
            terminated=np.zeros((k, num), bool),
            truncated=np.zeros((k, num), bool),
            mask=np.ones((k, num), bool),
            extras={name: np.zeros((k, num, *shape[1:]), kind) for name, (shape, kind) in shapes.extras.items()},
            state={name: np.zeros((num, *shape), kind) for name, (shape, kind) in shapes.state.items()},
        )


class Updates:
    """A learner's trainer and its batch queue, whose replay is full."""

    def __init__(self, config: RunConfig, spec: EnvironmentSpec) -> None:
        self._trainer = Trainer(config, spec)
        shapes = make_agent(config, spec).layout
        self._queue = make_batch_queue(config, shapes, self._trainer.device)
        self._unrolls = random_unrolls(config, spec)
        self.computes = self._trainer.computes
        self.count = 0
        while not self._queue.storage.is_full:
            self._take()

    def _take(self) -> None:
        unroll = next(self._unrolls)
        self._queue.insert(unroll, 0)
        self._trainer.algorithm.observe(unroll, "actor")
        self._queue.agree(unroll.num_steps, False, False)

    def make(self, num: int) -> float:
        """The seconds that `num` updates take, unrolls for more replay not counted."""
        seconds = 0.0
        for _ in range(num):
            while not self._queue.ready:
                self._take()
            start = time.perf_counter()
            batch = self._queue.next_batch()
            update = self._trainer.update(batch, self.count, self.count)
            if update.priorities is None:
                raise FloatingPointError(f"update {self.count} was not taken")
            self._queue.set_priorities(update.priorities)
            seconds += time.perf_counter() - start
            self.count += 1
        return seconds


def main(
    algorithm: tyro.conf.Positional[str],
    obs: int = 17,
    actions: int = 6,
    hidden: tuple[int, ...] = (256, 256),
    batch_size: int = 256,
    env_steps: int = 100_000,
    threads: int = 0,
    precision: Literal["auto", "float32"] = "auto",
    seconds: float = 10.0,
) -> int:
    """Prints the rate, and the device and precision of the arithmetic, as JSON.

    Args:
        algorithm: the preset is `pendulum-` and this.
        obs: numbers of an observation.
        actions: numbers of an action.
        hidden: widths of the hidden layers of each network.
        batch_size: steps of a batch.
        env_steps: steps in replay.
        threads: of the learner; 0: as many as a run has.
        precision: of the learner's arithmetic.
        seconds: to measure for.
    """
    spec = box_spec(obs, actions)
    run = load_run(f"pendulum-{algorithm}", learner={"precision": precision})
    config = place(sized(run, hidden, batch_size, env_steps, threads), spec)
    torch.set_num_threads(config.learner.threads)  # as a learner's process does
    updates = Updates(config, spec)
    updates.make(WARM_UP)
    spent, made = 0.0, 0
    while spent < seconds:
        spent, made = spent + updates.make(CHUNK), made + CHUNK
    print(json.dumps({"updates_per_s": round(made / spent, 1), "computes": updates.computes}))
    return 0


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
