"""The device of a network, and torch's settings of a process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from apex_acer.config import ConfigError

CPU = torch.device("cpu")


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """A context, or decorator, in which torch computes in one thread: in a fork others would be waited for in vain."""
    num = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num)


@contextlib.contextmanager
def in_float32() -> Iterator[None]:
    """A context, or decorator, in which new tensors are float32, whatever default an environment has set."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def choose_device(name: str, key: str) -> torch.device:
    """The device for the value `name` of a config `key`; raises `ConfigError` if this machine does not have it."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        there = torch.cuda.device_count()
        raise ConfigError(f"{key}: {name!r} is not there; this machine has {there} CUDA devices; give cpu or auto")
    return device
