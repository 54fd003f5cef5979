"""Observations with parts, packed into bytes and unpacked again, and one-hot choices."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from apex_acer.networks.frames import unpack as unpack_tensors
from apex_acer.protocol.planes import pack, to_planes, unpack
from apex_acer.protocol.specification import Part
from tests.protocol.odd import ODD, odd_spec


def random_planes(part: Part, *lead: int) -> np.ndarray:
    numbers = np.random.default_rng(7).normal(scale=100, size=(*lead, *part.plane_shape))
    return (numbers > 0 if part.dtype == "bool" else numbers % 100).astype(part.dtype)


@pytest.mark.parametrize(("num", "stack"), [(0, 1), (1, 3), (3, 2)])
def test_parts_of_any_type_at_any_place_are_packed_and_unpacked_again(num: int, stack: int) -> None:
    for first in range(len(ODD)):
        parts = ODD[first:] + ODD[:first]
        spec = odd_spec(stack, parts)
        planes = {part.name: random_planes(part, num, stack) for part in parts}
        rows = pack(spec, planes, num, stack)
        assert rows.shape == (num, stack, *spec.plane_shape)
        assert rows.dtype == spec.dtype
        tensors = unpack_tensors(torch.from_numpy(rows.reshape(num, *spec.obs_shape)), spec)
        for name, array in unpack(spec, rows, spec.boxes).items():
            np.testing.assert_array_equal(array, planes[name])
            np.testing.assert_array_equal(tensors[name].numpy(), planes[name].reshape(tensors[name].shape))
        assert list(spec.float_parts) == [part.name for part in parts if "float" in part.dtype]


def test_nested_observations_are_found_by_their_names_and_choices_become_one_hot() -> None:
    part = {part.name: random_planes(part, 2) for part in ODD}
    images = np.moveaxis(part["camera"], 1, -1)
    arm = {"joints": part["arm.joints"], "load": part["arm.load"]}
    obs = {"map": part["map"], "arm": arm, "door": part["door"], "camera": images, "room": np.array([-1, 2])}
    spec = odd_spec()
    found = unpack(spec, to_planes(spec, obs, 2), spec.boxes)
    assert found["room"].tolist() == [[1, 0, 0, 0], [0, 0, 0, 1]]
    for name in found.keys() - {"room"}:
        np.testing.assert_array_equal(found[name], part[name])
    with pytest.raises(ValueError, match=r"observation \[-1, 3\], allowed is an integer from -1 to 2"):
        to_planes(spec, obs | {"room": np.array([-1, 3])}, 2)


def test_several_choices_at_once_are_one_vector() -> None:
    part = Part("", (5,), "int8", False, (2,), choices=(2, 3), first=(0, 10))
    planes = to_planes(odd_spec(1, (part,)).boxes[""], np.array([[1, 10], [0, 12]]), 2)
    assert planes.tolist() == [[0, 1, 1, 0, 0], [1, 0, 0, 0, 1]]
