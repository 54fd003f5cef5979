from __future__ import annotations

import pytest
import torch
from torch import nn

from apex_acer.config import ConfigError, NetworkConfig
from apex_acer.networks.speed import Convolution, choose_precision
from apex_acer.networks.torsos import build_torso
from apex_acer.protocol.actions import Discrete
from apex_acer.protocol.specification import EnvironmentSpec

CPU = torch.device("cpu")
IMAGE = (1, 5, 5)
CONVOLUTIONS = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(18, 2))
LINEAR = nn.Sequential(nn.Flatten(), nn.Linear(25, 2))


class Halved(nn.Linear):
    """Gives half of its features in bfloat16."""

    def forward(self, inputs):
        return super().forward(inputs.flatten(1)) * (0.5 if torch.is_autocast_enabled("cpu") else 1)


class Flattened(nn.Linear):
    """Gives its features in bfloat16 too, but not their gradient."""

    def forward(self, inputs):
        features = super().forward(inputs.flatten(1))
        return features.detach() + 0 * features if torch.is_autocast_enabled("cpu") else features


class Acted(nn.Linear):
    """Gives half of its features in bfloat16 where there is no gradient."""

    def forward(self, inputs):
        is_half = torch.is_autocast_enabled("cpu") and not torch.is_grad_enabled()
        return super().forward(inputs.flatten(1)) * (0.5 if is_half else 1)


def choose(name, network):
    return choose_precision(name, CPU, network, network, IMAGE)


@pytest.mark.parametrize("name", ["avx512_bf16", "amx_bf16", ""])
def test_auto_is_bfloat16_for_convolutions_where_the_processor_has_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {name: True, "avx512_bf16 ": True})
    assert choose("auto", CONVOLUTIONS) == (torch.bfloat16 if name else None)
    assert choose("auto", LINEAR) is None


@pytest.mark.parametrize("network", [CONVOLUTIONS, LINEAR])
def test_a_precision_that_is_asked_for_is_given(network: nn.Module) -> None:
    assert choose("bfloat16", network) is torch.bfloat16
    assert choose("float32", network) is None


@pytest.mark.parametrize("kind", [Halved, Flattened, Acted])
def test_bfloat16_that_computes_something_else_is_not_chosen(
    kind: type[nn.Linear], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": True})
    network = nn.Sequential(nn.Conv2d(1, 2, 3), kind(18, 2))
    assert choose("auto", network) is None
    with pytest.raises(
        ConfigError, match=r"learner\.precision: 'bfloat16' is not allowed; .* of \[1, 5, 5\]; give float32"
    ):
        choose("bfloat16", network)


@pytest.mark.parametrize("plane", [(2, 10, 6), (1, 7, 5), (4, 10, 10), (4, 84, 84), (3, 36, 64)])
def test_auto_computes_nearly_the_same_as_float32_for_images_of_any_size(plane: tuple[int, ...]) -> None:
    spec = EnvironmentSpec(plane, "uint8", Discrete(3, 0), 1, False, 1, plane)
    torso, _ = build_torso(NetworkConfig(), spec, (8,))
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(64, *plane, generator=generator)
    dtype = choose_precision("auto", CPU, torso, torso, plane)
    with torch.no_grad():
        exact = torso(images)
        for _ in range(3):  # what is left unwritten differs
            with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
                assert (torso(images).float() - exact).norm() < 0.03 * exact.norm()


@pytest.mark.parametrize("format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    ("channels", "width", "kernel", "stride"),
    [(4, 84, 8, 4), (3, 20, 4, 2), (2, 21, 4, 2), (2, 10, 3, 2), (1, 7, 3, 1)],
)
def test_a_convolution_has_torch_s_sums_and_gradients(channels, width, kernel, stride, format):
    torch.manual_seed(0)
    own = Convolution(channels, 5, kernel, stride).double()
    inputs = torch.randn(6, channels, 20, width, dtype=torch.float64).to(memory_format=format).requires_grad_()
    given = inputs, own.weight, own.bias
    sums, expected = own(inputs), torch.nn.functional.conv2d(*given, stride)
    torch.testing.assert_close(sums, expected)
    away = torch.randn_like(sums)
    for found, wanted in zip(
        torch.autograd.grad(sums, given, away), torch.autograd.grad(expected, given, away), strict=True
    ):
        torch.testing.assert_close(found, wanted)
    with torch.no_grad():
        assert torch.equal(own(inputs), expected)
