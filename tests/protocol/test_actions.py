"""Action spaces: choices and bounds of every kind, the way to the environment's units and back from a file."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import apex_acer
from apex_acer.protocol.actions import Actions, Box, Discrete, MultiDiscrete, has_choice
from apex_acer.protocol.composite import MAX_EXACT, Composite, actions_from_dict
from apex_acer.protocol.specification import EnvironmentSpec
from tests.runs import CARTPOLE

NUMBERED = Discrete(4, -2)
PLANE = Box((-1.0, 0.0), (3.0, 10.0), (2,), "float32")
DIALS = MultiDiscrete((3, 2, 4, 1), (5, 0, -2, 0), (2, 2), "int64")
SPACES = {"arm.0": PLANE, "arm.1": DIALS, "gear": NUMBERED, "heat": Box((0.0,), (4.0,), (), "float64")}


def composite(*names: str) -> Composite:
    return Composite(names, tuple(SPACES[name] for name in names))


ROBOT, SWITCHES, ARM = composite(*SPACES), composite("arm.1", "gear"), composite("arm.0")


@pytest.mark.parametrize(("shape", "dtype"), [((), "float16"), ((6,), "float32"), ((2, 3), "float64")])
def test_the_ends_and_the_middle_are_the_bounds_and_their_middle(shape: tuple[int, ...], dtype: str) -> None:
    rng, largest = np.random.default_rng(0), np.finfo(dtype).max
    low = rng.uniform(-50, 50, shape).astype(dtype)
    high = (low + rng.uniform(0, 50, shape)).astype(dtype)
    for lowest, highest in ((low, high), (np.full_like(low, -largest), np.full_like(low, largest)), (low, low)):
        box = Box(tuple(lowest.ravel().tolist()), tuple(highest.ravel().tolist()), shape, dtype)
        (d,) = box.shape
        found = box.to_environment(np.array([[-1.0] * d, [0.0] * d, [1.0] * d], np.float32))
        assert found.dtype == dtype
        assert found.shape == (3, *shape)
        np.testing.assert_array_equal(found[0], lowest)
        np.testing.assert_array_equal(found[2], highest)
        middle = lowest.astype(np.float64) / 2 + highest.astype(np.float64) / 2
        np.testing.assert_array_equal(found[1], middle.astype(dtype))


def test_each_dimension_has_its_own_bounds_and_actions_drawn_at_random_fill_them() -> None:
    action = np.array([[0.5, -0.5], [-2.0, 7.0]], np.float32)  # what is outside the box ends at its bounds
    np.testing.assert_array_equal(PLANE.to_environment(action), np.array([[2.0, 2.5], [-1.0, 10.0]], np.float32))
    drawn = PLANE.sample(np.random.default_rng(0), 500, 4)
    assert drawn.shape == (500, 4, 2)
    assert drawn.dtype == np.float32
    assert PLANE.refusal(drawn) == ""
    assert drawn.min() < -0.99
    assert drawn.max() > 0.99


def test_each_combination_of_choices_is_an_action() -> None:
    assert str(DIALS) == "MultiDiscrete([3, 2, 4, 1], start=[5, 0, -2, 0])"
    found = DIALS.to_environment(np.arange(DIALS.n))
    assert found.dtype == np.int64
    assert found.shape == (24, 2, 2)
    assert found[0].tolist() == [[5, 0], [-2, 0]]
    assert found[1].tolist() == [[5, 0], [-1, 0]]  # the last choice that there is changes first
    assert found[-1].tolist() == [[7, 1], [1, 0]]
    assert len({row.tobytes() for row in found}) == 24
    assert DIALS.refusal(np.array([0, 23])) == ""
    assert DIALS.refusal(np.array([0, 24])) == "action: 0 to 24, allowed 0 to 23"
    bits = MultiDiscrete((2,) * 62, (0,) * 62, (62,), "int8")  # as many combinations as a number can count
    assert bits.to_environment(np.array([bits.n - 1])).tolist() == [[1] * 62]
    assert bits.refusal(bits.sample(np.random.default_rng(0), 100)) == ""


def test_choices_and_numbers_side_by_side_are_what_each_part_makes_of_its_own() -> None:
    """Choices are one combination in front, in the order of the parts; parts of one kind are as one space of that kind."""
    assert [(each.kind, each.dtype, each.shape) for each in (ROBOT, SWITCHES, ARM)] == [
        ("Hybrid", "float64", (4,)),
        ("Discrete", "int64", ()),
        ("Box", "float32", (2,)),
    ]
    assert (ROBOT.n, ROBOT.branches, ROBOT.dim) == (96, (3, 2, 4, 1, 4), 3)
    assert (ARM.n, SWITCHES.dim) == (0, 0)
    number = 4 * 23 + 3  # the last of all combinations
    given = ROBOT.to_environment(np.array([[number, -1.0, 1.0, 0.5], [0, 0.0, 0.0, 0.0]]))
    assert [*given] == ["arm", "gear", "heat"]
    (plane, dials), gear, heat = given.values()
    np.testing.assert_array_equal(plane, PLANE.to_environment(np.array([[-1.0, 1.0], [0.0, 0.0]], np.float32)))
    np.testing.assert_array_equal(dials, DIALS.to_environment(np.array([23, 0])))
    assert (gear.tolist(), heat.tolist(), plane.dtype.name, heat.dtype.name) == (
        [1, -2],
        [3.0, 2.0],
        "float32",
        "float64",
    )
    user = ROBOT.for_user(given)
    assert (type(user["arm"]), type(user["gear"]), user["gear"]) == (tuple, int, 1)
    assert user["arm"][1].tolist() == [[7, 1], [1, 0]]
    (dials,), gears = SWITCHES.to_environment(np.array([number])).values()
    assert (dials[0].tolist(), gears.tolist()) == ([[7, 1], [1, 0]], [1])
    ((plane,),) = ARM.to_environment(np.array([[0.5, -0.5]], np.float32)).values()
    assert plane.tolist() == [[2.0, 2.5]]


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ([96, 0, 0, 0], "0.0 to 96.0, allowed 0 to 95"),
        ([1.5, 0, 0, 0], "a choice that is no integer"),
        ([np.nan, 0, 0, 0], "a choice that is no integer"),
        ([np.inf, 0, 0, 0], "0.0 to inf, allowed 0 to 95"),
        ([0, 0, 1.1, 0], "0.0 to 1.1, allowed -1 to 1"),
        ([0, 0, np.nan, 0], "not finite"),
    ],
)
def test_choices_and_numbers_that_are_not_allowed_are_named(wrong: list[float], line: str) -> None:
    assert ROBOT.refusal(np.array([[0.0] * 4, wrong])) == f"action: {line}"


@pytest.mark.parametrize("actions", [ROBOT, SWITCHES, ARM], ids=str)
def test_choices_and_numbers_are_drawn_together(actions: Composite) -> None:
    rng = np.random.default_rng(0)
    drawn = actions.sample(rng, 200, 3)
    assert (drawn.shape, drawn.dtype.name, actions.refusal(drawn)) == ((200, 3, *actions.shape), actions.dtype, "")
    assert len(np.unique(drawn)) > 90
    if actions.n:
        legal = np.zeros((50, sum(actions.branches)), bool)
        legal[:, np.cumsum(actions.branches) - 1] = True  # the last choice of each
        drawn = actions.sample(rng, 50, legal=legal).reshape(50, -1)
        assert (drawn[:, 0] == actions.n - 1).all()


@pytest.mark.parametrize("actions", [Discrete(5, 1), DIALS], ids=str)
def test_only_legal_choices_are_drawn(actions: Actions) -> None:
    rng = np.random.default_rng(0)
    legal = rng.random((200, sum(actions.branches))) < 0.5
    possible = has_choice(legal, actions.branches)
    assert 0 < possible.sum() < 200
    legal = legal[possible]
    drawn = np.stack(np.unravel_index(actions.sample(rng, len(legal), legal=legal), actions.branches), -1)
    assert np.take_along_axis(legal, drawn + np.cumsum((0, *actions.branches[:-1])), -1).all()
    assert all(len(set(choices.tolist())) == size for choices, size in zip(drawn.T, actions.branches, strict=True))


SCALAR, GRID = Box((-2.0,), (1 / 3,), (), "float64"), Box((-1.0,) * 6, (1.0,) * 6, (2, 3), "float16")


@pytest.mark.parametrize(
    ("actions", "words"),
    [
        (NUMBERED, "4"),
        (DIALS, "3 x 2 x 4 x 1"),
        (PLANE, "2 numbers in [-1, 3] x [0, 10]"),
        (SCALAR, "1 number in [-2, 0.333333]"),
        (GRID, "6 numbers in [-1, 1] each"),
        (SWITCHES, "arm.1 (3 x 2 x 4 x 1), gear (4)"),
        (composite("gear", "heat"), "gear (4), heat (1 number in [0, 4])"),
    ],
    ids=str,
)
def test_they_are_described_in_words_and_come_back_from_a_file(actions: Actions, words: str) -> None:
    assert actions.describe() == words
    spec = dataclasses.replace(CARTPOLE, actions=actions)
    assert EnvironmentSpec.from_dict(json.loads(json.dumps(dataclasses.asdict(spec)))) == spec


DAMAGE: dict[Actions, list[dict[str, Any]]] = {
    NUMBERED: [{"n": 0}, {"n": True}, {"n": 2.0}, {"start": None}, {"start": 2**31}, {"low": [0.0]}],
    DIALS: [
        {"nvec": [], "start": [], "given_shape": [0]}, {"nvec": None}, {"nvec": [3, 2, 4, 0]}, {"nvec": [3, 2, 4, True]},
        {"nvec": [2**62, 2, 4, 1]}, {"start": [0]}, {"start": [0, 0, 0, 2**31]}, {"start": [0, 0, 0, 0.5]},
        {"given_shape": [4, 2]}, {"given_dtype": "float32"}, {"low": [0.0]},
    ],
    PLANE: [
        {"low": None}, {"low": ["0", "0"]}, {"low": [False, False], "high": [True, True]}, {"low": [float("nan"), 0.0]},
        {"low": [4.0, 0.0]}, {"high": [10**400, 10]}, {"low": [0.0], "given_shape": [1]}, {"given_shape": None},
        {"given_shape": [3]}, {"given_shape": [-1, -2]}, {"given_shape": [2, True]}, {"given_dtype": "int64"}, {"n": 3},
    ],
    SWITCHES: [
        {"names": ["gear"]}, {"names": ["gear", "gear"]}, {"names": ["gear", "gear.1"]}, {"names": ["gear", ""]},
        {"names": ["gear", "arm..1"]}, {"names": ["gear", 1]}, {"names": None}, {"names": [], "parts": []}, {"parts": None},
        {"parts": [{"n": 2, "start": 0}, {"n": 0, "start": 0}]}, {"parts": [dataclasses.asdict(ARM)] * 2}, {"n": 3},
        {"parts": [{"n": MAX_EXACT, "start": 0}, {"n": 2, "start": 0}]}, {"parts": "n"},
    ],
}  # fmt: skip


@pytest.mark.parametrize(("actions", "changes"), DAMAGE.items(), ids=str)
def test_damage_is_refused_by_the_types_of_errors_that_a_reader_of_cards_turns_into_one_line(
    actions: Actions, changes: list[dict[str, Any]]
) -> None:
    values = dataclasses.asdict(dataclasses.replace(CARTPOLE, actions=actions))["actions"]
    assert actions_from_dict(json.loads(json.dumps(values))) == actions
    for wrong in (*(values | change for change in changes), None, [*values], {}):
        with pytest.raises((TypeError, ValueError)):
            actions_from_dict(wrong)


@pytest.mark.parametrize(
    ("actions", "chosen", "user", "clients"),
    [
        (NUMBERED, [0, 3], -2, [-2, 1]),
        (MultiDiscrete((3,), (1,), (1,), "int8"), [0, 2], [1], [[1], [3]]),
        (DIALS, [0, 23], [[5, 0], [-2, 0]], [[5, 0, -2, 0], [7, 1, 1, 0]]),
        (PLANE, [[-1.0, 1.0], [1.0, 0.0]], [-1.0, 10.0], [[-1.0, 10.0], [3.0, 5.0]]),
        (Box((-1.0,), (1.0,), (), "float32"), [[-1.0], [1.0]], -1.0, [[-1.0], [1.0]]),
    ],
    ids=str,
)
def test_users_and_clients_get_actions_in_the_environment_s_units(
    actions: Actions, chosen: list[Any], user: Any, clients: list[Any]
) -> None:
    given = actions.to_environment(np.array(chosen, actions.dtype))
    assert actions.for_clients(given) == clients
    found = actions.for_user(given)
    assert type(found) is (int if isinstance(actions, Discrete) else np.ndarray)
    assert np.shape(found) == actions.given_shape
    assert np.asarray(found).tolist() == user


@pytest.mark.parametrize("actions", [NUMBERED, DIALS, PLANE], ids=str)
def test_a_client_s_space_is_the_one_that_is_announced(actions: Actions) -> None:
    space: dict[str, Any] = json.loads(json.dumps(actions.client_space()))
    assert actions.fits(space)
    assert not actions.fits({})
    assert not actions.fits(space | {"other": 1})
    for key, value in space.items():
        changed = value + 1 if isinstance(value, int) else [number + 1 for number in value]
        assert not actions.fits(space | {key: changed})


def test_only_four_files_know_which_kinds_there_are() -> None:
    names = r"^from apex_acer\.protocol\.actions import .*\b(Choices|Discrete|MultiDiscrete|Box)\b"
    kinds, root = re.compile(names, re.MULTILINE), Path(apex_acer.__file__).parent
    files = {path.relative_to(root).as_posix() for path in root.rglob("*.py") if kinds.search(path.read_text())}
    others = {"protocol/composite.py", "environments/spaces.py", "networks/policies.py"}
    assert files - {"protocol/actions.py"} == others
