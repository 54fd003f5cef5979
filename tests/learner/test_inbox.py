from __future__ import annotations

import dataclasses
import logging
import threading
import time
from typing import Any

import numpy as np
import pytest

from apex_acer.learner.inbox import Inbox
from apex_acer.protocol.messages import Peer, Reply
from apex_acer.protocol.unroll import Unroll, layout
from tests.runs import BOX, CARTPOLE, Speaker, known_speakers, made_up_unroll, tiny_layout, tiny_run

CONFIG = tiny_run()
ACTOR, EVALUATOR = Peer("actor", 0, 0), Peer("evaluator", 0, 0)


def make_inbox(max_waiting: int = 2) -> Inbox:
    return Inbox("this-run", tiny_layout(CONFIG), CONFIG.actors.environments, CARTPOLE, max_waiting)


@pytest.fixture
def inbox() -> Inbox:
    return make_inbox()


@pytest.fixture
def actor(inbox: Inbox) -> Speaker:
    return known_speakers(inbox, ACTOR)[0]


def with_value(name: str, value: float) -> dict[str, Any]:
    """An unroll with one bad element."""
    unroll = made_up_unroll(CONFIG)
    if name == "log_probs":
        array = unroll.extras[name]
        array[2, 1, 0] = value
        return {"unroll": unroll}
    getattr(unroll, name)[2, 1] = value
    return {"unroll": unroll}


def replaced(**fields: Any) -> dict[str, Any]:
    return {"unroll": made_up_unroll(CONFIG, **fields)}


REFUSED = {
    "run id": {"run_id": "that-run"} | replaced(),
    "incarnation gone": {"peer": Peer("actor", 0, 7)} | replaced(),
    "incarnation to come": {"peer": Peer("actor", 0, 1)} | replaced(),
    "actor unknown": {"peer": Peer("actor", 9, 0)} | replaced(),
    "role unknown": {"peer": Peer("learner", 0, 0)} | replaced(),
    "slot": {"slot": 1} | replaced(),
    "sequence skipped": {"sequence": 1} | replaced(),
    "sequence negative": {"sequence": -1} | replaced(),
    "reward's shape": replaced(reward=np.ones((5, 3), np.float32)),
    "too long": {"unroll": made_up_unroll(tiny_run(algorithm__unroll_length=6))},
    "too few columns": {"unroll": made_up_unroll(tiny_run(actors__environments=3))},
    "reward's dtype": replaced(reward=np.ones((5, 4), np.float64)),
    "obs's dtype": replaced(obs=np.ones((6, 4, 4), np.uint8)),
    "mask's dtype": replaced(mask=np.ones((5, 4), np.uint8)),
    "extras missing": replaced(extras={}),
    "extras's name": replaced(extras={"log_mu": np.zeros((5, 4, 2), np.float32)}),
    "extras's shape": replaced(extras={"log_probs": np.zeros((5, 4, 3), np.float32)}),
    "state unexpected": replaced(state={"hidden": np.zeros((4, 8), np.float32)}),
    "no columns": replaced(action=np.zeros((5,), np.int64)),
    "action below": with_value("action", -1),
    "action above": with_value("action", 2),
    "reward nan": with_value("reward", np.nan),
    "reward infinite": with_value("reward", np.inf),
    "extras nan": with_value("log_probs", np.nan),
    "extras infinite": with_value("log_probs", -np.inf),
    "obs nan": with_value("obs", np.nan),
}


@pytest.mark.parametrize("said", REFUSED.values(), ids=REFUSED)
def test_refused_counted_and_kept_from_the_learner(inbox: Inbox, actor: Speaker, said: dict[str, Any]) -> None:
    reply = actor.say(**said)
    assert reply is not None
    assert reply.refused
    assert "\n" not in reply.refused
    assert not reply.stop
    assert inbox.num_refused == 1
    assert inbox.take_unroll(0) is None
    assert inbox.take_other() is None

    fresh = Speaker(inbox, ACTOR)  # a refused message leaves the sequence where it was
    assert fresh.say(unroll=made_up_unroll(CONFIG)) is None
    assert inbox.take_unroll(0) is not None


RECURRENT = tiny_run(network__lstm=8)


def state(**replaced: Any) -> dict[str, np.ndarray]:
    """The state of a recurrent unroll, parts of it replaced, or left out for None."""
    parts = made_up_unroll(RECURRENT).state | replaced
    return {name: part for name, part in parts.items() if part is not None}


def not_finite(value: float) -> np.ndarray:
    part = np.zeros((4, 8), np.float32)
    part[3, 7] = value
    return part


