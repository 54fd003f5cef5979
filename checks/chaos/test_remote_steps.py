"""Lines to remote clients break all the time: each of a client's steps is learned from once or not at all, in its order."""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pytest

from apex_acer.actor.policy import Policy
from apex_acer.actor.remote_rollout import RemoteRollout
from apex_acer.client import Client, EpisodeLost, RemoteError
from apex_acer.config import ListenConfig
from apex_acer.protocol.unroll import Unroll
from apex_acer.remote.server import Server
from checks.chaos.proxy import Proxy
from tests.programs import report
from tests.remote.conftest import HELLO, TOKEN, free_port
from tests.runs import CARTPOLE, tiny_run

LENGTH, SLOTS, CLIENTS = 7, 4, 5


class Mark(NamedTuple):
    """An observation: the client, its episode, and the steps before it."""

    client: int
    episode: int
    step: int


@dataclass
class Episode:
    """What a client knows of an episode."""

    actions: list[int] = field(default_factory=list)
    """Those that it was told, of which the last may not have been taken."""
    kind: str = "lost"
    """How it ended."""
    told: bool = False
    """Whether the server has confirmed the end."""
    length: int = 0
    """Steps that it made, of which the server may not have heard the last."""


class Player:
    """A client whose steps can be told apart, behind a line of its own."""

    def __init__(self, number: int, port: int) -> None:
        self.number, self.line = number, Proxy(port)
        self.episodes: list[Episode] = []
        self._chance, self._stops = random.Random(number), threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._play)
        self._thread.start()

    def close(self) -> None:
        self._stops.set()
        self.line.open.set()
        self._thread.join(30)
        self.line.close()
        if self._failure:
            raise self._failure

    def _play(self) -> None:
        try:
            url = f"ws://127.0.0.1:{self.line.port}"
            while not self._stops.is_set():
                # it finds every place taken for as long as all others are there
                with contextlib.suppress(RemoteError), self._connect(url) as client:
                    for _ in range(self._chance.randrange(1, 30)):
                        if not self._stops.is_set():
                            self.episodes.append(Episode())
                            with contextlib.suppress(EpisodeLost):
                                self._play_episode(client, self.episodes[-1])
        except BaseException as error:
            self._failure = error

    def _connect(self, url: str) -> Client:
        return Client(url, TOKEN, observation=HELLO["observation"], action=HELLO["action"], patience_s=3.0)

    def _play_episode(self, client: Client, episode: Episode) -> None:
        last = self._chance.randrange(1, 30)
        kind = self._chance.choice(("terminated", "truncated"))
        episode.actions.append(client.reset(self._observe(0)))
        for step in range(1, last):
            episode.length = step
            episode.actions.append(client.step(self._observe(step), reward_of(self.number, step)))
        episode.length, episode.kind = last, kind
        client.end(self._observe(last), reward_of(self.number, last), terminated=kind == "terminated")
        episode.told = True

    def _observe(self, step: int) -> np.ndarray:
        return np.array([self.number, len(self.episodes) - 1, step, 0], np.float32)


def reward_of(client: int, step: int) -> float:
    return client + step / 64


class Played:
    """The unrolls that a server's rollout makes of all that its clients do."""

    def __init__(self, grace_s: float) -> None:
        settings = ListenConfig(listen=f"127.0.0.1:{free_port()}", clients=SLOTS, grace_s=grace_s)
        self.server = Server(settings, CARTPOLE, TOKEN)
        self._rollout = RemoteRollout(self.server, Policy(tiny_run(), CARTPOLE), seed=0, actor=0)
        self.unrolls: dict[int, list[Unroll]] = {slot: [] for slot in range(SLOTS)}
        self._stops, self._failure = False, False
        self._thread = threading.Thread(target=self._act)
        self._thread.start()

    def close(self) -> None:
        self._stops = True
        self._thread.join(10)
        self.server.close()
        assert not self._failure

    def _act(self) -> None:
        self._failure = True
        while not self._stops:
            if unroll := self._rollout.unroll(LENGTH):
                self.unrolls[self._rollout.slot].append(unroll)
        self._failure = False


