from __future__ import annotations

import logging
import threading
import time
from typing import Any

import numpy as np
import pytest

from apex_acer.config import RunConfig
from apex_acer.learner.inbox import Inbox
from apex_acer.protocol.messages import Peer, Reply
from apex_acer.protocol.specification import EnvironmentSpec
from apex_acer.protocol.unroll import PRIORITY
from tests.runs import BOX, CARTPOLE, Speaker, known_speakers, made_up_unroll, tiny_layout, tiny_run

CONFIG, RECURRENT = tiny_run(), tiny_run(network__lstm=8)
PRIORITIZED = tiny_run(algorithm__name="apex_dqn", replay__sampling="prioritized")
CONTINUOUS = tiny_run(algorithm__name="sac")
ACTOR, EVALUATOR = Peer("actor", 0, 0), Peer("evaluator", 0, 0)


def make_inbox(max_waiting: int = 2, config: RunConfig = CONFIG, spec: EnvironmentSpec = CARTPOLE) -> Inbox:
    return Inbox("this-run", tiny_layout(config, spec), config.actors.environments, spec, max_waiting)


@pytest.fixture
def inbox() -> Inbox:
    return make_inbox()


@pytest.fixture
def actor(inbox: Inbox) -> Speaker:
    return known_speakers(inbox, ACTOR)[0]


def with_value(array: np.ndarray, value: float) -> np.ndarray:
    """One element is another."""
    changed = array.copy()
    changed[(2, 1, *[0] * (array.ndim - 2))] = value
    return changed


def fields(**replaced: Any) -> dict[str, Any]:
    return {"unroll": made_up_unroll(CONFIG, **replaced)}


def state(**replaced: Any) -> dict[str, Any]:
    """A recurrent unroll; parts of its state are replaced, or left out for None."""
    parts = made_up_unroll(RECURRENT).state | replaced
    return {"unroll": made_up_unroll(RECURRENT, state={name: part for name, part in parts.items() if part is not None})}


def acted(action: np.ndarray) -> dict[str, Any]:
    return {"unroll": made_up_unroll(CONTINUOUS, spec=BOX, action=action)}


def prioritized(priority: np.ndarray) -> dict[str, Any]:
    return {"unroll": made_up_unroll(PRIORITIZED, extras={PRIORITY: priority})}


PLAIN = made_up_unroll(CONFIG)
LOG_PROBS = PLAIN.extras["log_probs"]
CALM = np.zeros((5, 4, 2), np.float32)
HIDDEN = np.zeros((4, 8), np.float32)
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "run id": ({"run_id": "that-run"} | fields(), "run id 'that-run' is another run's"),
    "incarnation gone": ({"peer": Peer("actor", 0, 7)} | fields(), "incarnation 7 is not the current one"),
    "metric": ({"rows": [{"two\nlines": 0.5}]}, "1 to 100 printable characters"),
    "client": ({"clients": {"../robot": {"clients": 1.0}}}, "a client is named '../robot'; allowed: 1 to 100 letters"),
    "metric of a client": ({"clients": {"robot": {"two\nlines": 0.5}}}, "1 to 100 printable characters"),
    "slot": ({"slot": 1} | fields(), "slot 1, allowed 0 to 0"),
    "sequence skipped": ({"sequence": 1} | fields(), "sequence 1, expected 0"),
    "sequence negative": ({"sequence": -1} | fields(), "sequence -1, expected 0"),
    "a shape": (fields(reward=np.ones((5, 3), np.float32)), "reward: float32[5, 3], expected float32[5, 4]"),
    "a type": (fields(mask=np.ones((5, 4), np.uint8)), "mask: uint8[5, 4], expected bool[5, 4]"),
    "extras missing": (fields(extras={}), "extras: keys [], expected ['log_probs']"),
    "state unexpected": (fields(state={"hidden": HIDDEN}), "state: keys ['hidden'], expected []"),
    "action below": (fields(action=with_value(PLAIN.action, -1)), "action: -1 to "),
    "action above": (fields(action=with_value(PLAIN.action, 2)), " to 2, allowed 0 to 1"),
    "reward": (fields(reward=with_value(PLAIN.reward, np.nan)), "reward: not finite"),
    "extras": (fields(extras={"log_probs": with_value(LOG_PROBS, -np.inf)}), "log_probs: not finite"),
    "obs": (fields(obs=with_value(PLAIN.obs, np.nan)), "obs: not finite"),
}
OTHERS: list[tuple[RunConfig, EnvironmentSpec, dict[str, Any], str]] = [
    (RECURRENT, CARTPOLE, state(cell=None), "state: keys ['hidden'], expected ['cell', 'hidden']"),
    (RECURRENT, CARTPOLE, state(cell=with_value(HIDDEN, -np.inf)), "cell: not finite"),
    (CONTINUOUS, BOX, acted(with_value(CALM, np.nan)), "action: not finite"),
    (CONTINUOUS, BOX, acted(with_value(CALM, 1.5)), "action: 0.0 to 1.5, allowed -1 to 1"),
    (CONTINUOUS, BOX, acted(with_value(CALM, -3)), "action: -3.0 to 0.0, allowed -1 to 1"),
    (PRIORITIZED, CARTPOLE, prioritized(with_value(CALM[..., 0], -1e-6)), "priority: negative"),
]


