"""Actors wait for updates: as many act as the next batch needs, each with the newest weights."""

from __future__ import annotations

import random
from typing import Any

import pytest

from apex_acer.config import RunConfig
from apex_acer.learner.inbox import Barrier, Post
from apex_acer.learner.learner import Learner
from apex_acer.learner.trainer import Trainer, Update
from apex_acer.protocol.messages import Message, Peer, Reply
from apex_acer.protocol.unroll import Batch
from tests.runs import RUN_ID, MakeLearner, Speaker, known_speakers, made_up_unroll, speakers, tiny_run, work_off

NEEDED = 3  # unrolls of a batch
ENVIRONMENTS = 4
Lags = list[list[int]]


def test_as_many_act_as_a_batch_needs_in_the_order_in_which_they_came() -> None:
    barrier = Barrier(3, lambda peer: True)

    def put(*indices: int) -> None:
        for index in indices:
            barrier.put(Post(Message(RUN_ID, Peer("actor", index, 0), 0), lambda reply: None))

    def released(num_collected: int = 0) -> list[int]:
        return [post.message.peer.index for post in barrier.release(num_collected)]

    put(0, 1, 2, 3, 4)
    assert released() == [0, 1, 2]
    assert released() == []  # these three act
    put(1)
    assert released(1) == []  # one is collected, two act
    put(0, 2)
    assert released(3) == []
    assert released() == [3, 4, 1]
    assert [post.message.peer.index for post in barrier.clear()] == [0, 2]


# ── a learner and its actors ──


def strict_run(**changes: Any) -> RunConfig:
    """Each batch is three unrolls; an update of PPO, the default, is two optimizer steps."""
    fixed: dict[str, Any] = {
        "algorithm__name": "ppo",
        "learner__batch_size": NEEDED * ENVIRONMENTS,
        "actors__environments": ENVIRONMENTS,
        "stop__env_steps": 10**6,
    }
    if "algorithm__name" not in changes:
        fixed |= {"algorithm__epochs": 2, "algorithm__minibatches": 1}
    return tiny_run(**(fixed | changes))


@pytest.fixture
def lags(monkeypatch: pytest.MonkeyPatch) -> Lags:
    """How many updates older the weights were that each segment was acted with, by batch."""
    found: Lags = []
    update = Trainer.update

    def spy(self: Trainer, batch: Batch, env_steps: int, updates: int) -> Update:
        found.append((updates - batch.weights_version).tolist())
        return update(self, batch, env_steps, updates)

    monkeypatch.setattr(Trainer, "update", spy)
    return found


def replace(learner: Learner, index: int, incarnation: int = 1) -> Speaker:
    """The successor of an actor, of which the manager has told the inbox."""
    learner.inbox.expect({f"actor_{index}": incarnation})
    return Speaker(learner.inbox, Peer("actor", index, incarnation))


def send(speaker: Speaker, config: RunConfig, version: int, **said: Any) -> Reply | None:
    """The reply, if there is one at once."""
    return speaker.say(unroll=made_up_unroll(config), weights_version=version, acting_s=0.0, **said)


def begin(learner: Learner, count: int) -> list[Speaker]:
    """Actors that have asked for weights; the first `NEEDED` have got them."""
    found = speakers(learner, count)
    for speaker in found:
        speaker.say(wants_weights=True)
    work_off(learner)
    assert [speaker.hear() is not None for speaker in found] == [index < NEEDED for index in range(count)]
    return found


def test_an_unroll_of_an_actor_that_was_replaced_costs_no_living_one_its_turn(
    make_learner: MakeLearner, lags: Lags
) -> None:
    """It waits in the inbox when the turn of its actor is passed on: there must not be one unroll too many."""
    config = strict_run(actors__count=4)
    learner = make_learner(config)
    first, second, third, fourth = begin(learner, 4)
    send(first, config, 0)
    replace(learner, 0)
    for speaker in (second, third):
        send(speaker, config, 0)
    work_off(learner)
    refused = first.hear()
    assert refused is not None
    assert refused.refused == "the actor was replaced"
    assert fourth.hear() is not None  # it has the turn
    send(fourth, config, 0)
    work_off(learner)
    assert lags == [[0] * NEEDED * ENVIRONMENTS]
    assert learner.inbox.num_refused == 1


def test_weights_that_are_not_the_newest_are_refused(make_learner: MakeLearner) -> None:
    config = strict_run(actors__count=1)
    learner = make_learner(config)
    (speaker,) = known_speakers(learner.inbox, Peer("actor", 0, 0))
    send(speaker, config, 7)
    work_off(learner)
    reply = speaker.hear()
    assert reply is not None
    assert reply.refused == "weights of version 7, expected 0"
    assert learner._queue.num_fresh == 0


