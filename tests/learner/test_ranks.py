from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
import torch

from apex_acer.learner.ranks import ALONE, LearnerLost, Ranks
from tests.ranks import Group, connected


def talk(ranks: Ranks) -> dict[str, object]:
    tensor = torch.full((3,), 1.0 + ranks.rank)
    ranks.add(tensor)
    aligned = [torch.full((2, 2), float(ranks.rank)), torch.tensor(2**40 + ranks.rank)]
    ranks.align(aligned)
    ranks.align([])
    return {
        "gather": ranks.gather([ranks.rank, 0.5]).tolist(),
        "add": tensor.tolist(),
        "collect": ranks.collect(b"x" * ranks.rank),
        "collect nothing": ranks.collect(b""),
        "align": [each.tolist() for each in aligned],
    }


def test_learners_tell_each_other_what_they_must(pair: Group) -> None:
    everybodys = {
        "gather": [[0.0, 0.5], [1.0, 0.5]],
        "add": [3.0, 3.0, 3.0],
        "collect": [b"", b"x"],
        "collect nothing": [b"", b""],
        "align": [[[0.0, 0.0], [0.0, 0.0]], 2**40],
    }
    assert pair.run(talk) == [everybodys, everybodys]


def test_a_learner_alone_is_told_what_it_says() -> None:
    np.testing.assert_array_equal(ALONE.gather([1, 0.5]), [[1.0, 0.5]])
    assert ALONE.collect(b"a") == [b"a"]
    tensor = torch.ones(2)
    ALONE.add(tensor)
    ALONE.align([tensor])
    assert tensor.tolist() == [1.0, 1.0]


def listening_addresses(ranks: Ranks) -> list[str]:
    connected(ranks)
    inodes = {Path(f"/proc/self/fd/{fd.name}").readlink().name for fd in Path("/proc/self/fd").iterdir() if fd.exists()}
    found = []
    for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == "0A" and f"socket:[{rest[5]}]" in inodes:
                found.append(local.partition(":")[0])
    return found


@pytest.mark.skipif(not Path("/proc/self/net/tcp").exists(), reason="asks Linux")
def test_nothing_listens_beyond_the_machine(pair: Group) -> None:
    first, second = pair.run(listening_addresses)
    assert len(first) >= 2  # where they meet, and where gloo's connection is made
    assert {*first, *second} == {"0100007F"}


def fall_silent(ranks: Ranks) -> str:
    if ranks.rank:
        time.sleep(1.5)
        return ""
    try:
        connected(ranks)
    except LearnerLost as error:
        return str(error)
    return "nothing"


def test_a_silent_learner_is_noticed_at_the_deadline(pair: Group) -> None:
    assert "imed out" in pair.run(fall_silent, timeout_s=1.0)[0]
    assert pair.run(connected) == [2, 2]