@pytest.mark.parametrize(
    ("config", "spec", "said", "why"),
    [*(pytest.param(CONFIG, CARTPOLE, *row, id=name) for name, row in REFUSED.items()), *OTHERS],
)
def test_refused_with_one_line_counted_and_kept_from_the_learner(
    config: RunConfig, spec: EnvironmentSpec, said: dict[str, Any], why: str
) -> None:
    inbox = make_inbox(2, config, spec)
    (actor,) = known_speakers(inbox, ACTOR)
    reply = actor.say(**said)
    assert reply is not None
    assert why in reply.refused
    assert "\n" not in reply.refused
    assert not reply.stop
    assert inbox.num_refused == 1
    assert inbox.take_unroll(0) is None
    assert inbox.take_other() is None
    fresh = Speaker(inbox, ACTOR)  # a refused message leaves the sequence where it was
    assert fresh.say(unroll=made_up_unroll(config, spec=spec, mask=np.zeros((5, 4), bool))) is None
    assert inbox.take_unroll(0) is not None


def test_the_ends_of_a_range_are_allowed() -> None:
    ends = np.random.default_rng(0).choice(np.array([-1, 1], np.float32), (5, 4, 2))
    for config, spec, unroll in (
        (CONTINUOUS, BOX, acted(ends)["unroll"]),
        (PRIORITIZED, CARTPOLE, prioritized(CALM[..., 0])["unroll"]),
    ):
        (actor,) = known_speakers(make_inbox(2, config, spec), ACTOR)
        assert actor.say(unroll=unroll) is None


def test_a_row_is_not_refused_for_a_metric_of_the_user_s_own(inbox: Inbox, actor: Speaker) -> None:
    rows = [{"my_loss": 0.5, "Q(s, a) of the ε-greedy action": 1.0}]
    assert actor.say(rows=rows, unroll=PLAIN) is None
    post = inbox.take_unroll(0)
    assert post is not None
    assert post.message.rows == rows


def test_each_kind_of_refusal_is_logged_once(inbox: Inbox, actor: Speaker, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "apex_acer.learner.inbox"):
        for sequence in (3, 4, 5):
            actor.say(sequence=sequence)
        actor.say(run_id="that-run")
        actor.say(run_id="that-run")
    assert inbox.num_refused == 5
    assert len(caplog.records) == 2


@pytest.mark.parametrize(
    ("rows", "unroll", "why"),
    [([], PLAIN, "only actors send unrolls"), ([{"eval_return": np.nan}], None, "a row without a finite eval_return")],
)
def test_an_evaluator_sends_scores_alone(inbox: Inbox, rows: list[dict[str, float]], unroll: Any, why: str) -> None:
    (evaluator,) = known_speakers(inbox, EVALUATOR)
    reply = evaluator.say(rows=rows, unroll=unroll)
    assert reply is not None
    assert reply.refused == why


def test_stop_answers_what_waits_and_what_comes(inbox: Inbox, actor: Speaker) -> None:
    manager = Speaker(inbox, Peer("manager", 0, 1))
    manager.say(incarnations={"evaluator": 0})
    evaluator = Speaker(inbox, EVALUATOR)
    assert actor.say(unroll=PLAIN) is None
    assert evaluator.say() is None
    inbox.stop("env_steps")
    assert actor.hear() == Reply(0, stop=True)
    assert evaluator.hear() == Reply(0, stop=True)
    assert actor.say(unroll=PLAIN) == Reply(1, stop=True)
    assert inbox.stopped == {ACTOR, EVALUATOR}
    assert inbox.empty
    assert inbox.take_unroll(10) is None
    inbox.stop("minutes")
    assert inbox.stop_reason == "env_steps"


