"""How a run shares this machine, and that what it can never hold is refused by one line, before anything is made for it."""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from apex_acer.algorithms.sac.settings import SacConfig
from apex_acer.config.runfile import load_run, presets
from apex_acer.engines import ENGINES, machine
from apex_acer.engines.machine import describe, has_gpu, niceness, place, require_room
from apex_acer.manager.manager import train
from apex_acer.protocol.actions import Discrete
from apex_acer.protocol.specification import EnvironmentSpec
from tests.conftest import config_error
from tests.runs import CARTPOLE, tiny_run

PONG = EnvironmentSpec((1, 84, 84), "uint8", Discrete(6, 0), 4, False, 4, (84, 84))
SIDE_BY_SIDE: dict[str, Any] = {"algorithm": SacConfig()}
OPEN: dict[str, Any] = {"actors__count": 0, "actors__threads": 0, "learner__threads": 0, "engine": "local"}


@pytest.fixture(autouse=True)
def _sixteen_gigabytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "memory_bytes", lambda: (16e9, 8e9))
    monkeypatch.setattr(machine, "open_files_limit", lambda: (1024.0, 1024.0))


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_a_run_of_far_too_many_actors_is_refused_at_once(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "ray", raising=False)  # a program that uses it may have other machines
    start = time.monotonic()
    message = config_error(lambda: train(tiny_run(tmp_path, engine=engine, actors__count=200_000_000)))
    assert message.startswith("actors.count: 200000000 is not allowed; ")
    assert time.monotonic() - start < 5


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"actors__count": 10**6}, "actors.count: 1000000 is not allowed; give at most 799: each takes 20.0 MB"),
        ({"actors__count": 300}, "actors.count: 300 is not allowed; give at most 240: each takes 4 of the 1,024 open"),
        ({"actors__environments": 10**7}, "actors.environments: 10000000 is not allowed; give at most "),
        ({"actors__max_unanswered": 10**8}, "actors.max_unanswered: 100000000 is not allowed; give at most "),
        ({"replay__capacity": 10**10}, "replay.capacity: 10000000000 is not allowed; give at most "),
        ({"network__hidden_sizes": (10**6, 10**6)}, "network.hidden_sizes: (1000000, 1000000) is not allowed; "),
        ({"algorithm__unroll_length": 10**9, "replay__capacity": 10**11}, "algorithm.unroll_length: 1000000000 is "),
        ({"algorithm__name": "sac", "algorithm__num_critics": 10**9}, "algorithm.num_critics: 1000000000 is not "),
        (
            {"algorithm__name": "sac", "algorithm__critic_hidden_sizes": (10**6, 10**6)},
            "algorithm.critic_hidden_sizes: (1000000, 1000000) is not allowed; ",
        ),
        ({"network__lstm": 10**6}, "network.lstm: 1000000 is not allowed; give less: its 4,000,"),
        ({"evaluation__environments": 10**9, "evaluation__episodes": 10**8}, "evaluation.environments: 100000000 is "),
    ],
)
def test_each_key_that_takes_memory_is_named_with_what_is_allowed(changes: dict[str, Any], expected: str) -> None:
    config = tiny_run(engine="local", **({"replay__capacity": 10**8} | changes))
    assert config_error(lambda: require_room(config, CARTPOLE)).startswith(expected)


def test_a_limit_of_open_files_that_is_too_low_for_any_actor_is_to_be_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "open_files_limit", lambda: (30.0, 1024.0))
    message = config_error(lambda: require_room(tiny_run(engine="local", actors__count=2), CARTPOLE))
    assert message.startswith(
        "actors.count: 2 is not allowed; run `ulimit -n 72` first: each takes 4 of the 30 open files"
    )


def test_a_place_for_private_folders_that_cannot_be_written_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apex_acer.system.private.PLACE", tmp_path / "missing")
    message = config_error(lambda: train(tiny_run(tmp_path / "run", engine="local")))
    assert message.startswith("engine: no folder can be made in /tmp (No such file or directory); make /tmp writable")


def test_what_has_room_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    many: dict[str, Any] = {"actors__count": 240, "evaluation__environments": 10**9, "replay__capacity": 10**8}
    require_room(tiny_run(engine="local", **many), CARTPOLE)
    require_room(tiny_run(engine="serial", actors__count=1000), CARTPOLE)
    for name in presets():
        require_room(load_run(name), PONG)
    monkeypatch.undo()
    assert machine.open_files_limit()[0] == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    total, unused = machine.memory_bytes()
    assert 1e8 < unused <= total


