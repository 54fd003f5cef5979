from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from apex_acer.algorithms.acer.acer import Acer
from apex_acer.algorithms.algorithm import LossOutput
from apex_acer.algorithms.dqn.apex_dqn import ApexDqn
from apex_acer.config import ConfigError, RunConfig
from apex_acer.learner.learner import Learner
from apex_acer.networks import weights
from apex_acer.protocol.messages import Peer, Reply
from apex_acer.protocol.unroll import Batch
from apex_acer.storage import checkpoint
from tests.boards import histograms, lines, scalars
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


def fresh_batches(trained_on: list[Batch], batch_size: int, segments: int) -> list[list[int]]:
    """The batches of consecutive new segments, found in order among those trained on."""
    found, expected = [], [list(range(i, i + batch_size)) for i in range(0, segments - batch_size + 1, batch_size)]
    for batch in map(segment_numbers, trained_on):
        if len(found) < len(expected) and batch == expected[len(found)]:
            found.append(batch)
    return found


@pytest.mark.parametrize("settings", [{"replay__start": 2000}, {"replay__start": 0, "algorithm__replay_ratio": 0.0}])
def test_every_segment_is_trained_on_fresh_exactly_once(
    make_learner: MakeLearner, trained_on: list[Batch], settings: dict[str, Any]
) -> None:
    config = tiny_run(learner__batch_size=3, stop__env_steps=10_000, **settings)
    learner = make_learner(config)
    feed(learner, speakers(learner)[0], config, 40)
    assert [n for batch in trained_on for n in segment_numbers(batch)] == list(
        range(159)
    )  # the 160th waits for its batch
    assert learner.counters.updates == 53


@pytest.mark.parametrize("batch_size", [3, 8])
def test_fresh_sequences_are_not_overwritten_before_they_were_trained_on(
    make_learner: MakeLearner, trained_on: list[Batch], batch_size: int
) -> None:
    config = tiny_run(
        learner__batch_size=batch_size,
        replay__capacity=(batch_size + 4) * 5,
        replay__start=0,
        algorithm__replay_ratio=2.0,
        stop__env_steps=10_000,
    )
    learner = make_learner(config)
    actors = speakers(learner)
    for number in range(0, 40, 4):  # four unrolls wait at once
        for i in range(4):
            actors[i % 2].say(unroll=numbered_unroll(config, number + i))
        work_off(learner)
    assert len(fresh_batches(trained_on, batch_size, 160)) == 160 // batch_size
    assert len(trained_on) > 160 // batch_size


def test_env_steps_count_what_is_not_learned_from_but_no_dummy_steps(make_learner: MakeLearner) -> None:
    config = tiny_run()
    learner = make_learner(config)
    mask = np.ones((5, 4), bool)
    mask[1, 2] = mask[3, 0] = mask[4, 0] = False
    (actor, _) = speakers(learner)
    actor.say(unroll=made_up_unroll(config, mask=mask), unlearned_steps=30)
    work_off(learner)
    assert learner.counters.env_steps == 47
    learner.finish()
    assert learner._reporter.status()["rows"]["learner"]["replay_steps"] == 17


def test_replay_ratio_is_near_its_setting(make_learner: MakeLearner) -> None:
    config = tiny_run(algorithm__replay_ratio=3.0, stop__env_steps=100_000)
    learner = make_learner(config)
    feed(learner, speakers(learner)[0], config, 120)
    learner.finish()
    assert learner._reporter.status()["rows"]["learner"]["replay_ratio"] == pytest.approx(3.0, rel=0.2)
    assert learner.counters.updates == pytest.approx(120 + 3 * 115, rel=0.2)


