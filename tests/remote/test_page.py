"""The bytes in docs/remote.md."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest

from apex_acer.protocol.actions import Discrete
from apex_acer.remote.messages import decode, encode, parse_hello, parse_request
from tests import ROOT
from tests.remote.conftest import TOKEN
from tests.runs import CARTPOLE, PARTS

ROWS = [
    [cell.strip("` ") for cell in line.strip("|").split("|")]
    for line in (ROOT / "docs/remote.md").read_text().partition("### Bytes")[2].splitlines()
    if line.startswith("| `")
]


def shown(text: str) -> Any:
    """A message as the page shows it; a `bin` begins with that word."""
    values = json.loads(text)
    observation = values.get("observation")
    named = observation if isinstance(observation, dict) else values
    for name, value in named.items():
        if str(value).startswith("bin "):
            named[name] = bytes.fromhex(value.removeprefix("bin "))
    return values


@pytest.mark.parametrize(("direction", "text", "data"), ROWS)
def test_the_bytes_on_the_page_are_those_of_its_messages(direction: str, text: str, data: str) -> None:
    if direction == ">":
        assert decode(bytes.fromhex(data)) == shown(text)
    else:
        assert encode(json.loads(text), text=False) == bytes.fromhex(data)
        assert decode(encode(json.loads(text), text=True)) == json.loads(text)


def test_the_server_takes_the_conversation_on_the_page() -> None:
    assert len(ROWS) == 11
    actions = Discrete(3, start=0)
    spec = dataclasses.replace(CARTPOLE, plane_shape=(2,), given_shape=(2,), actions=actions)
    hello, *said = [decode(bytes.fromhex(data)) for direction, _, data in ROWS[:-1] if direction == ">"]
    assert parse_hello(hello, spec, TOKEN) == (True, "")
    requests = [parse_request(values, spec) for values in said]
    assert [(each.kind, each.sequence, each.reward) for each in requests] == [
        ("reset", 0, 0.0),
        ("step", 1, 1.0),
        ("truncated", 2, -0.5),
        ("bye", 3, 0.0),
    ]
    seen = [[0.5, -1.0], [0.5, -1.0], [0.0, 0.5]]
    assert [np.asarray(each.obs).tolist() for each in requests] == [*seen, None]


def test_the_server_takes_the_parts_on_the_page() -> None:
    request = parse_request(decode(bytes.fromhex(ROWS[-1][2])), PARTS)
    assert isinstance(request.obs, dict)
    found = {name: array.tolist() for name, array in request.obs.items()}
    camera = [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
    assert found == {"action_mask": [0, 1], "arm": [0.5, -1.0, 0.0], "camera": camera, "room": 5}
