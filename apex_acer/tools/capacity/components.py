"""Measures the components of a run on every core at once, or on a GPU, and computes the highest speed they allow.

A rate is in environment steps, or in samples (steps of a sequence), per second of one core: 1 / rate is the time that a step
takes. Sizes are in bytes. Run as a program with RUN DEVICE WAY SECONDS NAME…, this module is one measuring process: it
prints a line when it is ready, begins when it reads a line, and prints its rates as JSON.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
import torch

from apex_acer.actor.policy import Policy
from apex_acer.actor.rollout import Rollout
from apex_acer.algorithms.algorithm import LossOutput
from apex_acer.algorithms.samples import Samples
from apex_acer.config import RunConfig
from apex_acer.config.runfile import load_run
from apex_acer.environments.vector import make_environments
from apex_acer.learner.gradient import Gradient
from apex_acer.learner.parts import make_sampler, make_storage, unroll_layout
from apex_acer.learner.trainer import Trainer
from apex_acer.networks.device import CPU
from apex_acer.networks.frames import stack_planes
from apex_acer.protocol.specification import EnvironmentSpec
from apex_acer.protocol.unroll import Batch
from apex_acer.replay.storage import Storage
from apex_acer.system import look_here_last
from apex_acer.system.process import environment_variables
from apex_acer.tools.capacity.exchange import Exchange

SEQUENCES = 256  # in replay
DEADLINE_S = 180.0  # for all processes together, from their start


def measure(
    run: str,
    names: Sequence[str],
    *,
    seconds: float,
    device: str = "cpu",
    count: int = 1,
    way: str = "alone",
) -> dict[str, float]:
    """Rates and sizes of the components `names` of `run` (a preset or TOML file): means over `count` processes at once.

    `way`, one of `WAYS`, calls each component for `seconds`. Raises `RuntimeError` with the last line of a process that
    failed or did not end in time.
    """
    command = [sys.executable, "-P", "-m", __name__, run, device, way, str(seconds), *names]
    workers = [_start(command) for _ in range(count)]
    alarm = threading.Timer(DEADLINE_S, _kill, [workers])
    alarm.start()
    try:
        _let_all_begin(workers)
        rates = [_rates(worker) for worker in workers]
    finally:
        alarm.cancel()
        _kill(workers)
        _close(workers)
    return {name: sum(rate[name] for rate in rates) / count for name in names}


def ceiling(
    rates: Mapping[str, float], config: RunConfig, cores: int, learner_threads: int, *, gpu: bool = False
) -> float:
    """Environment steps per second if every core did nothing but acting and updates.

    At most what the learner can do on `learner_threads` of the cores or, with `gpu`, on the GPU, which does all updates.
    """
    update = samples_per_step(config, config.algorithm.replay_ratio) / rates["update"]
    return min(cores / (1 / rates["acting"] + (0 if gpu else update)), (1 if gpu else learner_threads) / update)


def samples_per_step(config: RunConfig, replay_ratio: float) -> float:
    """Samples trained on for each environment step."""
    return replay_ratio + config.algorithm.sampling.fresh


def replay_bytes_per_step(config: RunConfig, spec: EnvironmentSpec) -> float:
    """Bytes of replay memory for one environment step."""
    return _make_storage(config, spec, 1).num_bytes / config.algorithm.unroll_length


Works = Mapping[str, Callable[[], int]]
"""Functions to measure, by name; each returns the number of items that it processed."""


def alone(works: Works, seconds: float, clock: Callable[[], float] = time.perf_counter) -> dict[str, float]:
    """Items per second of each function, one after the other; the first call is not counted."""
    rates = {}
    for name, work in works.items():
        work()
        start, items = clock(), 0
        while clock() - start < seconds:
            items += work()
        rates[name] = items / (clock() - start)
    return rates


def in_turns(works: Works, seconds: float) -> dict[str, float]:
    """Items per second of processor time if the functions are called in turns, so that each finds the other's caches."""
    items, spent = dict.fromkeys(works, 0), dict.fromkeys(works, 0.0)
    for work in works.values():
        work()
    while sum(spent.values()) < seconds * len(works):
        for name, work in works.items():
            start = time.process_time()
            items[name] += work()
            spent[name] += time.process_time() - start
    return {name: items[name] / spent[name] for name in works}


WAYS: Mapping[str, Callable[[Works, float], dict[str, float]]] = {
    "alone": alone,
    "alone_by_processor": functools.partial(alone, clock=time.process_time),  # other programs hardly influence it
    "in_turns": in_turns,
}