def test_lag_and_frames_are_as_defined(tmp_path: Path) -> None:
    """How many updates the weights that acted are older; env steps times the action repeat."""
    config = tiny_run(algorithm__replay_ratio=0.0, logging__every_seconds=1000.0)
    learner = Learner(config, dataclasses.replace(CARTPOLE, action_repeat=4), tmp_path, RUN_ID, time.monotonic())
    feed(learner, speakers(learner)[0], config, 5, weights_version=0)
    learner.finish()
    (row,) = lines(tmp_path)
    assert (row["updates"], row["policy_lag"]) == (5, 2.0)  # the mean of 0 to 4
    assert (row["env_steps"], row["frames"]) == (100, 400)


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


def test_a_batch_without_a_sample_leaves_the_network_as_it_was(
    make_learner: MakeLearner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where all that was drawn are dummy steps; momentum alone must not move the weights."""
    loss, counts = ApexDqn.loss, []

    def counted(self: ApexDqn, samples: Any) -> LossOutput:
        output = loss(self, samples)
        counts.append(int(output.num_samples))
        return output

    monkeypatch.setattr(ApexDqn, "loss", counted)
    config = tiny_run(algorithm__name="apex_dqn", learner__batch_size=1, replay__start=0, stop__env_steps=10_000)
    learner = make_learner(config)
    (actor, _) = speakers(learner)
    for number in range(20):
        actor.say(unroll=numbered_unroll(config, number, mask=np.random.default_rng(number).random((5, 4)) < 0.5))
        work_off(learner)
    learner.finish()
    with_samples = sum(map(bool, counts))
    assert 20 < with_samples < len(counts) - 20
    assert learner.counters.updates == with_samples
    assert learner._reporter.status()["rows"]["learner"]["skipped_updates"] == 0


@pytest.mark.parametrize("module", ["network", "average"])
def test_what_is_not_finite_replaces_nothing(make_learner: MakeLearner, module: str) -> None:
    learner = make_learner(tiny_run(stop__env_steps=10_000))
    path = learner.save()
    files = {file: file.read_bytes() for file in path.parent.rglob("*") if file.suffix in (".safetensors", ".json")}
    tensor = next(learner._trainer.algorithm.modules[module].parameters()).data
    kept = tensor.clone()
    tensor[0] = torch.inf
    learner.counters.updates += 1
    with pytest.raises(FloatingPointError, match=rf"^{module}\..* is not finite; what was saved before is kept$"):
        learner.save()
    assert {file: file.read_bytes() for file in files} == files
    tensor.copy_(kept)  # so that it can end


def test_a_checkpoint_that_is_not_finite_replaces_none(make_learner: MakeLearner) -> None:
    config = tiny_run(optimizer__name="adam", stop__env_steps=10_000)
    learner = make_learner(config)
    feed(learner, speakers(learner)[0], config, 20)
    path = learner.save()
    before = checkpoint.newest(path.parent)
    learner._trainer.optimizer.tensors()["optimizer.network.exp_avg"][0] = torch.nan
    learner.counters.updates += 1
    with pytest.raises(FloatingPointError, match=r"^optimizer\.network\.exp_avg is not finite"):
        learner.save()
    assert checkpoint.newest(path.parent) == before


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


@pytest.fixture
def trained_file(make_learner: MakeLearner) -> Path:
    config = tiny_run()
    learner = make_learner(config)
    feed(learner, speakers(learner)[0], config, 20)
    return Path(learner.finish().weights)


def test_load_restores_the_network_and_its_average(make_learner: MakeLearner, trained_file: Path) -> None:
    before, _ = weights.read(trained_file)
    pairs = [(before[name], before[f"average.{name.removeprefix('network.')}"]) for name in before if "network" in name]
    assert pairs
    assert any(not torch.equal(network, average) for network, average in pairs)
    learner = make_learner(tiny_run(load=str(trained_file), seed=5))
    after, _ = weights.read(learner.finish().weights)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def rewrite(path: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, Any]) -> None:
    path.write_bytes(weights.pack(tensors, metadata))


def other_shape(path: Path) -> RunConfig:
    return tiny_run(load=str(path), network__hidden_sizes=(8,))


def other_algorithm(path: Path) -> RunConfig:
    tensors, metadata = weights.read(path)
    metadata["config"]["algorithm"]["name"] = "apex_dqn"
    rewrite(path, tensors, metadata)
    return tiny_run(load=str(path))


def missing_tensor(path: Path) -> RunConfig:
    tensors, metadata = weights.read(path)
    del tensors[min(name for name in tensors if name.startswith("network."))]
    rewrite(path, tensors, metadata)
    return tiny_run(load=str(path))


def missing_module(path: Path) -> RunConfig:
    tensors, metadata = weights.read(path)
    rewrite(path, {name: t for name, t in tensors.items() if not name.startswith("average.")}, metadata)
    return tiny_run(load=str(path))


def surplus_tensor(path: Path) -> RunConfig:
    tensors, metadata = weights.read(path)
    rewrite(path, tensors | {"network.surplus": torch.zeros(2)}, metadata)
    return tiny_run(load=str(path))


def truncated(path: Path) -> RunConfig:
    path.write_bytes(path.read_bytes()[:-100])
    return tiny_run(load=str(path))


def empty(path: Path) -> RunConfig:
    path.write_bytes(b"")
    return tiny_run(load=str(path))


def foreign(path: Path) -> RunConfig:
    path.write_bytes(b"not weights " * 100)
    return tiny_run(load=str(path))


def metadata_of_another_form(path: Path) -> RunConfig:
    tensors, _ = weights.read(path)
    rewrite(path, tensors, [1, 2])  # type: ignore[arg-type]
    return tiny_run(load=str(path))


BAD_FILES = {
    other_shape: "network.hidden_sizes is ",
    other_algorithm: "algorithm.name",
    missing_tensor: "is missing",
    missing_module: "tensor average.pi_logits.bias is missing; expected [2]",
    surplus_tensor: "tensor network.surplus",
    truncated: "not a whole safetensors file",
    empty: "not a whole safetensors file",
    foreign: "not a whole safetensors file",
    metadata_of_another_form: "",
}


@pytest.mark.parametrize(("spoil", "names"), BAD_FILES.items(), ids=[spoil.__name__ for spoil in BAD_FILES])
def test_load_refuses_with_one_line(
    make_learner: MakeLearner, trained_file: Path, spoil: Callable[[Path], RunConfig], names: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        make_learner(spoil(trained_file))
    message = str(raised.value)
    assert "\n" not in message
    assert str(trained_file) in message
    assert names in message


def test_checkpoint_every_writes_weights(make_learner: MakeLearner, tmp_path: Path) -> None:
    config = tiny_run(checkpoint__every=100)
    learner = make_learner(config)
    (actor, _) = speakers(learner)
    path = tmp_path / "run_0" / "weights.safetensors"
    feed(learner, actor, config, 4)
    assert not path.exists()
    feed(learner, actor, config, 1, first=4)
    assert weights.read(path)[1]["env_steps"] == 100
    feed(learner, actor, config, 7, first=5)
    assert weights.read(path)[1]["env_steps"] == 200
    assert [file.name for file in path.parent.glob(".*")] == []


def test_the_end_does_not_save_again_what_was_just_saved(
    make_learner: MakeLearner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    written: list[int] = []
    write = checkpoint.write

    def noted(folder: Path, number: int, *arguments: Any) -> Path:
        written.append(number)
        return write(folder, number, *arguments)

    monkeypatch.setattr(checkpoint, "write", noted)
    config = tiny_run(checkpoint__every=100, stop__env_steps=100)
    learner = make_learner(config)
    (actor, _) = speakers(learner)
    feed(learner, actor, config, 4)
    assert (written, learner.at_checkpoint) == ([], False)
    actor.say(unroll=numbered_unroll(config, 4))
    assert not work_off(learner)
    assert learner.at_checkpoint
    updates = learner.counters.updates
    learner.finish()
    assert written == [updates]
    assert checkpoint.newest(tmp_path / "run_0") == tmp_path / "run_0" / "checkpoint" / str(updates)


def test_the_end_saves_what_came_after_the_last_checkpoint(make_learner: MakeLearner, tmp_path: Path) -> None:
    config = tiny_run(checkpoint__every=100)
    learner = make_learner(config)
    feed(learner, speakers(learner)[0], config, 6)
    learner.finish()
    path = checkpoint.newest(tmp_path / "run_0")
    assert path is not None
    assert checkpoint.load(path).state["env_steps"] == 120
    assert len(list(path.parent.iterdir())) == 1


def evaluating(learner: Learner, config: RunConfig) -> tuple[Speaker, Speaker]:
    """An actor, and an evaluator that has asked for weights and waits."""
    actor, evaluator = known_speakers(learner.inbox, Peer("actor", 0, 0), EVALUATOR)
    assert evaluator.say(wants_weights=True) is None
    work_off(learner)
    assert evaluator.hear() is None
    return actor, evaluator


def snapshot_at(reply: Reply) -> int:
    """The environment steps that the weights handed out were trained for."""
    assert reply.weights is not None
    return int(weights.unpack_metadata(reply.weights)["env_steps"])


def test_weights_written_are_those_that_reached_the_target(make_learner: MakeLearner) -> None:
    config = tiny_run(evaluation__every=100, stop__at_return=10.0)
    learner = make_learner(config)
    actor, evaluator = evaluating(learner, config)
    feed(learner, actor, config, 5)
    given = evaluator.hear()
    assert given is not None
    assert given.weights is not None
    assert snapshot_at(given) == 100
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
    written = Path(result.weights)
    tensors, metadata = weights.read(written)
    assert weights.pack(tensors, metadata | {"score": None}) == given.weights
    assert metadata["score"] == {"eval_return": 10.0, "episodes": 4, "greedy": True, "env_steps": 100}
    assert written.with_name("best.safetensors").read_bytes() == written.read_bytes()
    reply = evaluator.hear()
    assert reply is not None
    assert reply.stop


def test_best_weights_are_those_of_the_best_evaluation(make_learner: MakeLearner, tmp_path: Path) -> None:
    config = tiny_run(evaluation__every=100, stop__at_return=99.0, stop__env_steps=10_000)
    learner = make_learner(config)
    actor, evaluator = evaluating(learner, config)
    given: list[bytes] = []
    for number, scores in enumerate(((3.0,), (12.0, 9.0), (5.0,))):
        feed(learner, actor, config, 5, first=5 * number)
        for score in scores:
            reply = evaluator.hear()
            assert reply is not None
            evaluator.say(rows=[{"eval_return": score}], wants_weights=True)
            assert work_off(learner)
        given.append(reply.weights)
    assert len(set(given)) == 3
    tensors, metadata = weights.read(tmp_path / "run_0" / "best.safetensors")
    assert (metadata["score"]["eval_return"], metadata["score"]["env_steps"]) == (9.0, 200)
    before = weights.unpack_metadata(given[1])["score"]
    assert (before["eval_return"], before["env_steps"]) == (3.0, 100)
    assert weights.pack(tensors, metadata | {"score": before}) == given[1]
    assert learner._reporter.status()["best"] == 9.0
    result = learner.finish()
    assert result.eval_return == 5.0
    assert weights.read(result.weights)[1]["score"]["eval_return"] == 5.0


def test_an_evaluator_that_is_late_gets_the_newest_weights(make_learner: MakeLearner) -> None:
    config = tiny_run(evaluation__every=100)
    learner = make_learner(config)
    actor, evaluator = known_speakers(learner.inbox, Peer("actor", 0, 0), EVALUATOR)
    feed(learner, actor, config, 16)
    evaluator.say(wants_weights=True)
    work_off(learner)
    reply = evaluator.hear()
    assert reply is not None
    assert snapshot_at(reply) == 300


@pytest.mark.parametrize(
    ("settings", "reason"),
    [({"stop__env_steps": 100}, "env_steps"), ({"stop__minutes": 1e-6}, "minutes")],
)
def test_budget_ends_the_run(make_learner: MakeLearner, settings: dict[str, Any], reason: str) -> None:
    config = tiny_run(**settings)
    learner = make_learner(config)
    (actor, _) = speakers(learner)
    for number in range(5):
        actor.say(unroll=numbered_unroll(config, number), acting_s=1.0)
        going = work_off(learner)
    assert not going
    result = learner.finish()
    assert result.reason == reason
    assert result.env_steps <= 100
    assert result.wall_s == pytest.approx(1, abs=0.9)


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


@pytest.mark.parametrize(("capacity", "said"), [(20, "972 bytes"), (20_000, "972.0 kB")])
def test_the_size_of_replay_is_said_in_units_that_fit(
    make_learner: MakeLearner, capacity: int, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "apex_acer")
    make_learner(tiny_run(replay__capacity=capacity, replay__start=0, learner__batch_size=1, actors__environments=1))
    assert f"replay holds up to {said}" in caplog.text


def test_rows_of_every_process_are_written_and_shown(make_learner: MakeLearner, tmp_path: Path) -> None:
    config = tiny_run()
    learner = make_learner(config)
    (actor, _) = speakers(learner)
    actor.say(rows=[{"exploration": 0.5}])
    work_off(learner)
    learner.finish()
    rows = [json.loads(line) for line in (tmp_path / "run_0" / "metrics.jsonl").read_text().splitlines()]
    assert {row["source"] for row in rows} == {"actor_0", "learner"}
    assert learner._reporter.status()["rows"]["actor_0"]["exploration"] == 0.5


def test_a_row_with_a_value_that_is_not_finite_is_written_as_null(make_learner: MakeLearner, tmp_path: Path) -> None:
    learner = make_learner(tiny_run())
    (actor, _) = speakers(learner)
    actor.say(rows=[{"exploration": float("inf")}])
    work_off(learner)
    first = (tmp_path / "run_0" / "metrics.jsonl").read_text().splitlines()[0]
    assert json.loads(first)["exploration"] is None


@pytest.mark.parametrize(("every", "most"), [(0.0, 0), (1e-9, 100), (1000.0, 1)])
def test_histograms_are_written_when_asked_for_and_with_rows_only(
    make_learner: MakeLearner, tmp_path: Path, every: float, most: int
) -> None:
    config = tiny_run(logging__histograms_every_seconds=every, logging__every_seconds=1e-9)
    learner = make_learner(config)
    feed(learner, speakers(learner)[0], config, 10)
    learner.finish()
    rows = [step for step, _ in scalars(tmp_path / "run_0", "learner")["updates"]]
    found = histograms(tmp_path / "run_0", "learner")
    assert bool(found) == bool(most)
    for name, _ in learner._trainer.algorithm.network.named_parameters() if most else ():
        for kind in ("weights", "gradients"):
            steps = [step for step, _ in found[f"{kind}/{name}"]]
            assert steps == rows[:most]


def test_the_best_score_is_in_the_rows_once_there_is_one(make_learner: MakeLearner, tmp_path: Path) -> None:
    config = tiny_run(evaluation__every=20, logging__every_seconds=1e-9)
    learner = make_learner(config)
    actor, evaluator = known_speakers(learner.inbox, Peer("actor", 0, 0), EVALUATOR)
    for score in (None, 7.0, 3.0):
        evaluator.say(wants_weights=True, rows=[] if score is None else [{"eval_return": score}])
        feed(learner, actor, config, 1)
    learner.finish()
    assert {value for _, value in scalars(tmp_path / "run_0", "learner")["best_return"]} == {7.0}


def test_a_device_without_room_for_replay_is_named(make_learner: MakeLearner, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr("apex_acer.learner.parts.Storage", full)
    with pytest.raises(ConfigError, match=r"^replay\.device: cpu has no room for 2,000 steps; give cpu, or a smaller"):
        make_learner(tiny_run())
