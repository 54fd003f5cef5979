"""An actor with a link in place of the learner: what it sends, when it waits and what it acts with."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from apex_acer.actor.actor import Actor, action_moments, action_std
from apex_acer.algorithms.acer.acer import AcerAgent
from apex_acer.config import RunConfig
from apex_acer.networks.weights import named_tensors, pack
from apex_acer.protocol.messages import Link, Message, Peer, Reply
from tests.runs import CARTPOLE, RUN_ID, made_up_unroll, tiny_layout, tiny_run


class RecordingLink(Link):
    """Keeps what is sent, and gives the replies a test has put in."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.replies: deque[Reply] = deque()
        self.heartbeats = 0

    def heartbeat(self) -> None:
        self.heartbeats += 1

    def send(self, message: Message) -> None:
        self.sent.append(message)

    def receive(self, timeout_s: float) -> Reply | None:
        return self.replies.popleft() if self.replies else None


def network(config: RunConfig | None = None) -> Any:
    torch.manual_seed(0)
    return AcerAgent(config or tiny_run(), CARTPOLE).network


def first_weights(version: int = 0, sent: Any = None) -> Reply:
    return Reply(0, weights_version=version, weights=pack(named_tensors(sent or network(), "network"), {}))


StartActor = Callable[..., tuple[Actor, RecordingLink]]


@pytest.fixture
def start_actor() -> Iterator[StartActor]:
    actors: list[Actor] = []

    def start(config: RunConfig | None = None, index: int = 0, incarnation: int = 0) -> tuple[Actor, RecordingLink]:
        """An actor that has its first weights."""
        link = RecordingLink()
        actors.append(Actor(config or tiny_run(), RUN_ID, Peer("actor", index, incarnation), link))
        link.replies.append(first_weights(sent=network(config)))
        assert actors[-1].step(0)
        return actors[-1], link

    yield start
    for actor in actors:
        actor.close()


def make_unrolls(actor: Actor, link: RecordingLink, count: int) -> list[Message]:
    """The next `count` messages with unrolls, each answered at once."""
    messages: list[Message] = []
    while len(messages) < count:
        before = len(link.sent)
        assert actor.step(0)
        for message in link.sent[before:]:
            messages.append(message)
            link.replies.append(Reply(message.sequence, weights_version=0))
    return messages


@pytest.mark.parametrize("lstm", [0, 8])
def test_unrolls_fit_the_layout_are_numbered_and_ask_for_weights_every_so_often(
    start_actor: StartActor, lstm: int
) -> None:
    config = tiny_run(network__lstm=lstm, actors__weights_every=15)
    actor, link = start_actor(config)
    messages = make_unrolls(actor, link, 6)
    assert [(message.sequence, message.weights_version) for message in messages] == [(i, 0) for i in range(1, 7)]
    assert [message.wants_weights for message in messages] == [False, False, True] * 2
    unrolls = [message.unroll for message in messages]
    assert [unroll and tiny_layout(config).check(unroll, 4) for unroll in unrolls] == [None] * 6
    state_is_new = [not any(part.any() for part in unroll.state.values()) for unroll in unrolls if unroll]
    assert state_is_new == [True, *[not lstm] * 5]
    times = [message.acting_s for message in messages]
    assert 0 < times[0] < times[-1] < 60
    assert times == sorted(times)


def test_temperatures_differ_by_actor_and_mu_is_recorded_after_them(start_actor: StartActor) -> None:
    temperatures: dict[str, Any] = {"actors__temperature_low": 0.5, "actors__temperature_high": 8.0}
    assert tiny_run(actors__count=1, **temperatures).actors.temperature(0) == 0.5
    config = tiny_run(actors__count=3, **temperatures)
    assert [config.actors.temperature(index) for index in range(3)] == pytest.approx([0.5, 2.0, 8.0])
    for index in range(3):
        actor, link = start_actor(config, index)
        unroll = make_unrolls(actor, link, 1)[0].unroll
        assert unroll is not None
        logits: Any = network()(torch.from_numpy(unroll.obs[:-1]).flatten(0, 1)).pi_logits
        expected = (logits / config.actors.temperature(index)).log_softmax(-1).detach().numpy()
        np.testing.assert_allclose(unroll.extras["log_probs"].reshape(-1, 2), expected, rtol=1e-4, atol=1e-6)


