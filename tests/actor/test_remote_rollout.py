"""What is recorded of remote clients: with one client, exactly what a rollout of its environment records."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from typing import Any

import gymnasium
import numpy as np
import pytest

from apex_acer.actor.remote_rollout import RemoteRollout
from apex_acer.actor.rollout import Episode, Rollout
from apex_acer.config import RunConfig
from apex_acer.protocol.messages import Reply
from apex_acer.protocol.planes import to_planes
from apex_acer.protocol.unroll import Unroll
from apex_acer.remote.session import LOST, Event, Session
from tests import on_policy
from tests.actor.test_actor import RecordingLink
from tests.conftest import COUNTDOWN, assert_equal_unrolls, play
from tests.continuous import settings_of
from tests.runs import CARTPOLE, PARTS, tiny_run

K, UNROLLS, SEED = 5, 15, 7
RUNS: dict[str, dict[str, Any]] = {
    "stack": {"environment__stack": 3, "environment__id": COUNTDOWN},
    "r2d2": {
        "algorithm__name": "r2d2",
        "algorithm__burn_in": 3,
        "network__lstm": 8,
        "replay__sampling": "prioritized",  # looks ahead
    },
    "ddpg": settings_of("ddpg"),  # continuous, noise with memory
}


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unroll of clients that are never late may take long where other programs have the processor."""
    monkeypatch.setattr("apex_acer.actor.remote_rollout.LONGEST_WAIT_S", 60.0)


def a_run(**changes: Any) -> RunConfig:
    return tiny_run("", **{"actors__count": 1, "actors__environments": 1, **changes})


class Clients:
    """In place of a server: clients that play an environment each and send all that they can at once."""

    def __init__(self, config: RunConfig, num: int) -> None:
        self.most = self.num = num
        self.num_steps = 0
        given = config.environment
        self._envs = [gymnasium.make(given.id, **given.keyword_arguments()) for _ in range(num)]
        self.sessions = [Session([slot]) for slot in range(num)]
        self.events = deque[Event]()
        for slot in range(num):
            self.begin(slot, seed=SEED + slot)

    def begin(self, slot: int, seed: int | None = None) -> None:
        self._send(slot, "reset", self._envs[slot].reset(seed=seed)[0], 0.0)

    def lose(self, slot: int) -> None:
        """The client is gone for good; the next one begins."""
        self.events.append(Event(self.sessions[slot], slot, LOST, None, 0.0))
        self.sessions[slot] = Session([slot])
        self.begin(slot)

    def take(self, timeout_s: float) -> list[Event]:
        taken = [*self.events]
        self.events.clear()
        return taken

    def answer(self, decisions: Iterable[tuple[Event, Any]]) -> None:
        for (session, slot, *_), action in decisions:
            if session is not self.sessions[slot]:
                continue
            self.num_steps += 1
            env = self._envs[slot]
            given = np.array(action, np.float32) if isinstance(action, list) else action
            obs, reward, terminated, truncated, _ = env.step(given)
            kind = "terminated" if terminated else "truncated" if truncated else "step"
            self._send(slot, kind, obs, float(reward))
            if terminated or truncated:
                self.begin(slot)

    def _send(self, slot: int, kind: str, obs: Any, reward: float) -> None:
        self.events.append(Event(self.sessions[slot], slot, kind, np.asarray(obs), reward))


def remote(config: RunConfig, num: int = 1) -> tuple[RemoteRollout, Clients]:
    environments, policy = play(config, 1)
    environments.close()
    clients = Clients(config, num)
    return RemoteRollout(clients, policy, seed=SEED, actor=0), clients  # type: ignore[arg-type]


def unrolls_of(rollout: RemoteRollout, count: int, length: int = K) -> list[Unroll]:
    found = [unroll for _ in range(count) if (unroll := rollout.unroll(length))]
    assert len(found) == count
    return found


@pytest.mark.parametrize("changes", RUNS.values(), ids=RUNS)
def test_one_client_s_unrolls_are_those_of_a_rollout(changes: dict[str, Any]) -> None:
    config = a_run(**changes)
    environments, policy = play(config, 1)
    local = Rollout(environments, policy, seed=SEED, actor=0)
    expected = [local.unroll(K) for _ in range(UNROLLS)]
    found = unrolls_of(remote(config)[0], UNROLLS)
    assert sum(int((~unroll.mask).sum()) for unroll in expected) > 0
    for one, other in zip(found, expected, strict=True):
        assert_equal_unrolls(one, other)


