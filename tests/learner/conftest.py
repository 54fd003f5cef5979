from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.ranks import Group, group


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    """A learner changes the number of torch's threads."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def pair() -> Iterator[Group]:
    """Two processes that are connected as two learners are."""
    with group(2) as found:
        yield found
