from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from apex_acer.networks.weights import (
    load_tensors,
    named_tensors,
    pack,
    pack_policy,
    read,
    unpack,
    unpack_metadata,
    write,
)
from tests.conftest import config_error

METADATA = {"format": 1, "config": {"b": [1, 2.5, None], "a": "ü\n"}, "spec": {}}


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Conv2d(2, 3, 2))


def assert_equal_tensors(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert tensor.dtype == other[name].dtype, name
        assert torch.equal(tensor, other[name]), name


def test_packing_and_unpacking_changes_nothing_and_depends_on_the_content_only(tmp_path: Path) -> None:
    tensors = named_tensors(network(), "network") | {
        "bf16": torch.randn(3).bfloat16(),
        "transposed": torch.arange(6).view(2, 3).t(),
        "scalar": torch.tensor(3.0, dtype=torch.float64),
        "last": torch.randn(1, 2, 3, 4).contiguous(memory_format=torch.channels_last),
        "gradient": torch.ones(2, requires_grad=True),
    }
    data = pack(tensors, METADATA)
    assert_equal_tensors(unpack(data), {name: tensor.detach() for name, tensor in tensors.items()})
    assert unpack_metadata(data) == METADATA
    assert pack(dict(reversed(tensors.items())), dict(reversed(METADATA.items()))) == data
    write(tmp_path / "x.safetensors", data)
    found, metadata = read(tmp_path / "x.safetensors")
    assert pack(found, metadata) == data


def test_a_network_takes_the_tensors_under_its_prefix_only() -> None:
    source, target = network(1), network(2)
    load_tensors(target, "network", named_tensors(source, "network") | named_tensors(network(3), "average"))
    assert_equal_tensors(target.state_dict(), source.state_dict())


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("0.weight", None, "tensor network.0.weight is missing; expected [4, 3]"),
        ("head.bias", torch.zeros(7), "tensor network.head.bias [7] has no place in this network"),
        ("2.bias", torch.zeros(5), "tensor network.2.bias is [5], this network has [3]"),
        ("2.bias", torch.tensor([0.0, torch.nan, 0.0]), "tensor network.2.bias is not finite"),
    ],
)
def test_the_first_tensor_that_differs_is_named_and_the_network_left_alone(
    name: str, tensor: Tensor | None, message: str
) -> None:
    tensors = named_tensors(network(1), "network")
    tensors.pop(f"network.{name}", None)
    tensors |= {} if tensor is None else {f"network.{name}": tensor}
    target = network(2)
    assert config_error(lambda: load_tensors(target, "network", tensors)) == f"weights: {message}"
    assert_equal_tensors(target.state_dict(), network(2).state_dict())


def test_actors_get_the_policy_alone() -> None:
    data = pack_policy({f"{part}.x": torch.ones(1) for part in ("network", "average", "rewards")}, 3)
    assert unpack(data).keys() == {"network.x"}
    assert unpack_metadata(data) == {"weights_version": 3}
