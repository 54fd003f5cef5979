"""One Ray for all tests that run in this process; runs find it there and share it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from apex_acer.config import RayConfig
from apex_acer.engines.ray.cluster import QUIET, Cluster, stay_alone

os.environ |= QUIET
stay_alone()  # before any test imports Ray


@pytest.fixture(scope="package")
def ray_here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(RayConfig(), tmp_path_factory.mktemp("ray") / "log.txt")
    yield cluster
    cluster.close()
