"""Specifications from files and from strangers, and how they differ."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from apex_acer.protocol.specification import EnvironmentSpec
from tests.protocol.odd import ODD, odd_spec


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