REFUSED_STATES = {
    "none": ({}, "state: keys [], expected ['cell', 'hidden']"),
    "a part missing": (state(cell=None), "state: keys ['hidden'], expected ['cell', 'hidden']"),
    "a part too many": (state(more=np.zeros((4, 8), np.float32)), "state: keys ['cell', 'hidden', 'more']"),
    "too narrow": (state(hidden=np.zeros((4, 7), np.float32)), "hidden: float32[4, 7], expected float32[4, 8]"),
    "too few columns": (state(cell=np.zeros((3, 8), np.float32)), "cell: float32[3, 8], expected float32[4, 8]"),
    "time-major": (state(cell=np.zeros((5, 4, 8), np.float32)), "cell: float32[5, 4, 8], expected float32[4, 8]"),
    "float64": (state(hidden=np.zeros((4, 8))), "hidden: float64[4, 8], expected float32[4, 8]"),
    "nan": (state(hidden=not_finite(np.nan)), "hidden: not finite"),
    "infinite": (state(cell=not_finite(-np.inf)), "cell: not finite"),
}


@pytest.mark.parametrize(("parts", "why"), REFUSED_STATES.values(), ids=REFUSED_STATES)
def test_states_that_do_not_fit_are_refused(parts: dict[str, np.ndarray], why: str) -> None:
    inbox = Inbox("this-run", tiny_layout(RECURRENT), 4, CARTPOLE, max_waiting=2)
    (actor,) = known_speakers(inbox, ACTOR)
    reply = actor.say(unroll=made_up_unroll(RECURRENT, state=parts))
    assert reply is not None
    assert why in reply.refused
    assert inbox.take_unroll(0) is None
    assert Speaker(inbox, ACTOR).say(unroll=made_up_unroll(RECURRENT)) is None
    assert inbox.take_unroll(0) is not None


def acted(array: np.ndarray | None = None, **replaced: Any) -> Unroll:
    """An unroll with continuous actions, by default 0."""
    action = np.zeros((5, 4, 2), np.float32) if array is None else array
    return made_up_unroll(CONFIG, action=action, extras={}, **replaced)


def one_bad_action(value: float) -> np.ndarray:
    actions = np.zeros((5, 4, 2), np.float32)
    actions[2, 1, 0] = value
    return actions


