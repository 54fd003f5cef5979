"""Runs that go on from their newest checkpoint: what is restored, what is refused, and what the curves look like."""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import json
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from apex_acer.config import ConfigError, RunConfig
from apex_acer.config.runfile import dump_run, load_run
from apex_acer.engines.machine import describe
from apex_acer.learner.batch_queue import BatchQueue
from apex_acer.learner.learner import Learner
from apex_acer.manager.manager import RunFailed, resume, train
from apex_acer.manager.preparation import prepare_resume
from apex_acer.protocol.messages import Peer
from apex_acer.protocol.unroll import Unroll
from apex_acer.storage import checkpoint
from apex_acer.storage.runlog import Log
from apex_acer.tools.sweep.training import lock_folder
from tests.boards import scalars, session_starts
from tests.conftest import config_error
from tests.continuous import rows_of
from tests.runs import CARTPOLE, RUN_ID, MakeLearner, feed, known_speakers, speakers, tiny_run, work_off

# ── a learner ──

ResumeLearner = Callable[..., Learner]


@pytest.fixture
def resume_learner(tmp_path: Path) -> Iterator[ResumeLearner]:
    """Makes learners that go on in the folder of the first."""
    learners: list[Learner] = []

    def make(config: RunConfig) -> Learner:
        learners.append(Learner(config, CARTPOLE, tmp_path / "run_0", RUN_ID, time.monotonic(), resume=True))
        return learners[-1]

    yield make
    for learner in learners:
        learner.close()


def saved_run(**changes: Any) -> RunConfig:
    """Everything that is to be restored changes in it."""
    options = {
        "network__normalise": True,
        "algorithm__normalise_rewards": True,
        "algorithm__replay_ratio": 3.0,
        "checkpoint__replay": True,
        "stop__env_steps": 10_000,
    }
    return tiny_run(**(options | changes))


def test_what_a_learner_has_counted_drawn_and_heard_is_restored(
    make_learner: MakeLearner, resume_learner: ResumeLearner
) -> None:
    """A check of what is saved; tests/engines/test_serial.py shows that a resumed run learns the same."""
    config = saved_run(evaluation__every=100)
    before = make_learner(config)
    fresh = {name: tensor.clone() for name, tensor in before._trainer.algorithm.tensors().items()}
    actor, evaluator = known_speakers(before.inbox, Peer("actor", 0, 0), Peer("evaluator", 0, 0))
    evaluator.say(wants_weights=True)
    for number, score in enumerate((7.0, 3.0)):
        feed(before, actor, config, 6, first=6 * number)
        evaluator.say(rows=[{"eval_return": score}], wants_weights=True)
        work_off(before)
    before.counters.skipped = 5
    torch.rand(2)
    before.save()
    drawn = torch.rand(3)  # by a torso with dropout, say
    after = resume_learner(config)
    assert torch.equal(torch.rand(3), drawn)
    counters = after.counters.env_steps, after.counters.updates, after.counters.skipped
    assert counters == (240, before.counters.updates, 5)
    now, then = after._trainer.algorithm.tensors(), before._trainer.algorithm.tensors()
    assert {name for name in now if torch.equal(now[name], fresh[name])} == set(), "there is nothing to restore"
    assert {name for name in now if torch.equal(now[name], then[name])} == then.keys()
    assert after._reporter.status()["best"] == 7.0
    assert after._evaluations.last == 3.0


# ── what is refused ──


def saved(make_learner: MakeLearner, config: RunConfig, folder: Path) -> Path:
    """The checkpoint of a learner that has learned a little, in `folder` as a run's."""
    learner = make_learner(config)
    feed(learner, speakers(learner)[0], config, 8)
    learner.finish()
    (folder / "config.toml").write_text(dump_run(dataclasses.replace(config, out="")))
    path = checkpoint.newest(folder)
    assert path is not None
    return path


