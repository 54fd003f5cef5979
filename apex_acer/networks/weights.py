"""Weights as safetensors bytes, in files and in messages.

The metadata is one JSON text, because safetensors does not keep the order of several keys.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from apex_acer.config import ConfigError
from apex_acer.networks.metadata import METADATA as METADATA
from apex_acer.networks.metadata import unpack_metadata as unpack_metadata
from apex_acer.networks.metadata import weights_hint
from apex_acer.system.files import read as read_file
from apex_acer.system.files import write as write

MAX_BYTES = 1 << 32  # of a file


def named_tensors(module: nn.Module, prefix: str) -> dict[str, Tensor]:
    """Parameters and buffers of `module` by `prefix.name`."""
    return {f"{prefix}.{name}": tensor for name, tensor in module.state_dict().items()}


def load_tensors(module: nn.Module, prefix: str, tensors: Mapping[str, Tensor]) -> None:
    """Copies the tensors under `prefix.` into `module`; raises `ConfigError` naming the first that does not fit."""
    module.load_state_dict(check_tensors(module, prefix, tensors))


def check_tensors(module: nn.Module, prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under `prefix.` by their names in `module`; raises `ConfigError` naming the first that does not fit."""
    saved = {name.removeprefix(f"{prefix}."): t for name, t in tensors.items() if name.startswith(f"{prefix}.")}
    expected = module.state_dict()
    for name in sorted(expected.keys() | saved.keys()):
        where = f"weights: tensor {prefix}.{name}"
        if name not in saved:
            raise ConfigError(f"{where} is missing; expected {list(expected[name].shape)}")
        if name not in expected:
            raise ConfigError(f"{where} {list(saved[name].shape)} has no place in this network")
        tensor, wanted = saved[name], expected[name]
        if tensor.shape != wanted.shape:
            raise ConfigError(f"{where} is {list(tensor.shape)}, this network has {list(wanted.shape)}")
        is_wider = tensor.is_floating_point() and torch.promote_types(tensor.dtype, wanted.dtype) == wanted.dtype
        if not is_wider and tensor.dtype != wanted.dtype:
            raise ConfigError(f"{where} is {tensor.dtype}, this network has {wanted.dtype}")
        if not tensor.isfinite().all():
            raise ConfigError(f"{where} is not finite")
    return saved


def require_finite(tensors: Mapping[str, Tensor]) -> None:
    """Raises FloatingPointError naming the first tensor that is not finite."""
    if name := next((name for name, tensor in tensors.items() if not tensor.isfinite().all()), ""):
        raise FloatingPointError(f"{name} is not finite; what was saved before is kept")


def pack(tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> bytes:
    """The bytes of a safetensors file; `metadata` must be plain JSON values."""
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    return safetensors.torch.save(contiguous, {METADATA: json.dumps(metadata, sort_keys=True)})


def pack_policy(tensors: Mapping[str, Tensor], version: int) -> bytes:
    """The bytes that are sent to actors: the policy's part of an algorithm's `tensors`, and the version."""
    policy = {name: tensor for name, tensor in tensors.items() if name.startswith("network.")}
    return pack(policy, {"weights_version": version})


def unpack(data: bytes) -> dict[str, Tensor]:
    """The tensors in the bytes of a safetensors file; raises `ConfigError` if it is damaged."""
    try:
        return safetensors.torch.load(data)
    except (SafetensorError, KeyError, ValueError) as error:  # KeyError: types that torch has no name for
        raise ConfigError(f"weights: not a whole safetensors file ({str(error)[:200]!r})") from None


def read(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and metadata of a weights file; raises `ConfigError` naming `path`."""
    try:
        data = read_file(Path(path), MAX_BYTES)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; {weights_hint(Path(path))}") from None
    try:
        return unpack(data), unpack_metadata(data)
    except ConfigError as error:
        raise ConfigError(f"{path}: {str(error).removeprefix('weights: ')}; give a file this program wrote") from None


def add_metadata(data: bytes, **facts: Any) -> bytes:
    """The bytes of a weights file with `facts` added to its metadata."""
    return pack(unpack(data), unpack_metadata(data) | facts)