@pytest.mark.parametrize("count", [1, 5])
def test_every_step_is_on_policy_if_actors_wait_though_some_come_and_go(
    make_learner: MakeLearner, lags: Lags, count: int
) -> None:
    """Some die with the turn, some with an unroll on its way; no living one is refused, and no batch is short."""
    config = strict_run(actors__count=count)
    learner, chance = make_learner(config), random.Random(0)
    cast = speakers(learner, count)
    has: dict[int, int] = {}  # by actor, the version of its weights
    acts: dict[int, int] = {}  # of those that make an unroll
    for speaker in cast:
        speaker.say(wants_weights=True)
    for _ in range(150):
        work_off(learner)
        for index, speaker in enumerate(cast):
            if reply := speaker.hear():
                assert not reply.refused
                # new ones come to those that wait without being asked for
                assert (reply.weights is None) == (has.get(index) == reply.weights_version)
                acts[index] = has[index] = reply.weights_version
        index = chance.randrange(count)
        if index in acts and chance.random() < 0.8:
            send(cast[index], config, acts.pop(index))
        elif chance.random() < 0.3:
            cast[index] = replace(learner, index, cast[index].peer.incarnation + 1)
            acts.pop(index, None)
            has.pop(index, None)
            cast[index].say(wants_weights=True)
    assert len(lags) > 10
    assert not any(map(any, lags))
    assert {len(lag) for lag in lags} == {NEEDED * ENVIRONMENTS}
    assert learner.counters.updates == 2 * len(lags)


def test_actors_that_wait_do_so_for_replayed_batches_too(make_learner: MakeLearner, lags: Lags) -> None:
    """Every other batch is a replayed one; the weights that actors get are those after it."""
    config = strict_run(
        algorithm__name="unreal",
        algorithm__pixel_control=0.0,
        algorithm__replay_ratio=1.0,
        replay__start=0,
        actors__count=1,
    )
    learner = make_learner(config)
    (speaker,) = known_speakers(learner.inbox, Peer("actor", 0, 0))
    speaker.say(wants_weights=True)
    for _ in range(NEEDED * 5):
        work_off(learner)
        reply = speaker.hear()
        assert reply is not None
        assert not reply.refused
        send(speaker, config, reply.weights_version)
    work_off(learner)
    assert learner.counters.updates == len(lags) == 10
    assert not any(map(any, lags[::2]))
    assert all(map(all, lags[1::2]))


def test_actors_that_go_on_are_a_bounded_number_of_updates_behind(make_learner: MakeLearner, lags: Lags) -> None:
    config = strict_run(algorithm__pipelined=True, algorithm__epochs=1, actors__count=6)
    learner = make_learner(config)
    cast, versions = speakers(learner, 6), [0] * 6
    for turn in range(20):
        for index, speaker in enumerate(cast):
            version = versions[index]  # of the weights before those that have come
            while reply := speaker.hear():
                assert not reply.refused
                versions[index] = reply.weights_version
            if turn % (1 + index % 3) == 0:  # some are slower than others
                send(speaker, config, version, wants_weights=True)
        work_off(learner)
    behind = [lag for batch in lags for lag in batch]
    assert 0 < max(behind) <= 3 * 2  # the slowest takes three turns, in each of which there are two batches at most
    assert min(behind) == 0


@pytest.mark.parametrize("pipelined", [False, True])
def test_everybody_is_told_to_stop_exactly_once(make_learner: MakeLearner, pipelined: bool) -> None:
    """Those that are held, that wait in the inbox and that act."""
    config = strict_run(actors__count=6, algorithm__pipelined=pipelined)
    learner = make_learner(config)
    cast = speakers(learner, 6)
    for speaker in cast:
        speaker.say(wants_weights=True)
    work_off(learner)
    acting = [speaker for speaker in cast if speaker.hear()]
    assert len(acting) == (6 if pipelined else NEEDED)
    send(acting[0], config, 0)
    work_off(learner)
    answered = acting[0].hear()
    send(acting[1], config, 0)
    learner.inbox.stop("SIGINT")
    learner.finish()
    assert (answered is not None) == pipelined
    acts = [*acting[2:], *([acting[0]] if answered else [])]
    late = {speaker.peer: send(speaker, config, 0) for speaker in acts}
    for speaker in cast:
        replies = [late[speaker.peer]] if speaker.peer in late else []
        assert [reply and reply.stop for reply in (*replies, *iter(speaker.hear, None))] == [True]
    learner.inbox.wait_stopped(0.0)
    assert learner.inbox.stopped == {speaker.peer for speaker in cast}


def test_peers_that_are_forgotten_begin_again(make_learner: MakeLearner) -> None:
    config = strict_run(actors__count=4)
    learner = make_learner(config)
    begin(learner, 4)
    learner.forget_peers()
    begin(learner, 4)


def test_an_update_without_a_step_changes_no_version(
    make_learner: MakeLearner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch whose gradient is not finite: actors go on with the weights that they have."""
    config = strict_run(actors__count=3)
    learner = make_learner(config)
    actors = begin(learner, 3)
    monkeypatch.setattr(learner._trainer.optimizer, "step", lambda loss, *_: (loss, False))
    for _ in range(2):
        for speaker in actors:
            send(speaker, config, 0)
        work_off(learner)
        assert [reply and (reply.weights, reply.refused) for reply in (speaker.hear() for speaker in actors)] == [
            (None, "")
        ] * 3
    assert (learner.counters.updates, learner.counters.skipped) == (0, 4)