def forge(path: Path, **state: Any) -> None:
    """Another state, with the right checksum."""
    manifest = json.loads((path / checkpoint.MANIFEST).read_text())
    del manifest["checksum"]
    manifest["state"].update(state)
    manifest["checksum"] = zlib.crc32(json.dumps(manifest, sort_keys=True).encode())
    (path / checkpoint.MANIFEST).write_text(json.dumps(manifest))


def test_a_checkpoint_that_is_another_run_s_forged_or_damaged_is_refused_by_its_path(
    make_learner: MakeLearner, resume_learner: ResumeLearner, tmp_path: Path
) -> None:
    path = saved(make_learner, saved_run(), tmp_path / "run_0")

    def refusal(**changes: Any) -> str:
        message = config_error(lambda: resume_learner(saved_run(**changes)))
        assert message.startswith(f"{path}: ")
        assert message.count(str(path)) == 1
        return message

    assert "tensor network." in refusal(network__hidden_sizes=(8,))
    assert "optimizer.name: 'adam'" in refusal(optimizer__name="adam")
    assert "replay." in refusal(replay__capacity=100)
    state = checkpoint.load(path).state
    nonsense: list[Any] = [None, "text", {}, 1e400]
    for name in "updates", "feed":
        for wrong in nonsense:  # no damage makes it, but somebody could
            forge(path, **{name: wrong})
            refusal()
        forge(path, **state)
    resume_learner(saved_run())
    data = (path / "replay.obs").read_bytes()
    (path / "replay.obs").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert refusal().startswith(f"{path}: replay.obs: damaged")


