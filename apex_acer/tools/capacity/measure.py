"""Measures the components of a run on every core at once, or on a GPU: their cost, and the highest speed they allow.

A rate is in environment steps, or in samples (steps of a sequence), per second of one core: 1 / rate is the time of a step.
Sizes are in bytes. Run as a program with RUN DEVICE WAY SECONDS NAME…, this module is one measuring process: it prints a
line when it is ready, begins when it reads a line, and prints its rates as JSON.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence

import torch

from apex_acer.config import RunConfig
from apex_acer.config.runfile import dump_run, load_run
from apex_acer.protocol.specification import EnvironmentSpec
from apex_acer.system import look_here_last
from apex_acer.system.process import available_cores, environment_variables
from apex_acer.tools.capacity.components import Components, replay_bytes_per_step
from apex_acer.tools.capacity.plan import Machines, Work

DEADLINE_S = 180.0  # for all processes together, from their start
SECONDS = 1.0  # for each component


def measure(
    run: str, names: Sequence[str], *, seconds: float, device: str = "cpu", count: int = 1, way: str = "alone"
) -> dict[str, float]:
    """Rates and sizes of the components `names` of `run` (a preset or TOML file): means over `count` processes at once.

    Each component is called for `seconds` in the `way` of that name in `WAYS`. Raises `RuntimeError` with the last line of a
    process that failed or did not end in time.
    """
    command = [sys.executable, "-P", "-m", __name__, run, device, way, str(seconds), *names]
    environment = {**os.environ, **environment_variables()}  # as in a run, so that freed memory is kept
    pipe = subprocess.PIPE
    workers = [
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment)
        for _ in range(count)
    ]
    alarm = threading.Timer(DEADLINE_S, _kill, [workers])
    alarm.start()
    try:
        _let_all_begin(workers)
        rates = [_rates(worker) for worker in workers]
    finally:
        alarm.cancel()
        _kill(workers)
        for worker in workers:
            with contextlib.suppress(BrokenPipeError), worker:  # it may have ended before it read its input
                pass
    return {name: sum(rate[name] for rate in rates) / count for name in names}


def ceiling(
    rates: Mapping[str, float], config: RunConfig, cores: int, learner_threads: int, *, gpu: bool = False
) -> float:
    """Environment steps per second if every core did nothing but acting and updates.

    The learner uses at most `learner_threads` of the cores or, with `gpu`, the GPU, which does all updates.
    """
    update = samples_per_step(config, config.algorithm.replay_ratio) / rates["update"]
    return min(cores / (1 / rates["acting"] + (0 if gpu else update)), (1 if gpu else learner_threads) / update)


def samples_per_step(config: RunConfig, replay_ratio: float) -> float:
    """Samples trained on for each environment step."""
    return replay_ratio + config.algorithm.sampling.fresh


Functions = Mapping[str, Callable[[], int]]
"""Functions to measure, by name; each returns the number of steps or samples that it processed."""


def alone(functions: Functions, seconds: float, clock: Callable[[], float] = time.perf_counter) -> dict[str, float]:
    """Items per second of each function, one after the other; the first call is not counted."""
    rates = {}
    for name, function in functions.items():
        function()
        start, items = clock(), 0
        while clock() - start < seconds:
            items += function()
        rates[name] = items / (clock() - start)
    return rates


def in_turns(functions: Functions, seconds: float) -> dict[str, float]:
    """Items per second of processor time if the functions are called in turns, so that each finds the others' caches."""
    items, spent = dict.fromkeys(functions, 0), dict.fromkeys(functions, 0.0)
    for function in functions.values():
        function()
    while sum(spent.values()) < seconds * len(functions):
        for name, function in functions.items():
            start = time.process_time()
            items[name] += function()
            spent[name] += time.process_time() - start
    return {name: items[name] / spent[name] for name in functions}


WAYS: Mapping[str, Callable[[Functions, float], dict[str, float]]] = {
    "alone": alone,
    "alone_by_processor": functools.partial(alone, clock=time.process_time),  # other programs hardly influence it
    "in_turns": in_turns,
}


def _let_all_begin(workers: Sequence[subprocess.Popen[str]]) -> None:
    for worker in workers:
        assert worker.stdout
        worker.stdout.readline()
    for worker in workers:
        assert worker.stdin
        with contextlib.suppress(BrokenPipeError):  # the process failed; `_rates` reports why
            worker.stdin.write("begin\n")
            worker.stdin.flush()


def _kill(workers: Sequence[subprocess.Popen[str]]) -> None:
    for worker in workers:
        worker.kill()


def _rates(worker: subprocess.Popen[str]) -> dict[str, float]:
    printed, errors = worker.communicate()
    if worker.returncode:
        raise RuntimeError((errors.strip() or f"killed after {DEADLINE_S:.0f} s").splitlines()[-1])
    rates: dict[str, float] = json.loads(printed.splitlines()[-1])
    return rates


def measure_work(
    config: RunConfig, spec: EnvironmentSpec, machines: Machines, gpu: str, samples_per_s: float | None
) -> Work:
    """The work of `config`, in which each of `learner.count` learners computes its share of a batch.

    Without GPUs in `machines`, updates are measured on the cores here. With GPUs they are measured on the device `gpu`,
    unless it is empty or `samples_per_s` gives their rate. Raises `RuntimeError` if a component fails.
    """
    learner = config.learner
    share = dataclasses.replace(learner, count=1, batch_size=learner.batch_size // learner.count)
    masks = spec.masks_in_info or config.environment.action_masks  # a measuring process does not find out again
    environment = dataclasses.replace(config.environment, action_masks=masks)
    names = ["acting", "sending", "intake", "unroll_bytes", "weights_bytes"]
    names += [] if machines.gpus else ["update", "stepping"]
    measured = []
    with tempfile.NamedTemporaryFile("w", suffix=".toml", encoding="utf-8") as file:
        file.write(dump_run(dataclasses.replace(config, environment=environment, learner=share)))
        file.flush()
        for way in ("alone_by_processor", "in_turns")[: 2 if machines.nodes == 1 else 1]:
            rates = measure(file.name, names, seconds=SECONDS, count=available_cores(), way=way)
            if samples_per_s:
                rates["update"] = samples_per_s
            elif machines.gpus and gpu:
                rates |= measure(file.name, ("intake", "update"), seconds=SECONDS, device=gpu)
            measured.append(rates)
    size = replay_bytes_per_step(config, spec)
    work, *in_turns = (make_work(rates, config, size) for rates in measured)
    return dataclasses.replace(work, in_turns=in_turns[0]) if in_turns else work


def make_work(rates: Mapping[str, float], config: RunConfig, replay_bytes: float) -> Work:
    """The work if components have these `rates`, in which those of updates may be missing."""
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


def main(run: str, device: str, way: str, seconds: str, *names: str) -> None:
    """One measuring process."""
    look_here_last()
    torch.set_num_threads(1)
    components = Components(load_run(run), torch.device(device))
    print("ready", flush=True)
    sys.stdin.readline()
    sizes = {name: size for name, size in components.sizes.items() if name in names}
    functions = {name: getattr(components, name) for name in names if name not in sizes}
    print(json.dumps(sizes | WAYS[way](functions, float(seconds))), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
