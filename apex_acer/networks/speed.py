"""Code for speed alone, without which the same is computed, but for rounding.

Figures are of whole updates of Pong's ACER on one thread of a CPU with AVX512, in float32, unless said otherwise;
`python -m checks.benchmarks.tricks` measures them. docs/performance.md has bfloat16's.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

from apex_acer.config import require

WIDE = 256  # units of a fully connected layer from which bfloat16 gains more than the conversions take
TRIAL = 64  # observations; libraries compute small batches in other ways
TOLERANCE = 0.2  # of the norm; with Atari's networks rounding is below 0.01, and the fault above 0.5


def put_channels_innermost(network: nn.Module) -> None:
    """Has convolutions compute with channels innermost in memory, as in frame stacks.

    Without both an update takes a tenth to a third longer. The weights' order alone is worth 2 % at most, but checkpoints
    hold the optimizer's moments in it.
    """
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def zero_where(part: Tensor, mask: Tensor) -> None:
    """Sets rows of `part` `[L, N, ...]` to 0 where `mask` `[L, N]` is true.

    Of an update of 46 ms, frame stacks take 1.0 ms by index and 3.0 ms by mask.
    """
    # on a GPU a mask is faster, because indices would make the CPU wait for their number
    part[mask if part.is_cuda else mask.nonzero(as_tuple=True)] = 0


class Convolution(nn.Conv2d):
    """A convolution that, where gradients are needed, treats s pixels in a row as channels, s its stride.

    If s divides the kernel and the width, `[B, C, H, W]` with innermost channels is also `[B, s * C, H, W / s]`. Without it
    an update takes 1 % longer in float32; in bfloat16 with AMX the gradient of the first convolution takes 8.4 ms, not 3.0,
    of an update of 43.
    """

    def forward(self, inputs: Tensor) -> Tensor:
        """The output `[B, out, …]` for `inputs` `[B, C, H, W]`."""
        (down, across), kernel = self.stride, self.kernel_size[1]
        num, channels, height, width = inputs.shape
        if not torch.is_grad_enabled() or across == 1 or kernel % across or width % across:
            return super().forward(inputs)
        blocks = inputs.movedim(1, -1).reshape(num, height, width // across, across * channels).movedim(-1, 1)
        split = self.weight.view(*self.weight.shape[:-1], kernel // across, across)
        weight = split.movedim(-1, 1).flatten(1, 2)  # [out, s * C, kernel, kernel / s]
        return conv2d(blocks, weight, self.bias, (down, 1))


def choose_precision(
    name: str, device: torch.device, network: nn.Module, torso: nn.Module, input_shape: tuple[int, ...]
) -> torch.dtype | None:
    """The type of large layers of `network` for `learner.precision` = `name`; None: the parameters' type.

    `auto` is bfloat16 if the network has convolutions or wide layers, the device has instructions for it, and `torso`
    computes the same in it. Raises `ConfigError` if `name` is bfloat16 and `torso` does not.
    """
    if name == "float32" or (name == "auto" and not (_is_large(network) and multiplies_bfloat16(device))):
        return None
    is_right = computes_the_same(torso, input_shape, device)
    allowed = f"this {device.type} computes something else in it for observations of {list(input_shape)}; give float32"
    require(is_right or name == "auto", "learner.precision", name, allowed)
    return torch.bfloat16 if is_right else None


def computes_the_same(torso: nn.Module, input_shape: tuple[int, ...], device: torch.device) -> bool:
    """Whether features and gradients of `torso` in bfloat16 equal those in its parameters' type, but for rounding.

    Torch 2.13 on a CPU with AMX leaves much of a convolution's output unwritten if its stride is 2, its output is one pixel
    wide and several high, and the batch has 32 images or more.
    """
    inputs = torch.rand(TRIAL, *input_shape, generator=torch.Generator().manual_seed(0)).to(device)
    exact, rough = (_trial(torso, inputs, is_low=is_low) for is_low in (False, True))
    return all(bool((low - full).norm() <= TOLERANCE * full.norm()) for low, full in zip(rough, exact, strict=True))


def _trial(torso: nn.Module, inputs: Tensor, *, is_low: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Features computed without and with gradient, and the gradient of their mean square as one vector."""
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


# torch would import its compiler only to exempt this method from it
_add_param_group: Any = inspect.unwrap(torch.optim.Optimizer.add_param_group)
_add_param_group.__dynamo_disable = _add_param_group


def without_compiler(optimizer: torch.optim.Optimizer) -> Callable[[], Any]:
    """The step of a torch optimizer without its wrapper, which imports torch's compiler: 1.6 s of processor time."""
    step = functools.partial(inspect.unwrap(type(optimizer).step), optimizer)
    return torch.no_grad()(step)
