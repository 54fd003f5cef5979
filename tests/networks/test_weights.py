from __future__ import annotations

import resource
import threading
from pathlib import Path

import pytest
import safetensors.torch
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


def test_no_file_and_a_folder(tmp_path: Path) -> None:
    absent = tmp_path / "absent.safetensors"
    message = config_error(lambda: read(absent))
    assert message == f"{absent}: No such file or directory; give a weights file"
    assert config_error(lambda: read(tmp_path)).startswith(f"{tmp_path}: Is a directory")


DATA = pack({"network.x": torch.zeros(50)}, METADATA)
OTHER = {
    "empty": b"",
    "cut in its header": DATA[:40],
    "cut last": DATA[:-1],
    "more": DATA + b"\0",
    "text": b"seed = 1\n" * 30,
    "ones": b"\xff" * 100,
    "foreign": safetensors.torch.save({"x": torch.zeros(2)}, {"format": "pt"}),
}


@pytest.mark.parametrize("kind", OTHER)
def test_files_of_another_kind_are_refused_by_path(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "other.safetensors"
    path.write_bytes(OTHER[kind])
    message = config_error(lambda: read(path))
    assert message.startswith(f"{path}: ")
    assert message.endswith("give a file this program wrote")


def test_whoever_reads_meanwhile_finds_a_whole_file(tmp_path: Path) -> None:
    path, found = tmp_path / "weights.safetensors", set[tuple[int, frozenset[int]]]()
    write(path, bytes(500_000))
    written = threading.Event()

    def look() -> None:
        while not written.is_set():
            data = path.read_bytes()
            found.add((len(data), frozenset(data)))

    reader = threading.Thread(target=look)
    reader.start()
    for number in range(20):
        write(path, bytes([number]) * 500_000)
    written.set()
    reader.join()
    assert found
    assert [(length, values) for length, values in found if length != 500_000 or len(values) != 1] == []
    assert list(tmp_path.iterdir()) == [path]


def test_the_old_file_stays_whole_when_writing_fails(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    write(path, b"old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))  # as a full disk: a part fits, the whole does not
    try:
        with pytest.raises(OSError, match="File too large"):
            write(path, bytes(100_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_actors_get_the_policy_alone() -> None:
    data = pack_policy({f"{part}.x": torch.ones(1) for part in ("network", "average", "rewards")}, 3)
    assert unpack(data).keys() == {"network.x"}
    assert unpack_metadata(data) == {"weights_version": 3}
