from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from apex_acer.config import ConfigError, NetworkConfig
from apex_acer.networks.speed import Convolution, choose_precision
from apex_acer.networks.torsos import build_torso
from apex_acer.protocol.actions import Discrete
from apex_acer.protocol.specification import EnvironmentSpec

CPU = torch.device("cpu")
CONVOLUTIONS = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(18, 2))
LINEAR = nn.Sequential(nn.Flatten(), nn.Linear(25, 2))


class Wrong(nn.Linear):
    """Computes something else in bfloat16: `features`, or only their `gradient`, or only where there is `no gradient`."""

    def __init__(self, what: str) -> None:
        super().__init__(18, 2)
        self.what = what

    def forward(self, inputs: Tensor) -> Tensor:
        features = super().forward(inputs.flatten(1))
        if not torch.is_autocast_enabled("cpu"):
            return features
        if self.what == "gradient":
            return features.detach() + 0 * features
        return features if self.what == "no gradient" and torch.is_grad_enabled() else 0.5 * features


def choose(name: str, network: nn.Module) -> torch.dtype | None:
    return choose_precision(name, CPU, network, network, (1, 5, 5))


@pytest.mark.parametrize("name", ["avx512_bf16", "amx_bf16", ""])
def test_auto_is_bfloat16_for_convolutions_where_the_processor_has_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {name: True, "avx512_bf16 ": True})
    assert choose("auto", CONVOLUTIONS) == (torch.bfloat16 if name else None)
    assert choose("auto", LINEAR) is None
    assert choose("bfloat16", LINEAR) is torch.bfloat16
    assert choose("float32", CONVOLUTIONS) is None


@pytest.mark.parametrize("what", ["features", "gradient", "no gradient"])
def test_bfloat16_that_computes_something_else_is_not_chosen(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": True})
    network = nn.Sequential(nn.Conv2d(1, 2, 3), Wrong(what))
    assert choose("auto", network) is None
    with pytest.raises(ConfigError, match=r"learner\.precision: 'bfloat16' is not allowed; .*; give float32"):
        choose("bfloat16", network)


@pytest.mark.parametrize("plane", [(2, 10, 6), (1, 7, 5), (4, 84, 84)])
def test_auto_computes_nearly_the_same_as_float32_for_images_of_any_size(plane: tuple[int, ...]) -> None:
    spec = EnvironmentSpec(plane, "uint8", Discrete(3, 0), 1, False, 1, plane)
    torso, _ = build_torso(NetworkConfig(), spec, (8,))
    images = torch.rand(64, *plane, generator=torch.Generator().manual_seed(1))
    dtype = choose_precision("auto", CPU, torso, torso, plane)
    with torch.no_grad():
        exact = torso(images)
        for _ in range(3):  # what is left unwritten differs
            with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
                assert (torso(images).float() - exact).norm() < 0.03 * exact.norm()


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    ("channels", "width", "kernel", "stride"),
    [(4, 84, 8, 4), (2, 21, 4, 2), (2, 10, 3, 2), (1, 7, 3, 1)],  # blocks; an uneven width, an uneven kernel; no stride
)
def test_a_convolution_has_torch_s_sums_and_gradients(
    channels: int, width: int, kernel: int, stride: int, memory: Any
) -> None:
    torch.manual_seed(0)
    own = Convolution(channels, 5, kernel, stride).double()
    inputs = torch.randn(6, channels, 20, width, dtype=torch.float64).to(memory_format=memory).requires_grad_()
    given: Any = inputs, own.weight, own.bias
    sums, expected = own(inputs), torch.nn.functional.conv2d(inputs, own.weight, own.bias, stride)
    torch.testing.assert_close(sums, expected)
    away = torch.randn_like(sums)
    gradients = [torch.autograd.grad(each, given, away) for each in (sums, expected)]
    for found, wanted in zip(*gradients, strict=True):
        torch.testing.assert_close(found, wanted)
    with torch.no_grad():
        assert torch.equal(own(inputs), expected)