@pytest.mark.parametrize(
    ("actions", "why"),
    [
        (one_bad_action(np.nan), "action: not finite"),
        (one_bad_action(np.inf), "action: not finite"),
        (one_bad_action(-np.inf), "action: not finite"),
        (one_bad_action(1.5), "action: 0.0 to 1.5, allowed -1 to 1"),
        (one_bad_action(-3), "action: -3.0 to 0.0, allowed -1 to 1"),
        (np.zeros((5, 4, 3), np.float32), "action: float32[5, 4, 3], expected float32[5, 4, 2]"),
        (np.zeros((5, 4, 1), np.float32), "action: float32[5, 4, 1], expected float32[5, 4, 2]"),
        (np.zeros((5, 4), np.float32), "action: float32[5, 4], expected float32[5, 4, 2]"),
        (np.zeros((5, 4, 2), np.float64), "action: float64[5, 4, 2], expected float32[5, 4, 2]"),
        (np.zeros((5, 4), np.int64), "action: int64[5, 4], expected float32[5, 4, 2]"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_continuous_actions_that_do_not_fit_are_refused(actions: np.ndarray, why: str) -> None:
    inbox = Inbox("this-run", layout(BOX, 5, {}, {}), 4, BOX, max_waiting=2)
    (actor,) = known_speakers(inbox, ACTOR)
    reply = actor.say(unroll=acted(actions))
    assert reply is not None
    assert reply.refused == why
    assert inbox.take_unroll(0) is None
    ends = np.random.default_rng(0).choice(np.array([-1, 1], np.float32), (5, 4, 2))
    assert Speaker(inbox, ACTOR).say(unroll=acted(ends)) is None
    assert inbox.take_unroll(0) is not None


def test_negative_priorities_are_refused() -> None:
    """Which replay could not draw by."""
    config = tiny_run(algorithm__name="apex_dqn", replay__sampling="prioritized")
    inbox = Inbox("this-run", tiny_layout(config), 4, CARTPOLE, max_waiting=2)
    (actor,) = known_speakers(inbox, ACTOR)
    unroll = made_up_unroll(config)
    unroll.extras["priority"][2, 1] = -1e-6
    reply = actor.say(unroll=unroll)
    assert reply is not None
    assert reply.refused == "priority: negative"
    unroll.extras["priority"][2, 1] = 0.0
    assert Speaker(inbox, ACTOR).say(unroll=unroll) is None
    assert inbox.take_unroll(0) is not None


def test_a_row_is_not_refused_for_a_metric_of_the_user_s_own(inbox: Inbox, actor: Speaker) -> None:
    rows = [{"my_loss": 0.5, "Q(s, a) of the ε-greedy action": 1.0}]
    assert actor.say(rows=rows, unroll=made_up_unroll(CONFIG)) is None
    post = inbox.take_unroll(0)
    assert post is not None
    assert post.message.rows == rows


@pytest.mark.parametrize("name", ["", "two\nlines", "bell\x07", "n" * 101])
def test_a_row_with_a_name_that_cannot_be_shown_is_refused(inbox: Inbox, actor: Speaker, name: str) -> None:
    reply = actor.say(rows=[{name: 0.5}])
    assert reply is not None
    assert "1 to 100 printable characters" in reply.refused
    assert reply.refused.isprintable()
    assert len(reply.refused) < 160


def test_each_kind_of_refusal_is_logged_once(inbox: Inbox, actor: Speaker, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "apex_acer.learner.inbox"):
        for sequence in (3, 4, 5):
            actor.say(sequence=sequence)
        actor.say(run_id="that-run")
        actor.say(run_id="that-run")
    assert inbox.num_refused == 5
    assert len(caplog.records) == 2


def test_repeated_sequence_is_refused(inbox: Inbox, actor: Speaker) -> None:
    assert actor.say(unroll=made_up_unroll(CONFIG)) is None
    reply = actor.say(sequence=0, unroll=made_up_unroll(CONFIG))
    assert reply is not None
    assert "sequence 0, expected 1" in reply.refused
    assert inbox.take_unroll(0) is not None
    assert inbox.take_unroll(0) is None


def test_a_new_incarnation_replaces_the_old_one(inbox: Inbox, actor: Speaker) -> None:
    assert actor.say() is None
    (restarted,) = known_speakers(make_inbox(), Peer("actor", 0, 1))
    restarted = Speaker(inbox, restarted.peer)
    Speaker(inbox, Peer("manager", 0, 1)).say(incarnations={"actor_0": 1})
    assert restarted.say(unroll=made_up_unroll(CONFIG)) is None
    reply = actor.say(unroll=made_up_unroll(CONFIG))
    assert reply is not None
    assert "incarnation 0 is not the current one" in reply.refused


def test_more_unrolls_than_allowed_are_refused(inbox: Inbox, actor: Speaker) -> None:
    for seed in range(2):
        assert actor.say(unroll=made_up_unroll(CONFIG, seed)) is None
    reply = actor.say(unroll=made_up_unroll(CONFIG))
    assert reply is not None
    assert "more than 2" in reply.refused
    posts = [inbox.take_unroll(0) for _ in range(3)]
    assert [post is not None for post in posts] == [True, True, False]


def test_only_actors_send_unrolls(inbox: Inbox) -> None:
    (evaluator,) = known_speakers(inbox, EVALUATOR)
    reply = evaluator.say(unroll=made_up_unroll(CONFIG))
    assert reply is not None
    assert "only actors" in reply.refused


def test_unrolls_come_out_in_the_order_they_came_in() -> None:
    inbox = make_inbox(max_waiting=6)
    speakers = known_speakers(inbox, *(Peer("actor", index, 0) for index in range(2)))
    sent = [made_up_unroll(CONFIG, seed) for seed in range(6)]
    for index, unroll in enumerate(sent):
        speakers[index % 2].say(unroll=unroll)
    for unroll in sent:
        post = inbox.take_unroll(0)
        assert post is not None
        assert post.message.unroll is unroll


def test_the_manager_is_answered_at_once_with_the_status(inbox: Inbox, actor: Speaker) -> None:
    actor.say(unroll=made_up_unroll(CONFIG))
    manager = Speaker(inbox, Peer("manager", 0, 5))
    inbox.status = {"env_steps": 12}
    reply = manager.say()
    assert reply is not None
    assert (reply.sequence, reply.stop, reply.status["env_steps"]) == (0, False, 12)
    reply = manager.say(stop="SIGINT")
    assert reply is not None
    assert reply.stop
    assert inbox.stop_reason == "SIGINT"


def test_stop_answers_what_waits_and_what_comes(inbox: Inbox, actor: Speaker) -> None:
    manager = Speaker(inbox, Peer("manager", 0, 1))
    manager.say(incarnations={"evaluator": 0})
    evaluator = Speaker(inbox, EVALUATOR)
    assert actor.say(unroll=made_up_unroll(CONFIG)) is None
    assert evaluator.say() is None
    inbox.stop("env_steps")
    assert actor.hear() == Reply(0, stop=True)
    assert evaluator.hear() == Reply(0, stop=True)
    assert actor.say(unroll=made_up_unroll(CONFIG)) == Reply(1, stop=True)
    assert inbox.stopped == {ACTOR, EVALUATOR}
    assert inbox.empty
    assert inbox.take_unroll(10) is None
    inbox.stop("minutes")
    assert inbox.stop_reason == "env_steps"


def test_take_unroll_waits_for_its_timeout_and_no_longer_than_needed(inbox: Inbox, actor: Speaker) -> None:
    start = time.monotonic()
    assert inbox.take_unroll(0.1) is None
    assert 0.09 <= time.monotonic() - start < 1

    unroll = made_up_unroll(CONFIG)
    later = threading.Timer(0.05, lambda: actor.say(unroll=unroll))
    later.start()
    post = inbox.take_unroll(10)
    later.join()
    assert post is not None
    assert post.message.unroll is unroll
    assert time.monotonic() - start < 5


def test_take_unroll_returns_for_another_message_and_for_the_manager_s_stop(inbox: Inbox, actor: Speaker) -> None:
    start = time.monotonic()
    actor.say()
    assert inbox.take_unroll(10) is None
    assert inbox.take_other() is not None
    Speaker(inbox, Peer("manager", 0, 1)).say(stop="SIGTERM")
    assert inbox.take_unroll(10) is None
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
    told: dict[str, list[int]] = reply.status["progress"]
    assert told.pop("learner")[1] == 0
    return {name: numbers for name, numbers in told.items() if name != "manager"}


def test_the_manager_hears_how_far_everybody_is_and_who_waits() -> None:
    inbox = make_inbox(max_waiting=4)
    manager = Speaker(inbox, Peer("manager", 0, 0))
    assert progress(manager) == {}
    manager.say(incarnations={"actor_0": 0, "actor_1": 0, "evaluator": 0})
    first, second, evaluator = (Speaker(inbox, peer) for peer in (ACTOR, Peer("actor", 1, 0), EVALUATOR))
    first.say()
    evaluator.say()
    second.say(unroll=made_up_unroll(CONFIG))
    second.say(unroll=made_up_unroll(CONFIG))
    assert progress(manager) == {"actor_0": [1, 1], "evaluator": [1, 1], "actor_1": [2, 2]}
    post = inbox.take_unroll(0)
    assert post is not None
    assert progress(manager)["actor_1"] == [2, 2]  # taken, but not in replay yet
    post.answer(Reply(0))
    assert progress(manager) == {"actor_0": [1, 1], "evaluator": [1, 1], "actor_1": [2, 1]}
    manager.say(incarnations={"actor_1": 1})
    assert progress(manager) == {"actor_0": [1, 1], "evaluator": [1, 1]}


def test_unrolls_that_wait_from_an_actor_that_was_replaced_are_learned_from_and_answered_once() -> None:
    inbox = make_inbox(max_waiting=2)
    manager = Speaker(inbox, Peer("manager", 0, 0))
    manager.say(incarnations={"actor_0": 0})
    old, new = Speaker(inbox, ACTOR), Speaker(inbox, Peer("actor", 0, 1))
    for seed in range(2):
        old.say(unroll=made_up_unroll(CONFIG, seed))
    manager.say(incarnations={"actor_0": 1})
    for seed in range(2):  # they take no place from the new one's
        assert new.say(unroll=made_up_unroll(CONFIG, seed)) is None
    refused = new.say(unroll=made_up_unroll(CONFIG))
    assert refused is not None
    assert "more than 2" in refused.refused
    posts = [inbox.take_unroll(0) for _ in range(4)]
    for post, speaker in zip(posts, (old, old, new, new), strict=True):
        assert post is not None
        assert post.message.peer == speaker.peer
        post.answer(Reply(post.message.sequence))
        assert speaker.hear() == Reply(post.message.sequence)
        assert speaker.hear() is None
    assert inbox.empty
    assert progress(manager) == {"actor_0": [2, 0]}


def test_wrong_mask_is_none_of_the_inbox_s_business(inbox: Inbox, actor: Speaker) -> None:
    unroll = dataclasses.replace(made_up_unroll(CONFIG), mask=np.zeros((5, 4), bool))
    assert actor.say(unroll=unroll) is None
    assert inbox.take_unroll(0) is not None