def test_both_rollouts_explore_as_the_run_goes_on() -> None:
    config = a_run(algorithm__name="pqn", algorithm__pipelined=True, algorithm__minibatches=1)
    environments, policy = play(config, 1)
    for rollout in (Rollout(environments, policy, seed=SEED, actor=0), remote(config, num=3)[0]):
        num = len(rollout.exploration)
        for env_steps, epsilon in ((0, 1.0), (50, 0.505), (100, 0.01)):  # of 1,000
            rollout.explore(env_steps)
            assert rollout.exploration.tolist() == pytest.approx([epsilon] * num)
        assert rollout.unroll(K) is not None
    environments.close()


def test_whole_episodes_begin_with_their_reset_and_are_masked_after_their_end() -> None:
    rollout, _ = remote(a_run(**on_policy.ALGORITHMS["reinforce"], algorithm__pipelined=True))
    learned = unlearned = 0
    for _ in range(10):
        (unroll,) = unrolls_of(rollout, 1, length=20)
        steps = unroll.num_steps
        learned, unlearned = learned + steps, unlearned + rollout.unlearned_steps
        assert unroll.episode_step[0, 0] == 0
        assert unroll.mask[:steps].all()
        assert not unroll.mask[steps:].any()
        assert steps == 20 or (unroll.terminated | unroll.truncated)[steps - 1, 0]
    episodes = rollout.take_episodes()
    lengths = [episode.length for episode in episodes]
    assert max(lengths) > 20  # their rest is not recorded
    assert learned + unlearned == sum(lengths) + 20  # of the last one, which goes on


def test_each_client_has_segments_of_its_own() -> None:
    rollout, _ = remote(a_run(), num=3)
    last: dict[int, np.ndarray] = {}
    for _ in range(60):
        (unroll,) = unrolls_of(rollout, 1)
        if rollout.slot in last:
            np.testing.assert_array_equal(last[rollout.slot], unroll.obs[0])  # it goes on where the one before ended
        last[rollout.slot] = unroll.obs[-1]
    assert last.keys() == {0, 1, 2}
    episodes = rollout.take_episodes()
    assert all(episode.episode_return == episode.length for episode in episodes)


def test_observations_that_come_together_become_the_planes_that_each_has_alone() -> None:
    random = np.random.default_rng(0)
    arrays = [{name: random.integers(3, 5, box.given_shape) for name, box in PARTS.boxes.items()} for _ in range(3)]
    observations = [{name: np.asarray(each) for name, each in obs.items()} for obs in arrays]
    rollout, _ = remote(a_run())
    for spec, given in ((PARTS, observations), (CARTPOLE, random.normal(size=(3, 4)))):
        rollout._policy.spec = spec
        expected = [to_planes(spec, obs, 1)[0] for obs in given]
        np.testing.assert_array_equal(rollout._planes([*given]), expected)


def test_a_client_that_is_lost_makes_way_for_the_next_one_in_its_slot_at_once() -> None:
    rollout, clients = remote(a_run(), num=2)
    rollout.serve(0, K)
    clients.take(0)
    for slot in range(2):
        clients._send(slot, "step", np.full(4, slot, np.float32), 1.0)
    clients.lose(0)  # a step, the loss and a reset of one slot come together with the other's step
    assert rollout.serve(0, K) == 3
    partial = rollout._partial[0].unroll
    assert partial.mask[:2, 0].tolist() == [True, False]
    assert partial.truncated[:2, 0].tolist() == [True, False]
    assert rollout._partial[1].num == 1


def test_only_what_begins_after_count_is_counted_and_lost_episodes_are_made_up_for() -> None:
    rollout, clients = remote(a_run(), num=2)
    rollout.serve(0, K)
    rollout.count(3)  # two episodes have begun
    found: list[Episode] = []
    lost = False
    for _ in range(600):
        rollout.serve(0, K)
        found += rollout.take_episodes()
        if len(found) == 1 and not lost:
            clients.events = deque(event for event in clients.events if event.slot != 0)
            clients.lose(0)
            lost = True
    assert lost
    assert len(found) == 3


def test_clients_go_on_while_the_learner_is_busy_until_an_unroll_of_each_waits() -> None:
    rollout, clients = remote(a_run(), num=2)
    rollout._policy.version = 0
    link = RecordingLink()
    until = time.monotonic() + 60
    while clients.num_steps < 2 * (K + 1) and time.monotonic() < until:  # the last observation has its action, too
        assert rollout.receive(link, 0.05, K) is None
    assert rollout.receive(link, 0.05, K) is None
    assert clients.num_steps == 2 * (K + 1)
    unrolls_of(rollout, 2)
    link.replies.append(Reply(3))
    assert rollout.receive(link, 60.0, K) == Reply(3)


def test_nobody_is_waited_for_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apex_acer.actor.remote_rollout.LONGEST_WAIT_S", 0.05)
    rollout, clients = remote(a_run())
    clients.events.clear()
    assert rollout.unroll(K) is None