def test_where_there_is_nothing_to_go_on_from(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        assert refused(folder).startswith(f"resume: {folder}: holds no whole checkpoint; give the folder of a run")
    message = config_error(lambda: resume(tmp_path, 2000))  # type: ignore[arg-type]
    assert message == "stop: 2000 is not allowed; give a dict: {'env_steps': 2000}"


def test_a_checkpoint_needs_its_run_s_configuration_and_all_its_files(
    make_learner: MakeLearner, resume_learner: ResumeLearner, tmp_path: Path
) -> None:
    folder = tmp_path / "run_0"
    path = saved(make_learner, saved_run(), folder)
    (folder / "config.toml").write_text("stop = 3")
    assert refused(folder).startswith(f"{folder / 'config.toml'}: ")
    (folder / "config.toml").unlink()
    assert refused(folder).startswith(f"{folder / 'config.toml'}: No such file")
    (path / "tensors.safetensors").unlink()
    for message in (refused(folder), config_error(lambda: resume_learner(saved_run()))):
        assert f"holds no whole checkpoint ({path}: 'tensors.safetensors' is not the file" in message


def refused(folder: Path, stop: dict[str, Any] | None = None) -> str:
    return config_error(lambda: resume(folder, stop or {}))


def prepared(folder: Path, **stop: Any) -> RunConfig:
    return prepare_resume(folder, stop, time.monotonic()).config


def test_an_environment_that_has_changed_is_refused(make_learner: MakeLearner, tmp_path: Path) -> None:
    folder = tmp_path / "run_0"
    make_learner(config := saved_run()).finish()
    hidden = dataclasses.replace(config.environment, wrappers=("apex_acer.wrappers:hide_velocities",))
    (folder / "config.toml").write_text(dump_run(dataclasses.replace(config, environment=hidden)))
    message = refused(folder)
    assert "the shape of an observation was (4,) and is (2,)" in message


def test_what_is_reached_already_is_refused(make_learner: MakeLearner, tmp_path: Path) -> None:
    folder = tmp_path / "run_0"
    path = saved(make_learner, saved_run(stop__env_steps=160), folder)
    expected = "stop.env_steps: 160 is reached, the run has made 160; give --steps above that"
    assert refused(folder) == expected
    assert "stop.env_steps: 100 is reached" in refused(folder, {"env_steps": 100})
    assert prepared(folder, env_steps=161).stop.env_steps == 161
    forge(path, wall_s=120.0)
    for minutes in (2.0, 1.5):
        message = refused(folder, {"env_steps": 200, "minutes": minutes})
        assert message.startswith(f"stop.minutes: {minutes:g} is reached, the run has taken 2.0; give --minutes above")
    assert prepared(folder, env_steps=200, minutes=2.1).stop.minutes == 2.1
    assert "stop.env_steps: -5 is not allowed" in refused(folder, {"env_steps": -5})


def test_the_end_of_schedules_and_a_target_stay_unless_they_are_asked_to_change(
    make_learner: MakeLearner, tmp_path: Path
) -> None:
    folder, linear = tmp_path / "run_0", {"optimizer__schedule": "linear", "stop__env_steps": 10_000}
    assert "schedule" not in describe(saved_run())
    saved(make_learner, saved_run(**linear, evaluation__every=100, stop__at_return=400.0), folder)
    for total in (500, 20_000):
        config = prepared(folder, env_steps=total)
        assert (config.stop.env_steps, config.schedule_end, config.stop.at_return) == (total, 10_000, 400.0)
        assert describe(config).endswith("; schedules end at 10,000 env steps (--schedule-steps)")
    assert prepared(folder, env_steps=500, at_return=300.0).stop.at_return == 300.0
    line = "learning rate: 0 from env step 10,000 on, where its schedule ends"
    notes = prepare_resume(folder, {"env_steps": 20_000}, 0.0).notes
    assert notes[-1] == f"{line}; --schedule-steps 20000 lets it fall until the end of the run"
    asked = prepare_resume(folder, {"env_steps": 20_000}, 0.0, schedule_steps=30_000)
    assert asked.config.schedule_end == 30_000
    assert not any("learning rate" in note for note in asked.notes)
    assert prepared(folder).schedule_steps == 0
    assert "schedule_steps: -1 is not allowed" in config_error(
        lambda: prepare_resume(folder, {}, 0.0, schedule_steps=-1)
    )


# ── whole runs ──


def test_a_target_that_was_reached_is_not_asked_for_again(tmp_path: Path) -> None:
    target = {"evaluation__every": 200, "stop__at_return": 5.0}
    first = train(tiny_run(tmp_path, stop__env_steps=600, **target))
    assert first.reason == "at_return"
    more = resume(tmp_path)
    assert more.reason == "env_steps"
    assert more.env_steps >= 600 > first.env_steps
    assert load_run(str(tmp_path / "config.toml")).stop.at_return is None
    last = resume(tmp_path, {"env_steps": 2000, "at_return": 5.0})
    assert last.reason == "at_return"
    assert more.env_steps < last.env_steps < 2000
    assert last.eval_return is not None
    assert last.eval_return >= 5.0
    kept = load_run(str(tmp_path / "config.toml"))
    assert (kept.stop.env_steps, kept.stop.at_return) == (2000, 5.0)


def test_a_run_that_was_refused_is_left_as_it_was(tmp_path: Path) -> None:
    train(tiny_run(tmp_path, stop__env_steps=200))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert refused(tmp_path, {"env_steps": 100}).startswith("stop.env_steps: 100 is reached")
    assert refused(tmp_path, {"nope": 1}).startswith("resume: unknown key stop.nope")
    assert refused(tmp_path, {"env_steps": "x"}).startswith("resume: stop.env_steps: 'x' is not allowed; give int")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    (tmp_path / "log.txt").unlink()
    (tmp_path / "log.txt").mkdir()
    assert refused(tmp_path, {"env_steps": 400}).startswith(f"out: '{tmp_path}' cannot be written")


@pytest.mark.parametrize("role", ["Learner", "Actor.step"])
def test_a_run_that_a_process_refuses_is_left_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    """A port that is in use, say. The log tells of it, and the learner has opened its files for TensorBoard."""

    calls = iter([True] * (4 if role == "Actor.step" else 0))  # until the learner has told its status

    def refuse(*arguments: Any, **named: Any) -> bool:
        if next(calls, False):
            return True
        raise ConfigError("mine")

    def files() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and "tb" not in path.parts}

    train(tiny_run(tmp_path, stop__env_steps=200, logging__every_seconds=60.0))
    before = files()
    monkeypatch.setattr(f"apex_acer.engines.roles.{role}", refuse)
    assert refused(tmp_path, {"env_steps": 400}) == "mine"
    before[tmp_path / "log.txt"] = (tmp_path / "log.txt").read_bytes()
    assert files() == before
    assert json.loads((tmp_path / "result.json").read_text())["state"] == "ended"


