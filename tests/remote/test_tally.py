"""Rows of clients by name: what is in them, and that strangers cannot make many."""

from __future__ import annotations

import pytest

from apex_acer.protocol.metrics import MAX_NAME, METRICS, is_client
from apex_acer.remote.messages import LONGEST_NAME
from apex_acer.remote.tally import ADDRESSES, NAMES, OTHERS, Tallies


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that rates go by."""
    now = [100.0]
    monkeypatch.setattr("apex_acer.remote.tally.time.monotonic", lambda: now[0])
    return now


def test_a_row_has_what_is_new_and_the_last_one_says_that_nobody_is_there(clock: list[float]) -> None:
    tallies = Tallies()
    robot = tallies.of("robot")
    assert tallies.of("robot") is robot
    robot.steps += 30
    for episode_return in (1.0, 4.0):
        robot.end_episode(episode_return)
    clock[0] += 2.0
    counts = {"clients": 3.0, "refused_clients": 0.0, "env_steps_per_s": 15.0, "episodes": 2.0}
    returns = {"episode_return": 2.5, "episode_return_max": 4.0}
    assert tallies.rows([(robot, 1), (robot, 2)]) == {"robot": counts | returns}
    robot.steps += 5
    clock[0] += 1.0
    assert tallies.rows([]) == {"robot": counts | {"clients": 0, "env_steps_per_s": 5.0}}
    clock[0] += 1.0
    assert tallies.rows([]) == {"robot": counts | {"clients": 0, "env_steps_per_s": 0.0}}
    clock[0] += 1.0
    assert tallies.rows([]) == {}
    assert tallies.rows([(robot, 1)])["robot"]["clients"] == 1, "who idles is still there"
    assert all("client" in METRICS[name].by for name in counts | returns)


def test_clients_without_a_name_have_no_row(clock: list[float]) -> None:
    tallies = Tallies()
    nobody = tallies.of("")
    nobody.steps += 1
    assert tallies.rows([(nobody, 1)]) == {}


def test_who_is_refused_is_counted_by_name_or_by_address(clock: list[float]) -> None:
    tallies = Tallies()
    for name, address in (("robot", "10.0.0.1"), ("", "10.0.0.1"), ("", "10.0.0.1"), ("", "fe80::1")):
        tallies.refuse(name, address)
    assert tallies.rows([]) == {
        "robot": {"refused_clients": 1},
        "@10.0.0.1": {"refused_clients": 2},
        "@fe80--1": {"refused_clients": 1},
    }
    assert tallies.refusals() == "robot 1, @10.0.0.1 2, @fe80--1 1"


def test_later_names_and_addresses_share_a_row_and_none_takes_the_place_of_another_kind(clock: list[float]) -> None:
    tallies = Tallies()
    for number in range(10_000):
        tallies.refuse("", f"10.1.{number // 256}.{number % 256}")
    first = tallies.of("first")
    for number in range(10_000):
        tallies.of(f"name {number}").steps += 1
    rows = tallies.rows([(first, 1), (tallies.of("last"), 2), (tallies.of("very last"), 3)])
    assert len(rows) == ADDRESSES + NAMES + 1
    assert rows[OTHERS]["refused_clients"] == 10_000 - ADDRESSES
    assert rows[OTHERS]["clients"] == 5
    assert rows["first"]["clients"] == 1


@pytest.mark.parametrize(
    ("name", "label"),
    [("unity/arena 1", "unity_arena_1"), ("../..", ".._.."), ("@others", "_others"), ("Größe", "Gr__e")],
)
def test_a_name_may_be_anything_and_its_row_names_a_file(name: str, label: str, clock: list[float]) -> None:
    tallies = Tallies()
    for each in (name, "x" * LONGEST_NAME):
        tallies.refuse(each, "")
    tallies.refuse("", "0:" * 30)
    assert next(iter(tallies.rows([]))) == label
    assert all(map(is_client, tallies.rows([])))


@pytest.mark.parametrize("name", ["", "a/b", "a b", "a\n", "ä", "x" * (MAX_NAME + 1)])
def test_other_names_are_none_of_a_file(name: str) -> None:
    assert not is_client(name)