class Components:
    """The components of a run of `config`, each a method that returns the steps or samples it processed."""

    def __init__(self, config: RunConfig, device: torch.device) -> None:
        k, num = config.algorithm.unroll_length, config.actors.environments
        self._config, self._environments = config, make_environments(config.environment, num, training=True)
        spec = self._environments.spec
        self._policy = Policy(config, spec)
        self._policy.compute_as_the_learner()
        self._rollout = Rollout(self._environments, self._policy, seed=0, actor=0)
        on_one_core = dataclasses.replace(config.learner, device=str(device), threads=1)
        self._trainer = Trainer(dataclasses.replace(config, learner=on_one_core), spec)
        self._gradient, self._recalled = self._trainer.gradient, _Recalled(self._trainer.gradient)
        self._storage = _make_storage(config, spec, SEQUENCES, device)
        self._sampler = make_sampler(config, self._storage)
        while len(self._storage) < SEQUENCES:
            unroll = self._rollout.unroll(k)
            self._sampler.insert(self._storage.insert(unroll, 0), unroll)
        ends = self._policy, self._trainer.algorithm, self._storage, self._sampler
        self._exchange = Exchange(config, spec, unroll_layout(config, spec), unroll, ends)
        _, batch = self._batch()
        self._obs = stack_planes(batch.obs, batch.episode_step, spec.stack).flatten(0, 1)
        self._action = np.zeros((num, *spec.actions.shape), spec.actions.dtype)
        self._updates = 0

    def measure(self, names: Sequence[str], seconds: float, way: str) -> dict[str, float]:
        """The rates and sizes in `names`."""
        sizes = {name: size for name, size in self._exchange.sizes.items() if name in names}
        return sizes | WAYS[way]({name: getattr(self, name) for name in names if name not in sizes}, seconds)

    def environment(self) -> int:
        """The environments alone, always with the same action."""
        self._environments.step(self._action)
        return len(self._action)

    def acting(self) -> int:
        """Collecting an unroll: environments, forward passes of the policy, cutting."""
        unroll = self._rollout.unroll(self._config.algorithm.unroll_length)
        return unroll.num_steps + self._rollout.unlearned_steps

    def sending(self) -> int:
        """The rest of an actor's work on an unroll: encoding it, and loading weights as often as it asks for them."""
        return self._exchange.send()

    def intake(self) -> int:
        """The learner's work on an unroll before any update: decoding, checking, storing, answering with weights."""
        return self._exchange.take()

    def replay(self) -> int:
        """Drawing and gathering a batch."""
        return self._num_samples(self._batch()[0])

    def update(self) -> int:
        """All that is learned from a batch: drawing it, losses, gradients, optimizer steps and what follows them."""
        return self._learn(self._gradient)

    def stepping(self) -> int:
        """The part of that which always runs on one core: all but the gradients."""
        return self._learn(self._recalled)

    def forward(self) -> int:
        """A forward pass of the network without gradients."""
        with torch.no_grad():
            self._trainer.algorithm.network(self._obs)
        return len(self._obs)

    def _learn(self, gradient: Gradient) -> int:
        samples, batch = self._batch()
        self._trainer.gradient = gradient
        update = self._trainer.update(batch, 0, self._updates)
        self._updates += len(update.metrics)
        if update.priorities is not None:
            self._sampler.set_priorities(samples, update.priorities, self._storage.num_inserted)
        return self._num_samples(samples)

    def _batch(self) -> tuple[torch.Tensor, Batch]:
        samples = self._sampler.draw(self._config.learner.batch_size)
        return samples, self._storage.gather(samples, importance=self._sampler.importance(samples, 0.0))

    def _num_samples(self, samples: torch.Tensor) -> int:
        return int(self._storage.count_steps(samples).sum())


class _Recalled(Gradient):
    """Returns again and again what it computed first."""

    def __init__(self, gradient: Gradient) -> None:
        self._gradient = gradient
        self._output: LossOutput | None = None

    def compute(self, samples: Samples, due: Collection[str]) -> LossOutput:
        """The output of the first call."""
        self._output = self._output or self._gradient.compute(samples, due)
        return self._output


def _make_storage(config: RunConfig, spec: EnvironmentSpec, sequences: int, device: torch.device = CPU) -> Storage:
    return make_storage(config, unroll_layout(config, spec), sequences * config.algorithm.unroll_length, device)


def _start(command: Sequence[str]) -> subprocess.Popen[str]:
    environment = {**os.environ, **environment_variables()}  # as in a run, so that freed memory is kept
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment)


def _let_all_begin(workers: Sequence[subprocess.Popen[str]]) -> None:
    for worker in workers:
        assert worker.stdout
        worker.stdout.readline()
    for worker in workers:
        assert worker.stdin
        with contextlib.suppress(BrokenPipeError):  # the process failed; `_rates` reports why
            worker.stdin.write("begin\n")
            worker.stdin.flush()


def _rates(worker: subprocess.Popen[str]) -> dict[str, float]:
    printed, errors = worker.communicate()
    if worker.returncode:
        raise RuntimeError((errors.strip() or f"killed after {DEADLINE_S:.0f} s").splitlines()[-1])
    rates: dict[str, float] = json.loads(printed.splitlines()[-1])
    return rates


def _kill(workers: Sequence[subprocess.Popen[str]]) -> None:
    for worker in workers:
        worker.kill()


def _close(workers: Sequence[subprocess.Popen[str]]) -> None:
    for worker in workers:
        with contextlib.suppress(BrokenPipeError), worker:  # the process may have ended before it read its input
            pass


def main(run: str, device: str, way: str, seconds: str, *names: str) -> None:
    """One measuring process."""
    look_here_last()
    torch.set_num_threads(1)
    components = Components(load_run(run), torch.device(device))
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(components.measure(names, float(seconds), way)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
