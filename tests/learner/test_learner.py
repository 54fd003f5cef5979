from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from apex_acer.algorithms.acer.acer import Acer
from apex_acer.algorithms.algorithm import LossOutput
from apex_acer.config import ConfigError
from apex_acer.learner.learner import Learner
from apex_acer.networks import weights
from apex_acer.protocol.messages import Peer, Reply
from apex_acer.protocol.unroll import Batch
from apex_acer.storage import checkpoint
from tests.boards import histograms, lines, scalars
from tests.conftest import config_error
from tests.runs import (
    CARTPOLE,
    RUN_ID,
    MakeLearner,
    Speaker,
    feed,
    known_speakers,
    made_up_unroll,
    numbered_unroll,
    segment_numbers,
    speakers,
    tiny_run,
    work_off,
)

EVALUATOR = Peer("evaluator", 0, 0)


def test_fresh_sequences_are_learned_in_order_before_they_are_overwritten(
    make_learner: MakeLearner, trained_on: list[Batch]
) -> None:
    config = tiny_run(
        learner__batch_size=3,
        replay__capacity=35,
        replay__start=0,
        algorithm__replay_ratio=2.0,
        stop__env_steps=10_000,
    )
    learner = make_learner(config)
    actors = speakers(learner)
    for number in range(0, 20, 4):  # four unrolls wait at once
        for i in range(4):
            actors[i % 2].say(unroll=numbered_unroll(config, number + i))
        work_off(learner)
    expected = iter([list(range(first, first + 3)) for first in range(0, 78, 3)])
    awaited = next(expected)
    for numbers in map(segment_numbers, trained_on):
        if numbers == awaited:
            awaited = next(expected, [])
    assert not awaited
    assert len(trained_on) > 26


def test_lag_frames_and_env_steps_are_as_defined(tmp_path: Path) -> None:
    """Updates since the weights that acted; env steps times the action repeat; steps not learned from, but no dummies."""
    config = tiny_run(algorithm__replay_ratio=0.0, logging__every_seconds=1000.0)
    learner = Learner(config, dataclasses.replace(CARTPOLE, action_repeat=4), tmp_path, RUN_ID, time.monotonic())
    (actor, _) = speakers(learner)
    feed(learner, actor, config, 5, weights_version=0)
    mask = np.ones((5, 4), bool)
    mask[1, 2] = mask[3, 0] = mask[4, 0] = False
    actor.say(unroll=numbered_unroll(config, 5, mask=mask), weights_version=0, unlearned_steps=30)
    work_off(learner)
    learner.finish()
    (row,) = lines(tmp_path)
    assert (row["updates"], row["policy_lag"]) == (6, 2.5)  # the mean of 0 to 5
    assert (row["env_steps"], row["frames"]) == (147, 588)


def spoil_losses(monkeypatch: pytest.MonkeyPatch, spoilt: Callable[[int], bool]) -> None:
    """Losses whose number `spoilt` names are NaN."""
    loss, calls = Acer.loss, iter(range(10**9))

    def sometimes(self: Acer, samples: Any) -> LossOutput:
        output = loss(self, samples)
        return output._replace(loss=output.loss * float("nan")) if spoilt(next(calls)) else output

    monkeypatch.setattr(Acer, "loss", sometimes)