def disturb(players: list[Player], seconds: float, grace_s: float) -> Counter[str]:
    """Cuts and holds lines at random, for moments and for longer than the grace period."""
    chance, done, ends_at = random.Random(0), Counter[str](), time.monotonic() + seconds
    while time.monotonic() < ends_at:
        line, long = chance.choice(players).line, chance.random() < 0.2
        match chance.randrange(3):
            case 0:
                line.cut()
                done["cut"] += 1
            case 1:
                line.open.clear()
                done["held"] += 1
            case _:
                line.open.clear()
                line.cut()
                done["away"] += 1
        time.sleep(2.5 * grace_s if long else chance.uniform(0, grace_s / 4))
        line.open.set()
    return done


@pytest.mark.parametrize(
    "seconds", [pytest.param(5.0, marks=pytest.mark.slow), pytest.param(300.0, marks=pytest.mark.chaos)]
)
@pytest.mark.timeout(600)
def test_every_step_is_learned_from_once_or_not_at_all(seconds: float, capsys: pytest.CaptureFixture[str]) -> None:
    grace_s = 0.3
    played = Played(grace_s)
    players = [Player(number, int(played.server.url.rpartition(":")[2])) for number in range(CLIENTS)]
    try:
        done = disturb(players, seconds, grace_s)
    finally:
        for player in players:
            player.close()
        played.close()
    counted, outcomes = Counter[Mark](), Counter[str]()
    for unrolls in played.unrolls.values():
        for unroll in unrolls:
            check(unroll, players, counted, outcomes)
    episodes = [episode for player in players for episode in player.episodes]
    made = sum(episode.length for episode in episodes)
    told = sum(max(0, len(episode.actions) - 1) + episode.told for episode in episodes)
    report(capsys, "steps", **done, made=made, told=told, counted=counted.total(), **outcomes)
    assert max(counted.values()) == 1, "a step was learned from twice"
    assert told - SLOTS * LENGTH <= counted.total() <= made
    assert min(outcomes[kind] for kind in ("terminated", "truncated", "lost")) > 0
    for mark in counted:
        assert mark.step == 0 or mark._replace(step=mark.step - 1) in counted, "a step was left out"


def check(unroll: Unroll, players: list[Player], counted: Counter[Mark], outcomes: Counter[str]) -> None:
    """Whether an unroll tells of what a client did, in its order; counts its steps, and how its episodes ended."""
    marks = [Mark(*(int(number) for number in obs[0, :3])) for obs in unroll.obs]
    assert unroll.episode_step[:, 0].tolist() == [mark.step for mark in marks]
    for at, (before, after) in enumerate(itertools.pairwise(marks)):
        ended = unroll.terminated[at, 0] or unroll.truncated[at, 0]
        if not unroll.mask[at, 0]:
            assert after.step == 0, "a dummy step leads into an episode"
            over = at == 0 or unroll.terminated[at - 1, 0] or unroll.truncated[at - 1, 0]
            assert over or before.step == 0, "it comes in the midst of an episode"
            assert not ended
            continue
        assert after == before._replace(step=before.step + 1)
        counted[before] += 1
        episode = players[before.client].episodes[before.episode]
        assert unroll.action[at, 0] == episode.actions[before.step]
        assert unroll.reward[at, 0] == np.float32(reward_of(after.client, after.step))
        final = after.step == episode.length and episode.kind != "lost"
        assert bool(unroll.terminated[at, 0]) == (final and episode.kind == "terminated")
        if unroll.truncated[at, 0] and not (final and episode.kind == "truncated"):
            assert not episode.told, "an episode that went on was truncated"
            outcomes["lost"] += 1
        elif ended:
            outcomes[episode.kind] += 1
        assert ended or not final