def test_a_run_that_has_not_saved_yet_is_not_resumed_while_it_runs(tmp_path: Path) -> None:
    log = Log(tmp_path)
    try:
        fcntl.flock(log.descriptor, fcntl.LOCK_EX)
        message = refused(tmp_path)
    finally:
        log.close()
    assert message == f"out: '{tmp_path}' is in use; another program trains there"


def test_a_run_on_a_file_system_without_locks_says_so_and_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(descriptor: Any, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    train(tiny_run(tmp_path, stop__env_steps=200))
    assert resume(tmp_path, {"env_steps": 400}).env_steps >= 400
    warned = f"'{tmp_path}' cannot be locked (No locks available); have no other program train there"
    assert [line.message for line in caplog.records].count(warned) == 2
    message = config_error(lambda: lock_folder(tmp_path))
    assert message == f"out: '{tmp_path}' cannot be locked (No locks available); give a folder on a local disk"


def test_rows_and_curves_of_a_run_that_broke_do_not_double_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = {"checkpoint__every": 200, "evaluation__every": 150, "logging__every_seconds": 1e-3}
    insert = BatchQueue.insert

    def insert_once(queue: BatchQueue, unroll: Unroll, version: int) -> None:
        if queue.storage.num_steps > 500:
            raise ZeroDivisionError("it broke")
        insert(queue, unroll, version)

    monkeypatch.setattr(BatchQueue, "insert", insert_once)
    with pytest.raises(RunFailed, match="it broke"):
        train(tiny_run(tmp_path, **every))
    monkeypatch.undo()
    path = checkpoint.newest(tmp_path)
    assert path is not None
    state, before = checkpoint.load(path).state, rows_of(tmp_path, "learner")
    assert before[-1]["env_steps"] > state["env_steps"] + 50  # which are done again
    assert "replay.obs" not in checkpoint.load(path).names, "nobody has asked for it"
    result = resume(tmp_path)

    for source in ("learner", "actor_0", "actor_1", "evaluator"):
        rows = rows_of(tmp_path, source)
        for name in ("env_steps", "wall_s", *(("updates",) if source == "learner" else ())):
            values = [row[name] for row in rows]
            assert values == sorted(values), (source, name)
        assert rows[-1]["env_steps"] > state["env_steps"]
        assert session_starts(tmp_path, source) == [state["env_steps"] + (source != "learner")]
        for name, points in scalars(tmp_path, source).items():
            steps = [step for step, _ in points]
            assert steps == sorted(steps), (source, name)
    evaluated = [row["eval_env_steps"] for row in rows_of(tmp_path, "evaluator")]
    assert len(evaluated) == len(set(evaluated)) > 3
    learner, saved_at = rows_of(tmp_path, "learner"), round(state["wall_s"], 3)  # as rows have it
    kept, written = ([row for row in rows if row["wall_s"] < saved_at] for rows in (learner, before))
    assert kept == written
    assert learner[-1]["env_steps"] == result.env_steps
    assert scalars(tmp_path, "learner")["env_steps"][-1] == (result.env_steps, float(result.env_steps))
