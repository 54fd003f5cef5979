"""Chooses a network's device and the precision of its torso."""

from __future__ import annotations

import torch
from torch import nn

from apex_acer.config import ConfigError

CPU = torch.device("cpu")
WIDE = 256  # units of a fully connected layer from which bfloat16 gains more than the conversions take


def choose_device(name: str, key: str) -> torch.device:
    """The device that the value `name` of `key` means; raises `ConfigError` if this machine does not have it."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        there = torch.cuda.device_count()
        raise ConfigError(f"{key}: {name!r} is not there; this machine has {there} CUDA devices; give cpu or auto")
    return device


def choose_precision(name: str, device: torch.device, network: nn.Module) -> torch.dtype | None:
    """The type that the torso of `network` computes in for `learner.precision` = `name`; None: its parameters' type.

    `auto` is bfloat16 if the network has convolutions or wide layers, which gain from it, and the device has instructions
    for it.
    """
    if name == "auto":
        name = "bfloat16" if _is_large(network) and multiplies_bfloat16(device) else "float32"
    return torch.bfloat16 if name == "bfloat16" else None


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