def test_take_unroll_waits_no_longer_than_its_timeout_or_than_needed(inbox: Inbox, actor: Speaker) -> None:
    start = time.monotonic()
    assert inbox.take_unroll(0.1) is None
    assert 0.09 <= time.monotonic() - start < 1
    later = threading.Timer(0.05, lambda: actor.say(unroll=PLAIN))
    later.start()
    post = inbox.take_unroll(10)
    later.join()
    assert post is not None
    assert post.message.unroll is PLAIN
    actor.say()
    assert inbox.take_unroll(10) is None
    assert inbox.take_other() is not None
    told = Speaker(inbox, Peer("manager", 0, 1)).say(stop="SIGTERM")
    assert told is not None
    assert told.stop
    assert inbox.take_unroll(10) is None
    assert inbox.stop_reason == "SIGTERM"
    assert time.monotonic() - start < 5


def test_wait_stopped_returns_once_every_actor_came_that_ever_spoke(inbox: Inbox) -> None:
    first, second, _, evaluator = known_speakers(inbox, ACTOR, Peer("actor", 1, 0), Peer("actor", 2, 0), EVALUATOR)
    for speaker in (first, second, evaluator):
        speaker.say()
        assert inbox.take_other() is not None
    inbox.stop("env_steps")
    first.say()
    start = time.monotonic()
    inbox.wait_stopped(0.1)
    assert 0.09 <= time.monotonic() - start < 1
    later = threading.Timer(0.05, second.say)
    later.start()
    inbox.wait_stopped(10)
    later.join()
    assert time.monotonic() - start < 5
    assert inbox.stopped == {first.peer, second.peer}


def progress(manager: Speaker) -> dict[str, list[int]]:
    reply = manager.say()
    assert reply is not None
    assert reply.status["env_steps"] == 12
    told: dict[str, list[int]] = reply.status["progress"]
    assert told.pop("learner")[1] == 0
    return {name: numbers for name, numbers in told.items() if name != "manager"}


def test_the_manager_hears_how_far_everybody_is_and_who_waits() -> None:
    inbox = make_inbox(max_waiting=4)
    manager = Speaker(inbox, Peer("manager", 0, 0))
    inbox.status = {"env_steps": 12}
    assert progress(manager) == {}
    manager.say(incarnations={"actor_0": 0, "actor_1": 0, "evaluator": 0})
    first, second, evaluator = (Speaker(inbox, peer) for peer in (ACTOR, Peer("actor", 1, 0), EVALUATOR))
    first.say()
    evaluator.say()
    second.say(unroll=PLAIN)
    second.say(unroll=PLAIN)
    assert progress(manager) == {"actor_0": [1, 1], "evaluator": [1, 1], "actor_1": [2, 2]}
    post = inbox.take_unroll(0)
    assert post is not None
    assert progress(manager)["actor_1"] == [2, 2]  # taken, but not in replay yet
    post.answer(Reply(0))
    assert progress(manager) == {"actor_0": [1, 1], "evaluator": [1, 1], "actor_1": [2, 1]}
    manager.say(incarnations={"actor_1": 1})
    assert progress(manager) == {"actor_0": [1, 1], "evaluator": [1, 1]}


def test_unrolls_that_wait_from_an_actor_that_was_replaced_are_learned_from_and_answered_once(inbox: Inbox) -> None:
    manager = Speaker(inbox, Peer("manager", 0, 0))
    manager.say(incarnations={"actor_0": 0})
    old, new = Speaker(inbox, ACTOR), Speaker(inbox, Peer("actor", 0, 1))
    for _ in range(2):
        old.say(unroll=PLAIN)
    manager.say(incarnations={"actor_0": 1})
    for _ in range(2):  # they take no place from the new one's
        assert new.say(unroll=PLAIN) is None
    refused = new.say(unroll=PLAIN)
    assert refused is not None
    assert refused.refused == "more than 2 unrolls wait"
    posts = [inbox.take_unroll(0) for _ in range(4)]
    for post, speaker in zip(posts, (old, old, new, new), strict=True):
        assert post is not None
        assert post.message.peer == speaker.peer
        post.answer(Reply(post.message.sequence))
        assert speaker.hear() == Reply(post.message.sequence)
        assert speaker.hear() is None
    assert inbox.empty