def test_replay_on_a_gpu_is_not_this_machine_s() -> None:
    settings: dict[str, Any] = {"replay__capacity": 10**8, "learner__device": "cuda"}
    require_room(tiny_run(replay__device="learner", **settings), PONG)
    here = config_error(lambda: require_room(tiny_run(replay__device="cpu", **settings), PONG))
    assert here.startswith("replay.capacity: 100000000 is not allowed")
    require_room(tiny_run(replay__compress=True, replay__device="cpu", **settings), PONG)


def placed(spec: EnvironmentSpec, cores: int, **changes: Any) -> tuple[int, int, int]:
    """Actors, the threads of each, and those of the learner."""
    config = place(tiny_run(**(OPEN | changes)), spec, cores)
    return config.actors.count, config.actors.threads, config.learner.threads


@pytest.mark.parametrize(
    ("spec", "changes", "by_cores"),
    [
        (PONG, {}, {1: (2, 1, 1), 2: (2, 1, 2), 16: (5, 1, 16), 64: (21, 1, 64)}),  # a third, the learner all
        (PONG, {"learner__device": "cuda"}, {1: (1, 1, 2), 2: (1, 1, 2), 16: (14, 1, 2)}),  # all but two
        (CARTPOLE, {}, {1: (2, 1, 1), 2: (2, 1, 1), 4: (3, 1, 1), 64: (4, 8, 1)}),  # few, of many threads
        (CARTPOLE, SIDE_BY_SIDE, {1: (2, 1, 1), 2: (2, 1, 2), 16: (4, 2, 2)}),  # a learner of two threads
        (PONG, {"actors__count": 3, "actors__threads": 4, "learner__threads": 5}, {16: (3, 4, 5)}),  # as given
        (PONG, {"actors__count": 1}, {16: (1, 8, 16)}),
    ],
)
def test_cores_are_shared(
    spec: EnvironmentSpec, changes: dict[str, Any], by_cores: dict[int, tuple[int, int, int]]
) -> None:
    """Images beside a CPU's learner and beside a GPU's, vectors, and two losses that are trained side by side."""
    assert {cores: placed(spec, cores, **changes) for cores in by_cores} == by_cores


def test_only_actors_beside_a_learner_on_every_core_give_way() -> None:
    """An evaluator that did took minutes to notice that a target was reached."""
    config = tiny_run(**OPEN, learner__device="cpu")
    assert [niceness(config, PONG, role) for role in ("actor", "evaluator", "learner")] == [10, 0, 0]
    assert [niceness(config, CARTPOLE, role) for role in ("actor", "evaluator", "learner")] == [0, 0, 0]


def test_a_serial_run_is_the_same_on_every_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_run(**(OPEN | {"engine": "serial"}))
    here = place(config, PONG)
    monkeypatch.setattr("apex_acer.engines.machine.available_cores", lambda: 128)
    assert place(config, PONG) == here
    assert place(tiny_run(**OPEN), PONG).learner.threads == 128


@pytest.mark.parametrize("key", ["learner", "actors"])
def test_a_gpu_that_cannot_be_there_is_refused(key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "DEVICES", tmp_path)
    config = tiny_run(**{f"{key}__device": "cuda:0"})
    assert has_gpu("cuda:1")
    assert not has_gpu("cpu")
    (tmp_path / "nvidiactl").touch()  # a driver without a device
    message = config_error(lambda: machine.require_gpus(config))
    allowed = "this machine has 0 CUDA devices; give cpu or auto"
    assert message == f"{key}.device: 'cuda:0' is not there; {allowed}"
    machine.require_gpus(tiny_run())
    assert not has_gpu("auto")
    (tmp_path / "nvidia3").touch()  # a container may have only this one
    machine.require_gpus(config)
    assert has_gpu("auto")


def test_several_learners_share_the_cores_and_one_line_says_what_is_used() -> None:
    config = place(tiny_run(**OPEN, learner__device="cpu", actors__environments=8), CARTPOLE, cores=4)
    assert describe(config) == "3 actors of 8 environments, 1 thread each; learner on cpu, 1 thread"
    alone = place(tiny_run(**OPEN | {"actors__count": 1}, learner__device="cpu"), CARTPOLE, cores=1)
    assert describe(alone).startswith("1 actor of ")
    several: dict[str, Any] = {"engine": "ray", "learner__count": 2, "learner__device": "cpu"}
    config = place(tiny_run(**(OPEN | several)), PONG, cores=6)
    assert config.learner.threads == 3
    assert describe(config).endswith("2 learners on cpu, 3 threads each")