def test_acts_with_the_newest_weights_and_statistics_it_was_sent(start_actor: StartActor) -> None:
    config = tiny_run(network__normalise=True)
    actor, link = start_actor(config)
    sent = network(config)
    sent.normaliser.observe(torch.randn(50, 4, 4, generator=torch.Generator().manual_seed(0)) * 0.03 + 0.1)
    link.replies.append(first_weights(1, sent))
    message = make_unrolls(actor, link, 2)[-1]
    unroll = message.unroll
    assert unroll is not None
    assert message.weights_version == 1
    obs, mu = torch.from_numpy(unroll.obs[:-1]).flatten(0, 1), unroll.extras["log_probs"].reshape(-1, 2)
    np.testing.assert_allclose(mu, sent(obs).pi_logits.log_softmax(-1).detach().numpy(), rtol=1e-4, atol=1e-6)
    assert np.abs(mu - network(config)(obs).pi_logits.log_softmax(-1).detach().numpy()).max() > 1e-3


def test_seeds_differ_by_index_incarnation_and_run_but_not_otherwise(start_actor: StartActor) -> None:
    def first_obs(seed: int, index: int, incarnation: int) -> bytes:
        actor, link = start_actor(tiny_run(seed=seed), index, incarnation)
        unroll = make_unrolls(actor, link, 1)[0].unroll
        assert unroll is not None
        assert len({column.tobytes() for column in unroll.obs[0]}) == 4
        return unroll.obs.tobytes() + unroll.action.tobytes()

    streams = {first_obs(*numbers) for numbers in [(0, 0, 0), (0, 1, 0), (0, 0, 1), (1, 0, 0)]}
    assert len(streams) == 4
    assert first_obs(0, 0, 0) in streams


def test_rows_are_sent_at_most_every_so_often(start_actor: StartActor) -> None:
    actor, link = start_actor(tiny_run(logging__every_seconds=1000.0))
    assert not any(message.rows for message in make_unrolls(actor, link, 20))
    actor, link = start_actor(tiny_run(logging__every_seconds=1e-6, actors__temperature_low=0.25), 0)
    rows = [row for message in make_unrolls(actor, link, 40) for row in message.rows]
    assert len(rows) == 40
    assert {row["exploration"] for row in rows} == {0.25}
    assert rows[-1]["episodes"] >= sum("episode_return" in row for row in rows) > 0


def test_rows_say_how_continuous_actions_vary() -> None:
    random = np.random.default_rng(0)
    action = random.uniform(-1, 1, (3, 5, 4, 2)).astype(np.float32) * np.array([1, 0.1], np.float32)
    masks = random.random((3, 5, 4)) < 0.8
    unrolls = [made_up_unroll(tiny_run(), action=part, mask=mask) for part, mask in zip(action, masks, strict=True)]
    expected = action[masks].std(0)
    moments = np.sum([action_moments(unroll) for unroll in unrolls], 0)
    assert action_std(moments) == {"action_std": pytest.approx(expected.mean(), rel=1e-6)}
    masked = made_up_unroll(tiny_run(), action=np.ones((5, 4, 2), np.float32), mask=np.zeros((5, 4), bool))
    assert action_std(action_moments(masked)) == action_std(np.zeros((3, 1))) == {}


def test_stop_and_refusal(start_actor: StartActor) -> None:
    actor, link = start_actor()
    link.replies.append(Reply(1, stop=True))
    assert not actor.step(0)
    actor, link = start_actor(index=1)
    link.replies.append(Reply(1, refused="sequence 1, expected 0"))
    with pytest.raises(RuntimeError, match="sequence 1, expected 0"):
        actor.step(0)


def test_with_another_learner_it_begins_anew_and_its_games_go_on(start_actor: StartActor) -> None:
    actor, link = start_actor(tiny_run(logging__every_seconds=1000.0))
    for _ in range(3):
        assert actor.step(0)
    before = link.sent[-1].unroll  # it and the one before will never be answered
    beats = link.heartbeats
    assert beats == 5 * len(link.sent[1:])  # one each step
    another = RecordingLink()
    actor.reconnect(another)
    for _ in range(3):
        assert actor.step(0)
    assert another.sent == [Message(RUN_ID, Peer("actor", 0, 0), 0, wants_weights=True)]
    another.replies.append(first_weights(version=70))
    for _ in range(5):
        assert actor.step(0)
    assert [message.sequence for message in another.sent] == [0, 1, 2]
    assert (link.heartbeats, another.heartbeats) == (beats, 5 * 2)
    after = another.sent[1]
    assert after.weights_version == 70
    assert before is not None
    assert after.unroll is not None
    np.testing.assert_array_equal(after.unroll.obs[0], before.obs[-1])
    np.testing.assert_array_equal(after.unroll.episode_step[0], before.episode_step[-1])
