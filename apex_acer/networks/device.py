"""Chooses a network's device and the precision of its torso."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from apex_acer.config import ConfigError, require

CPU = torch.device("cpu")
WIDE = 256  # units of a fully connected layer from which bfloat16 gains more than the conversions take
TRIAL = 64  # observations; libraries compute batches of a few in other ways
TOLERANCE = 0.2  # of the norm; rounding makes less than 0.01 of Atari's networks, and the fault 0.5 or more


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Has torch compute in one thread inside the context: a forked process has no others, and would wait for them."""
    num = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num)


@contextlib.contextmanager
def in_float32() -> Iterator[None]:
    """Inside, or in a function that it decorates, new tensors are float32, whatever default an environment has set."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def choose_device(name: str, key: str) -> torch.device:
    """The device that the value `name` of `key` means; raises `ConfigError` if this machine does not have it."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        there = torch.cuda.device_count()
        raise ConfigError(f"{key}: {name!r} is not there; this machine has {there} CUDA devices; give cpu or auto")
    return device


def choose_precision(
    name: str, device: torch.device, network: nn.Module, torso: nn.Module, input_shape: tuple[int, ...]
) -> torch.dtype | None:
    """The type that the large layers of `network` compute in for `learner.precision` = `name`; None: its parameters' type.

    `auto` is bfloat16 if the network has convolutions or wide layers, which gain from it, the device has instructions
    for it, and `torso` computes the same in it. Raises `ConfigError` if bfloat16 is asked for and it does not.
    """
    if name == "float32" or (name == "auto" and not (_is_large(network) and multiplies_bfloat16(device))):
        return None
    is_right = computes_the_same(torso, input_shape, device)
    allowed = f"this {device.type} computes something else in it for observations of {list(input_shape)}; give float32"
    require(is_right or name == "auto", "learner.precision", name, allowed)
    return torch.bfloat16 if is_right else None


def computes_the_same(torso: nn.Module, input_shape: tuple[int, ...], device: torch.device) -> bool:
    """Whether features and gradients of `torso` in bfloat16 are, but for rounding, those in its parameters' type.

    It is tried, not taken for granted: torch 2.13 on a CPU with AMX leaves much of a convolution's output unwritten if its
    stride is 2, its output is one pixel wide and several high, and the batch has 32 images or more.
    """
    inputs = torch.rand(TRIAL, *input_shape, generator=torch.Generator().manual_seed(0)).to(device)
    exact, rough = (_trial(torso, inputs, is_low=is_low) for is_low in (False, True))
    return all(bool((low - full).norm() <= TOLERANCE * full.norm()) for low, full in zip(rough, exact, strict=True))


def _trial(torso: nn.Module, inputs: Tensor, *, is_low: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The features as actors compute them, the features to learn from, and the gradient of their mean square.

    The gradient is one vector, zero if nothing is trained.
    """
    parameters = [parameter for parameter in torso.parameters() if parameter.requires_grad]
    with torch.autocast(inputs.device.type, torch.bfloat16, enabled=is_low):
        with torch.no_grad():
            acted: Tensor = torso(inputs).float()
        with torch.enable_grad():
            features: Tensor = torso(inputs).float()
    loss, none = features.square().mean(), (inputs.new_zeros(1),)
    gradients = torch.autograd.grad(loss, parameters, materialize_grads=True) if parameters else none
    return acted, features.detach(), torch.cat([gradient.flatten() for gradient in gradients])


def _is_large(network: nn.Module) -> bool:
    if any(isinstance(module, nn.Conv2d) for module in network.modules()):
        return True
    return any(parameter.ndim > 1 and min(parameter.shape[-2:]) >= WIDE for parameter in network.parameters())


def multiplies_bfloat16(device: torch.device) -> bool:
    """Whether the device has instructions for bfloat16; without them it is slower than float32."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("amx_bf16") or capabilities.get("avx512_bf16"))
