"""Specifications from files and from strangers, and the observations and unrolls that they describe."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
import torch

from apex_acer.networks.frames import unpack as unpack_tensors
from apex_acer.protocol.actions import Discrete
from apex_acer.protocol.planes import pack, to_planes, unpack
from apex_acer.protocol.specification import EnvironmentSpec, Part
from tests.runs import CARTPOLE, made_up_unroll, tiny_run

ODD = (
    Part("door", (3,), "bool", False, (3,)),
    Part("camera", (3, 5, 7), "uint8", True, (5, 7, 3)),
    Part("arm.joints", (5,), "float64", False, (5,)),
    Part("arm.load", (1,), "float16", False, (1,)),
    Part("room", (4,), "int8", False, (), choices=(4,), first=(-1,)),
    Part("map", (2, 3, 3), "float32", False, (2, 3, 3)),
)


def odd_spec(stack: int = 1, parts: tuple[Part, ...] = ODD) -> EnvironmentSpec:
    return EnvironmentSpec.of_parts(parts, Discrete(2, 0), stack, 1)


def test_a_specification_returns_from_json_and_says_what_changed() -> None:
    spec = odd_spec(2)
    assert EnvironmentSpec.from_dict(json.loads(json.dumps(dataclasses.asdict(spec)))) == spec
    assert spec.changes(spec) == ""
    before = {name: value for name, value in dataclasses.asdict(spec).items() if name != "masks_in_info"}
    assert EnvironmentSpec.from_dict(before) == spec, "of a file from before there was this field"
    other = odd_spec(2, ODD[:4])
    assert other.changes(spec).startswith(
        "the observation was door (vectors of 3 numbers, bool), camera (images of 5 x 7"
    )
    assert spec.describe().endswith("room (an integer from -1 to 2, one-hot), map (images of 3 x 3 pixels, 2 channels, "
                                    "channels first, float32), the newest 2 together; actions: 2")  # fmt: skip


VALUES = dataclasses.asdict(odd_spec())


@pytest.mark.parametrize(
    "change",
    [
        *({"parts": VALUES["parts"][:2]}, {"parts": 5}, {"parts": ["door"]}, {"parts": [{}]}, {"plane_shape": [7]}),
        *({"dtype": "float32"}, {"choices": [2]}, {"first": [2]}, {"masks_in_info": True}, {"masks_in_info": 0}),
    ],
    ids=str,
)
def test_a_stranger_s_specification_is_checked(change: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError, KeyError)):
        EnvironmentSpec.from_dict(VALUES | change)


@pytest.mark.parametrize(
    "change",
    [
        *({"name": "camera"}, {"name": ""}, {"name": 3}, {"dtype": "object"}, {"dtype": "uint8"}, {"parts": []}),
        *({"plane_shape": [0]}, {"plane_shape": [5]}, {"given_shape": [2]}),
        *({"choices": [5]}, {"choices": [2.0, 2.0]}, {"first": []}, {"first": [2**40]}),
    ],
    ids=str,
)
def test_a_stranger_s_part_is_checked(change: dict[str, Any]) -> None:
    parts = [part | (change if part["name"] == "room" else {}) for part in VALUES["parts"]]
    with pytest.raises((TypeError, ValueError)):
        EnvironmentSpec.from_dict(VALUES | {"parts": parts})


# ── observations and unrolls ──


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


@pytest.mark.parametrize("name", ["reward", "obs"])
def test_absurd_numbers_are_refused(name: str) -> None:
    run = tiny_run()
    array = getattr(made_up_unroll(run), name).copy()
    array.flat[-1] = 1e15
    assert not made_up_unroll(run, **{name: array}).refusal(CARTPOLE)
    array.flat[-1] = -1e20
    refusal = f"{name}: up to 1e+20, allowed is a magnitude of 1e+15"
    assert made_up_unroll(run, **{name: array}).refusal(CARTPOLE) == refusal
