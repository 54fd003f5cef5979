from __future__ import annotations

from pathlib import Path

import pytest

from apex_acer.algorithms.sac.settings import SacConfig
from apex_acer.engines import placement
from apex_acer.engines.placement import available_cores, describe, has_gpu, niceness, place
from apex_acer.protocol.actions import Discrete
from apex_acer.protocol.specification import EnvironmentSpec
from tests.conftest import config_error
from tests.runs import CARTPOLE, tiny_run

PONG = EnvironmentSpec((1, 84, 84), "uint8", Discrete(6, 0), 4, False, 4, (84, 84))
OPEN = {"actors__count": 0, "actors__threads": 0, "learner__threads": 0, "engine": "local"}


def placed(spec: EnvironmentSpec, cores: int, **changes: object) -> tuple[int, int, int]:
    """Actors, the threads of each, and those of the learner."""
    config = place(tiny_run(**(OPEN | changes)), spec, cores)
    return config.actors.count, config.actors.threads, config.learner.threads


@pytest.mark.parametrize(("cores", "expected"), [(1, (2, 1, 1)), (2, (2, 1, 2)), (16, (5, 1, 16)), (64, (21, 1, 64))])
def test_images_on_a_cpu_have_a_third_of_the_cores_and_the_learner_all(
    cores: int, expected: tuple[int, int, int]
) -> None:
    assert placed(PONG, cores) == expected


@pytest.mark.parametrize(("cores", "expected"), [(1, (1, 1, 2)), (2, (1, 1, 2)), (16, (14, 1, 2))])
def test_images_beside_a_gpu_have_all_but_two_cores(cores: int, expected: tuple[int, int, int]) -> None:
    assert placed(PONG, cores, learner__device="cuda") == expected


@pytest.mark.parametrize(("cores", "expected"), [(1, (2, 1, 1)), (2, (2, 1, 1)), (4, (3, 1, 1)), (64, (4, 8, 1))])
def test_vectors_have_few_actors_and_a_learner_of_one_thread(cores: int, expected: tuple[int, int, int]) -> None:
    assert placed(CARTPOLE, cores) == expected


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (2, 2), (16, 2)])
def test_two_separate_losses_have_a_learner_of_two_threads(cores: int, threads: int) -> None:
    """Critics and policy are trained side by side."""
    assert placed(CARTPOLE, cores, algorithm=SacConfig())[2] == threads


def test_only_actors_beside_a_learner_on_every_core_give_way() -> None:
    """An evaluator that did took minutes to notice that a target was reached."""
    config = tiny_run(**OPEN, learner__device="cpu")
    assert [niceness(config, PONG, role) for role in ("actor", "evaluator", "learner")] == [10, 0, 0]
    assert [niceness(config, CARTPOLE, role) for role in ("actor", "evaluator", "learner")] == [0, 0, 0]


def test_what_is_given_stays() -> None:
    assert placed(PONG, 16, actors__count=3, actors__threads=4, learner__threads=5) == (3, 4, 5)
    assert placed(PONG, 16, actors__count=1) == (1, 8, 16)


def test_a_serial_run_is_the_same_on_every_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_run(**(OPEN | {"engine": "serial"}))
    here = place(config, PONG)
    monkeypatch.setattr("apex_acer.engines.placement.available_cores", lambda: 128)
    assert place(config, PONG) == here
    assert place(tiny_run(**OPEN), PONG).learner.threads == 128


def test_a_gpu_is_where_it_is_asked_for_or_seen() -> None:
    assert has_gpu("cuda:1")
    assert not has_gpu("cpu")
    assert available_cores() >= 1


@pytest.mark.parametrize("key", ["learner", "actors"])
def test_a_gpu_that_cannot_be_there_is_refused(key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "DEVICES", tmp_path)
    config = tiny_run(**{f"{key}__device": "cuda:0"})
    (tmp_path / "nvidiactl").touch()  # a driver without a device
    message = config_error(lambda: placement.require_gpus(config))
    allowed = "this machine has 0 CUDA devices; give cpu or auto"
    assert message == f"{key}.device: 'cuda:0' is not there; {allowed}"
    placement.require_gpus(tiny_run())
    (tmp_path / "nvidia3").touch()  # a container may have only this one
    placement.require_gpus(config)


def test_one_line_says_what_is_used() -> None:
    config = place(tiny_run(**OPEN, learner__device="cpu", actors__environments=8), CARTPOLE, cores=4)
    assert describe(config) == "3 actors of 8 environments, 1 thread each; learner on cpu, 1 thread"


def test_several_learners_share_the_cores() -> None:
    several = {"engine": "ray", "learner__count": 2, "learner__device": "cpu"}
    config = place(tiny_run(**(OPEN | several)), PONG, cores=6)
    assert config.learner.threads == 3
    assert describe(config).endswith("2 learners on cpu, 3 threads each")