def test_updates_that_are_not_finite_are_skipped_and_counted(
    make_learner: MakeLearner, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_run(algorithm__replay_ratio=0.0, learner__max_skipped_updates=2, stop__env_steps=10_000)
    spoil_losses(monkeypatch, lambda call: call % 2 == 1)
    learner = make_learner(config)
    replies = feed(learner, speakers(learner)[0], config, 10, wants_weights=True, weights_version=-1)
    result = learner.finish()
    assert learner.counters.updates == 5
    assert learner._reporter.status()["rows"]["learner"]["skipped_updates"] == result.skipped_updates == 5
    tensors, _ = weights.read(result.weights)
    assert all(torch.isfinite(tensor).all() for tensor in tensors.values())
    # an unroll is answered before its update: the second and third see the first update, but not the second, skipped one
    assert replies[1].weights == replies[2].weights
    assert replies[0].weights != replies[1].weights != replies[3].weights


@pytest.mark.parametrize("name", ["average.pi_logits.bias", "optimizer.network.exp_avg"])
def test_what_is_not_finite_replaces_nothing(make_learner: MakeLearner, name: str) -> None:
    config = tiny_run(optimizer__name="adam", stop__env_steps=10_000)
    learner = make_learner(config)
    feed(learner, speakers(learner)[0], config, 20)
    path = learner.save()
    files = [*path.parent.glob("checkpoint/*/*"), *([path] if name.startswith("average") else [])]
    kept = {file: file.read_bytes() for file in files}
    assert kept
    tensor = (learner._trainer.algorithm.tensors() | learner._trainer.optimizer.tensors())[name].data
    before = tensor.clone()
    tensor[0] = torch.inf
    learner.counters.updates += 1
    with pytest.raises(FloatingPointError, match=rf"^{name} is not finite; what was saved before is kept$"):
        learner.save()
    assert {file: file.read_bytes() for file in files} == kept
    tensor.copy_(before)  # so that it can end


def test_too_many_skipped_updates_in_a_row_end_the_run(
    make_learner: MakeLearner, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_run(learner__max_skipped_updates=3, stop__env_steps=10_000)
    spoil_losses(monkeypatch, lambda call: call >= 2)
    learner = make_learner(config)
    with pytest.raises(FloatingPointError, match="3 updates in a row were not finite"):
        feed(learner, speakers(learner)[0], config, 100)
    assert learner.counters.updates == 2


def test_weights_are_sent_where_asked_and_newer_and_packed_once_per_version(make_learner: MakeLearner) -> None:
    config = tiny_run(algorithm__replay_ratio=0.0)
    learner = make_learner(config)
    first, second = speakers(learner)

    def ask(actor: Speaker, **said: Any) -> Reply:
        actor.say(**said)
        work_off(learner)
        reply = actor.hear()
        assert reply is not None
        return reply

    a, b = ask(first, wants_weights=True), ask(second, wants_weights=True)
    assert a.weights is not None
    assert a.weights is b.weights
    assert ask(first, weights_version=0, wants_weights=True) == Reply(1, weights_version=0)
    ask(first, weights_version=0, unroll=made_up_unroll(config))
    assert learner.counters.updates == 1
    assert ask(first, weights_version=0) == Reply(3, weights_version=1)
    c, d = ask(first, weights_version=0, wants_weights=True), ask(second, weights_version=0, wants_weights=True)
    assert c.weights is not None
    assert c.weights is d.weights
    assert c.weights != a.weights
    assert all(name.startswith("network.") for name in weights.unpack(c.weights))


def test_weights_that_do_not_fit_are_refused_with_one_line(make_learner: MakeLearner) -> None:
    trained_file = Path(make_learner(tiny_run()).finish().weights)
    message = config_error(lambda: make_learner(tiny_run(load=str(trained_file), network__hidden_sizes=(8,))))
    assert str(trained_file) in message
    assert "network.hidden_sizes is " in message
    message = config_error(lambda: make_learner(tiny_run(load=str(trained_file), network__layer_norm=True)))
    assert "network.layer_norm is False, this run's is True" in message
    tensors, metadata = weights.read(trained_file)
    metadata["config"]["algorithm"]["name"] = "apex_dqn"
    trained_file.write_bytes(weights.pack(tensors, metadata))
    message = config_error(lambda: make_learner(tiny_run(load=str(trained_file))))
    assert str(trained_file) in message
    assert "algorithm.name" in message


def test_the_end_does_not_save_again_what_was_just_saved(
    make_learner: MakeLearner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    written: list[int] = []
    write = checkpoint.write

    def noted(folder: Path, number: int, *arguments: Any) -> Path:
        written.append(number)
        return write(folder, number, *arguments)

    monkeypatch.setattr(checkpoint, "write", noted)
    config = tiny_run(checkpoint__every=100, stop__env_steps=200)
    learner = make_learner(config)
    (actor, _) = speakers(learner)
    feed(learner, actor, config, 4)
    assert (written, learner.at_checkpoint) == ([], False)
    feed(learner, actor, config, 5, first=4)
    assert learner.at_checkpoint
    path = tmp_path / "run_0" / "weights.safetensors"
    assert weights.read(path)[1]["env_steps"] == 100
    assert len(written) == 1
    actor.say(unroll=numbered_unroll(config, 9))
    assert not work_off(learner)
    result = learner.finish()
    assert (result.reason, result.env_steps) == ("env_steps", 200)
    assert written[1:] == [result.updates]
    newest = checkpoint.newest(tmp_path / "run_0")
    assert newest
    assert checkpoint.load(newest).state["env_steps"] == weights.read(path)[1]["env_steps"] == 200


def test_weights_written_are_those_that_reached_the_target(make_learner: MakeLearner) -> None:
    config = tiny_run(evaluation__every=100, stop__at_return=10.0)
    learner = make_learner(config)
    actor, evaluator = known_speakers(learner.inbox, Peer("actor", 0, 0), EVALUATOR)
    assert evaluator.say(wants_weights=True) is None
    work_off(learner)
    assert evaluator.hear() is None  # it waits
    feed(learner, actor, config, 5)
    given = evaluator.hear()
    assert given is not None
    assert given.weights is not None
    assert weights.unpack_metadata(given.weights)["env_steps"] == 100
    learner._report()
    feed(learner, actor, config, 3, first=5)  # training goes on during the evaluation
    assert evaluator.say(rows=[{"eval_return": 11.0}], wants_weights=True) is None
    assert work_off(learner)
    again = evaluator.hear()
    assert again is not None
    assert (again.weights, again.confirms) == (given.weights, True)
    assert evaluator.say(rows=[{"eval_return": 10.0}], wants_weights=True) is None
    assert not work_off(learner)
    result = learner.finish()
    assert (result.reason, result.eval_return, result.env_steps) == ("at_return", 10.0, 160)
    best = [row.get("best_return") for row in lines(Path(result.folder)) if row["source"] == "learner"]
    assert (best[0], best[-1]) == (None, 10.0)
    written = Path(result.weights)
    tensors, metadata = weights.read(written)
    assert weights.pack(tensors, metadata | {"score": None}) == given.weights
    assert metadata["score"] == {"eval_return": 10.0, "episodes": 4, "greedy": True, "env_steps": 100}
    assert written.with_name("best.safetensors").read_bytes() == written.read_bytes()
    reply = evaluator.hear()
    assert reply is not None
    assert reply.stop


def test_minutes_end_the_run(make_learner: MakeLearner) -> None:
    config = tiny_run(stop__minutes=1e-6)
    learner = make_learner(config)
    speakers(learner)[0].say(unroll=numbered_unroll(config, 0), acting_s=1.0)
    assert not work_off(learner)
    result = learner.finish()
    assert (result.reason, result.env_steps) == ("minutes", 20)
    assert result.wall_s == pytest.approx(1, abs=0.9)


@pytest.mark.parametrize(("stop", "reason"), [({"env_steps": 20}, "env_steps"), ({"minutes": 1e-6}, "minutes")])
def test_a_run_at_its_end_ends_by_itself_whatever_it_is_told_meanwhile(
    make_learner: MakeLearner, stop: dict[str, Any], reason: str
) -> None:
    config = tiny_run(**{f"stop__{key}": value for key, value in stop.items()})
    learner = make_learner(config)
    speakers(learner)[0].say(unroll=numbered_unroll(config, 0), acting_s=1.0)
    Speaker(learner.inbox, Peer("manager", 0, 0)).say(stop="SIGINT", sequence=1)
    assert not work_off(learner)
    assert learner.finish().reason == reason


def test_the_last_whole_batch_of_a_budget_is_learned_from_if_there_is_no_replay(make_learner: MakeLearner) -> None:
    config = tiny_run(algorithm__name="actor_critic", algorithm__pipelined=True, stop__env_steps=100)
    learner = make_learner(config)
    feed(learner, speakers(learner)[0], config, 5)
    result = learner.finish()
    assert (result.reason, result.env_steps, result.updates) == ("env_steps", 100, 5)


def test_a_learner_started_again_reports_the_start_up_that_the_run_had(tmp_path: Path) -> None:
    config, now = tiny_run(checkpoint__every=20), time.monotonic()

    def started_up(run_id: str, acting_s: float, *, resume: bool = True) -> float:
        """Of a program begun 100 s ago, whose only actor acts for `acting_s` when a learner starts."""
        learner = Learner(config, CARTPOLE, tmp_path, run_id, now - 100, resume=resume)
        learner.inbox.expect({"actor_0": 0})
        actor = Speaker(learner.inbox, Peer("actor", 0, 0))
        for number in range(2):
            actor.say(run_id=run_id, unroll=numbered_unroll(config, number), acting_s=acting_s)
            work_off(learner)
        return learner.finish().startup_s

    first = started_up("one", 90.0, resume=False)
    assert first == pytest.approx(10, abs=5)
    assert started_up("one", 0.0) == first, "its actor was started again, too"
    assert started_up("another", 50.0) == pytest.approx(50, abs=5), "that of the program before"


@pytest.mark.parametrize(("every", "most"), [(0.0, 0), (1e-9, 100), (1000.0, 1)])
def test_histograms_are_written_when_asked_for_and_with_rows_only(
    make_learner: MakeLearner, tmp_path: Path, every: float, most: int
) -> None:
    config = tiny_run(logging__histograms_every_seconds=every, logging__every_seconds=1e-9)
    learner = make_learner(config)
    feed(learner, speakers(learner)[0], config, 4)
    learner.finish()
    rows = [step for step, _ in scalars(tmp_path / "run_0", "learner")["updates"]]
    found = histograms(tmp_path / "run_0", "learner")
    assert bool(found) == bool(most)
    for name, _ in learner._trainer.algorithm.network.named_parameters() if most else ():
        for kind in ("weights", "gradients"):
            steps = [step for step, _ in found[f"{kind}/{name}"]]
            assert steps == rows[:most]


def test_a_device_without_room_for_replay_is_named(make_learner: MakeLearner, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr("apex_acer.learner.parts.Storage", full)
    with pytest.raises(ConfigError, match=r"^replay\.device: cpu has no room for 2,000 steps; give cpu, or a smaller"):
        make_learner(tiny_run())
