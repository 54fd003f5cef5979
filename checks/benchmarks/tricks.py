"""What each part of `networks/speed.py` is worth on this machine: `python -m checks.benchmarks.tricks [NAME…]`.

A whole update (drawing the batch, loss, gradient, optimizer's step) or an actor's unroll is computed with a trick and
without it, in turns and on one thread. Of each the smallest processor time counts, which other programs hardly influence.
A ratio of 1.1 says that it takes 10 % longer without.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from unittest.mock import patch

import torch
import tyro
from torch import Tensor, nn

from apex_acer.config.runfile import load_run
from apex_acer.learner import optimizer
from apex_acer.networks import frames, network
from apex_acer.networks.device import CPU
from apex_acer.networks.speed import Convolution, zero_where
from apex_acer.system.process import environment_variables
from apex_acer.tools.capacity import components

BATCH_SIZE = 4  # sequences of Pong's batch, so that there are many updates
SEGMENTS = 16  # in replay


def channels_first(planes: Tensor, episode_step: Tensor, stack: int) -> Tensor:
    """`stack_planes` with the channels of images where their shape has them."""
    if stack == 1:
        return planes
    channels, length = planes.shape[2], len(planes) - stack + 1
    stacked = torch.cat([planes[index : index + length] for index in range(stack)], 2)
    for index in range(stack - 1):
        before_episode = episode_step[stack - 1 :] < stack - 1 - index
        zero_where(stacked[:, :, index * channels : (index + 1) * channels], before_episode)
    return stacked


def by_mask(part: Tensor, mask: Tensor) -> None:
    part[mask] = 0


@contextlib.contextmanager
def without_innermost_channels() -> Iterator[None]:
    stack_planes = frames.stack_planes
    with contextlib.ExitStack() as patches:
        for name, module in list(sys.modules.items()):
            if name.startswith("apex_acer.") and getattr(module, "stack_planes", None) is stack_planes:
                patches.enter_context(patch.object(module, "stack_planes", channels_first))
        patches.enter_context(patch.object(network, "put_channels_innermost", lambda _: None))
        yield


WITHOUT: Mapping[str, Callable[[], AbstractContextManager[object]]] = {
    "innermost": without_innermost_channels,
    "zero_where": partial(patch.object, frames, "zero_where", by_mask),
    "blocks": partial(patch.object, Convolution, "forward", nn.Conv2d.forward),
    "without_compiler": partial(patch.object, optimizer, "without_compiler", lambda own: own.step),
}
MEASURED = {
    "innermost": [("pong", "update"), ("pong", "acting")],
    "zero_where": [("pong", "update"), ("pong", "acting")],
    "blocks": [("pong", "update")],
    "without_compiler": [("cartpole", "update")],
}


def ratio(preset: str, component: str, name: str, seconds: float) -> tuple[float, int]:
    """How much longer `component` of `preset` takes without the trick `name`, and of how many pairs that is the result."""
    config, without = load_run(preset), WITHOUT[name]
    if preset == "pong":
        config = dataclasses.replace(config, learner=dataclasses.replace(config.learner, batch_size=BATCH_SIZE))
    own = components.Components(config, CPU)
    with without():
        plain = components.Components(config, CPU)
    times: list[tuple[float, float]] = []
    end = time.monotonic() + seconds
    while len(times) < 3 or time.monotonic() < end:
        fast = spent(getattr(own, component))
        with without():
            times.append((fast, spent(getattr(plain, component))))
    fastest, slowest = (min(column) for column in zip(*times[1:], strict=True))
    return slowest / fastest, len(times)


def spent(work: Callable[[], object]) -> float:
    """Seconds of processor time that `work` takes."""
    start = time.process_time()
    work()
    return time.process_time() - start


def main(names: tyro.conf.Positional[tuple[str, ...]] = (), seconds: float = 30.0) -> int:
    """Prints the ratios.

    Args:
        names: of tricks; all by default.
        seconds: to measure each for.
    """
    torch.set_num_threads(1)
    if not names or "without_compiler" in names:
        print(f"import of the compiler: {spent(partial(importlib.import_module, 'torch._dynamo')):.2f} s")
    with patch.object(components, "SEQUENCES", SEGMENTS):
        for name in names or WITHOUT:
            for preset, component in MEASURED[name]:
                found, pairs = ratio(preset, component, name, seconds)
                print(f"{name:<18}{preset:<18}{component:<8}{found:6.3f}  ({pairs} pairs)", flush=True)
    return 0


if __name__ == "__main__":
    kept = environment_variables()  # as in a run: freed memory is kept, which the C library reads at the start
    if any(os.environ.get(name) != value for name, value in kept.items()):
        os.execve(sys.executable, [sys.executable, "-m", __spec__.name, *sys.argv[1:]], {**os.environ, **kept})
    sys.exit(tyro.cli(main))
