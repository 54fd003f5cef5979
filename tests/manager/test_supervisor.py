from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import pytest

from apex_acer.config import ConfigError
from apex_acer.engines.engine import Engine, Handle, Run
from apex_acer.learner.inbox import Inbox
from apex_acer.manager.supervised_process import READY_S
from apex_acer.manager.supervisor import (
    BACKOFF_S,
    DOUBLINGS,
    LOOK_S,
    QUICK_S,
    SAVED_BYTES_PER_S,
    RunFailed,
    Supervisor,
)
from apex_acer.protocol.messages import Link, Message, Outcome, Peer, Reply
from tests.runs import CARTPOLE, RUN_ID, Speaker, made_up_unroll, tiny_layout, tiny_run


class FakeHandle(Handle):
    """Does what the test says."""

    def __init__(self, peer: Peer) -> None:
        super().__init__(peer)
        self.how = ""
        self.running = True
        self.dumped = False
        self.dismissed = False

    @property
    def alive(self) -> bool:
        return self.running

    @property
    def failure(self) -> str:
        return "" if self.running or not self.how else f"a traceback\n{self.peer.name}: {self.how}"

    def dump(self) -> None:
        assert not self.dumped
        self.dumped = True

    def dismiss(self) -> None:
        self.dismissed = True

    def kill(self) -> None:
        self.running, self.how = False, "killed by SIGKILL"

    def die(self, how: str = "exit code 1") -> None:
        self.running, self.how = False, how


class FakeEngine(Engine, Link):
    """A real inbox with nothing behind it; each learner has a new one."""

    restarts = True

    def __init__(self) -> None:
        self.link = self
        self.started: list[Peer] = []
        self.handles: dict[str, FakeHandle] = {}
        self.reconnected = 0
        self.silent = self.stuck = False
        self.refuses_to_be_ready: set[str] = set()

    def start(self, peer: Peer, incarnations: dict[str, int]) -> Handle:
        assert not (peer.name in self.handles and self.handles[peer.name].alive)
        if peer.role == "learner":
            self.inbox = Inbox(RUN_ID, tiny_layout(CONFIG), CONFIG.actors.environments, CARTPOLE, max_waiting=8)
            self.inbox.status = {"env_steps": 0}
            self.inbox.expect(incarnations)
            self._sent: list[Message] = []
            self._replies: list[Reply] = []
        self.started.append(peer)
        handle = self.handles[peer.name] = FakeHandle(peer)
        handle.ready = peer.name not in self.refuses_to_be_ready
        return handle

    def reconnect(self) -> None:
        self.reconnected += 1

    def wait(self, timeout_s: float) -> None:
        raise NotImplementedError

    def wake(self) -> None:
        raise NotImplementedError

    def pause(self, paused: bool) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def send(self, message: Message) -> None:
        self._sent.append(message)

    def receive(self, timeout_s: float) -> Reply | None:
        self.inbox.turns += not self.stuck
        while self._sent and not self.silent:
            self.inbox.post(self._sent.pop(0), self._replies.append)
        return self._replies.pop(0) if self._replies else None


CONFIG = tiny_run(
    evaluation__every=100,
    actors__max_unanswered=2,
    supervision__hung_seconds=10.0,
    supervision__evaluation_minutes=1.0,
    supervision__restarts=3,
    supervision__window_minutes=2.0,
)


class World:
    """A supervisor whose time passes when the test says so; whoever is started asks for weights, as they do."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.now = 1000.0
        self.checkpoint: Path | None = None
        monkeypatch.setattr("apex_acer.manager.supervisor.time.monotonic", lambda: self.now)
        monkeypatch.setattr("apex_acer.manager.supervisor.newest", lambda folder: self.checkpoint)
        self.engine = FakeEngine()
        self.supervisor = Supervisor(Run(CONFIG, CARTPOLE, folder, RUN_ID, time.monotonic()), self.engine)
        self.news: list[str] = []
        self.status: dict[str, Any] = {}
        self.mute: set[str] = set()
        self._speakers: dict[tuple[Inbox, Peer], Speaker] = {}

    def tend(self, seconds: float = 0.0) -> None:
        """Looks after everybody until so many seconds have passed, at least once."""
        until = self.now + seconds
        while True:
            for _ in range(3):  # as where a reply ends the engine's wait
                if status := self.supervisor.tend():
                    self.status = status
                    self.news += status["news"]
                self._greet()
            if self.now >= until:
                return
            self.now = min(until, self.now + LOOK_S)

    def handle(self, name: str) -> FakeHandle:
        return self.engine.handles[name]

    def speaker(self, name: str) -> Speaker:
        """Says what the newest incarnation would, to the newest learner."""
        peer, inbox = self.handle(name).peer, self.engine.inbox
        return self._speakers.setdefault((inbox, peer), Speaker(inbox, peer))

    def answer(self) -> None:
        """Gives everybody the weights they asked for."""
        while post := self.engine.inbox.take_other():
            post.answer(Reply(post.message.sequence))

    @property
    def started(self) -> list[str]:
        return [f"{peer.name}.{peer.incarnation}" for peer in self.engine.started]

    def _greet(self) -> None:
        for name, handle in self.engine.handles.items():
            known = self.engine.inbox._incarnations.get(name) == handle.peer.incarnation
            if known and handle.alive and handle.ready and name not in self.mute and not self.speaker(name).sequence:
                assert self.speaker(name).say(wants_weights=True) is None


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> World:
    world = World(monkeypatch, tmp_path)
    world.tend()
    return world


ALL = ["learner.0", "actor_0.0", "actor_1.0", "evaluator.0"]


def test_all_start_at_once_nobody_is_restarted_without_a_reason_and_states_say_what_they_are_about(
    world: World,
) -> None:
    """States also where nothing else is new: a view would show yesterday's otherwise."""
    assert world.started == ALL
    assert world.engine.inbox._incarnations == {"actor_0": 0, "actor_1": 0, "evaluator": 0}
    world.tend(300)  # all wait for weights
    assert world.started == ALL
    assert world.status["restarts"] == {"learner": 0, "actor_0": 0, "actor_1": 0, "evaluator": 0}
    assert world.news == []
    assert "progress" not in world.status
    assert world.status["states"] == dict.fromkeys(("learner", "actor_0", "actor_1", "evaluator"), "running")
    world.handle("evaluator").ready = False
    world.handle("actor_1").die()
    world.tend()
    states = {"learner": "running", "actor_0": "running", "actor_1": "dead: exit code 1", "evaluator": "starting"}
    assert world.status["states"] == states
    world.engine.refuses_to_be_ready.add("actor_1")
    world.tend(BACKOFF_S)
    assert world.status["states"]["actor_1"] == "restarting"
    world.engine.silent = True  # no answer of the learner's either
    world.handle("actor_1").ready = True
    world.tend()
    assert world.status["states"]["actor_1"] == "running"


def test_a_dead_role_is_replaced_after_a_pause_that_doubles_once_the_learner_knows(world: World) -> None:
    for number in range(3):
        world.handle("actor_1").die()
        world.tend()
        pause = BACKOFF_S * 2**number
        assert world.news[-1] == f"actor_1: exit code 1; restart {number + 1} of 3 in {pause:g} s"
        world.tend(pause - 0.01)
        assert len(world.started) == 4 + number
        world.tend(0.02)
        assert world.started[4 + number :] == [f"actor_1.{number + 1}"]
        assert world.engine.inbox._incarnations["actor_1"] == number + 1
    assert world.status["restarts"]["actor_1"] == 3
    world.engine.silent = True
    world.handle("actor_0").die()
    world.tend(BACKOFF_S + 1)
    assert world.started[-1] == "actor_1.3"
    world.engine.silent = False
    world.tend()
    assert world.started[-1] == "actor_0.1"


def test_deaths_are_forgotten_after_the_window_and_the_pause_does_not_grow_for_ever(world: World) -> None:
    world.supervisor._settings = dataclasses.replace(CONFIG.supervision, restarts=100)
    for _ in range(DOUBLINGS + 3):
        world.handle("actor_0").die()
        world.tend(BACKOFF_S * 2**DOUBLINGS + 0.1)
    assert world.news[-1].endswith(f"in {BACKOFF_S * 2**DOUBLINGS:g} s")
    world.now += 120
    world.tend()
    world.handle("actor_0").die()
    world.tend()
    assert "restart 1 of" in world.news[-1]


def test_who_dies_after_a_while_comes_back_as_soon_as_after_the_first_death(world: World) -> None:
    for number in range(3):
        world.handle("actor_0").die()
        world.tend()
        assert world.news[-1].endswith(f"restart {number + 1} of 3 in {BACKOFF_S:g} s")
        world.tend(QUICK_S)


def test_one_death_too_many_ends_the_run_with_the_traceback_and_the_name(world: World) -> None:
    for _ in range(3):
        world.handle("actor_1").die()
        world.tend(10)
    world.handle("actor_0").die()  # everybody has their own count
    world.tend(10)
    world.handle("actor_1").die("killed by SIGSEGV")
    with pytest.raises(RunFailed) as raised:
        world.tend()
    reason = "actor_1: killed by SIGSEGV; it ended 4 times within 2 minutes, supervision.restarts allows 3"
    assert str(raised.value) == f"a traceback\nactor_1: killed by SIGSEGV\n{reason}"


def raise_in(world: World, name: str, raised: str) -> None:
    world.tend(30)
    world.handle(name).raised = raised
    world.handle(name).die(raised)
    world.tend()


def test_the_same_exception_twice_before_the_first_unroll_ends_the_run(world: World) -> None:
    raise_in(world, "actor_0", "ValueError: one")
    raise_in(world, "actor_1", "ValueError: another")
    raise_in(world, "evaluator", "ValueError: one")
    for _ in range(2):
        world.tend(30)
        world.handle("actor_0").die("killed by SIGSEGV")  # which may be the machine's fault
        world.tend()
    with pytest.raises(RunFailed) as raised:
        raise_in(world, "actor_1", "ValueError: one")
    assert str(raised.value).endswith(
        "actor_1: ValueError: one; the same error came before, and no unroll was accepted yet"
    )


def test_after_the_first_unroll_the_same_exception_may_come_again(world: World) -> None:
    world.engine.inbox.status = {"env_steps": 40}
    for number in range(2):
        raise_in(world, "actor_0", "ValueError: one")
        assert world.news[-1].startswith(f"actor_0: ValueError: one; restart {number + 1} of 3")


def test_a_configuration_error_ends_the_run_at_the_first_start_only(world: World) -> None:
    world.handle("actor_0").die()
    world.tend(1)
    for name in ("actor_0", "actor_1"):
        world.handle(name).config_error = "environment.id: not any more"
    world.handle("actor_0").die("exit code 2")
    world.tend()
    assert world.news[-1].startswith("actor_0: environment.id: not any more; restart 2 of 3")
    world.handle("actor_1").die("exit code 2")
    with pytest.raises(ConfigError, match=r"^environment\.id: not any more$"):
        world.tend()


def test_no_progress_with_credit_is_a_hang_and_without_none_until_it_is_answered(world: World) -> None:
    world.answer()
    world.tend(9)
    for seed in range(2):
        world.speaker("actor_1").say(unroll=made_up_unroll(CONFIG, seed))
    hung = world.handle("actor_0")
    world.tend(3)
    assert world.news == ["actor_0: no progress for 10 s (supervision.hung_seconds); restart 1 of 3 in 0.5 s"]
    assert (hung.alive, hung.dumped) == (False, True)
    assert world.started == [*ALL, "actor_0.1"]
    world.tend(20)
    assert len(world.news) == 1
    post = world.engine.inbox.take_unroll(0)
    assert post is not None
    post.answer(Reply(1))
    world.tend(9)
    assert len(world.news) == 1
    world.tend(2)
    assert world.news[1:] == ["actor_1: no progress for 10 s (supervision.hung_seconds); restart 1 of 3 in 0.5 s"]


def test_an_evaluation_may_take_its_time_but_not_for_ever(world: World) -> None:
    post = world.engine.inbox.take_other()
    while post and post.message.peer.role != "evaluator":
        post = world.engine.inbox.take_other()
    assert post is not None
    post.answer(Reply(0))
    world.tend(59)
    assert world.news == []
    world.tend(3)
    assert world.news == ["evaluator: no progress for 60 s (supervision.evaluation_minutes); restart 1 of 3 in 0.5 s"]


def test_who_does_not_get_ready_is_replaced(world: World) -> None:
    world.engine.refuses_to_be_ready = {"actor_1"}
    world.handle("actor_1").die()
    world.tend(1)
    world.tend(READY_S - 1)
    assert len(world.news) == 1
    world.tend(2)
    assert world.news[1].startswith(f"actor_1: not ready for {READY_S:g} s; restart")


def test_a_silent_learner_without_a_checkpoint_ends_the_run(world: World) -> None:
    world.engine.silent = True
    world.tend(9)
    with pytest.raises(RunFailed, match=r"learner: no progress for 10 s \(.*\); there is no checkpoint"):
        world.tend(3)
    assert world.handle("learner").dumped


def test_a_learner_that_answers_but_does_nothing_is_replaced_as_soon_as_it_may_have_saved(world: World) -> None:
    world.checkpoint = Path("checkpoint/1")
    world.tend(300)
    world.engine.inbox.status = {"env_steps": 0, "replay_bytes": 20 * SAVED_BYTES_PER_S}
    world.tend(5)
    assert world.supervisor.replay_save_s == 20.0
    world.engine.stuck = True
    world.tend(28)
    assert world.news == []
    world.tend(4)
    assert world.news == ["learner: no progress for 30 s (supervision.hung_seconds); restart 1 of 3 in 0.5 s"]


def test_a_learner_that_has_saved_may_end_as_it_likes(world: World) -> None:
    world.handle("learner").result = Outcome("env_steps", 1, 1, 0.0, 0.0, None, "", "")
    world.handle("learner").die("killed by SIGKILL")
    world.tend(5)
    assert world.started == ALL


def test_what_a_learner_raises_is_not_tried_again(world: World) -> None:
    world.checkpoint = Path("checkpoint/1")
    world.handle("learner").raised = "OSError: No space left on device"
    world.handle("learner").die()
    with pytest.raises(
        RunFailed, match="a traceback\nlearner: exit code 1\nlearner: OSError: No space left on device; a restart"
    ):
        world.tend()


def test_a_learner_goes_on_from_its_checkpoint_and_the_others_meet_it_once_it_knows_them(world: World) -> None:
    world.checkpoint = Path("checkpoint/1")
    world.answer()
    world.handle("learner").die("killed by SIGKILL")
    world.handle("actor_1").die("killed by SIGKILL")
    world.mute = {"actor_0"}
    reconnected = world.engine.reconnected
    world.engine.refuses_to_be_ready = {"learner"}
    world.tend(20)
    assert world.started == [*ALL, "learner.1", "actor_1.1"]
    assert world.engine.reconnected == reconnected
    world.handle("learner").ready = True
    world.tend()
    assert world.engine.reconnected == reconnected + 1
    assert world.engine.inbox._incarnations == {"actor_0": 0, "actor_1": 1, "evaluator": 0}
    assert [line.split(";")[0] for line in world.news] == ["learner: killed by SIGKILL", "actor_1: killed by SIGKILL"]
    world.tend(9)
    assert len(world.news) == 2
    world.tend(3)  # who does not come to the new learner hangs
    assert world.news[2:] == ["actor_0: no progress for 10 s (supervision.hung_seconds); restart 1 of 3 in 0.5 s"]


def test_who_left_when_told_stays_away_unless_another_learner_goes_on(world: World) -> None:
    world.checkpoint = Path("checkpoint/1")
    world.answer()
    world.engine.inbox.stop("env_steps")
    world.handle("actor_0").die(how="")
    world.tend(30)
    assert world.started == ALL
    assert world.status["restarts"]["actor_0"] == 0
    world.handle("learner").die("killed by SIGKILL")  # before it has saved
    world.tend(5)
    assert world.started == [*ALL, "learner.1", "actor_0.1"]
    assert len(world.news) == 1


def test_nobody_is_replaced_once_the_run_is_about_to_end(world: World) -> None:
    world.answer()
    world.supervisor.stop_learner("SIGINT")
    world.tend()
    world.handle("actor_0").die()
    world.tend(100)
    assert world.started == ALL


def test_who_must_leave_by_itself_is_working_and_who_plays_is_dismissed(world: World) -> None:
    working = []
    for name in ("actor_0", "actor_1", "evaluator"):
        working.append(world.supervisor.working)
        world.handle(name).die() if name != "actor_1" else setattr(world.handle(name), "ready", False)
    assert [*working, world.supervisor.working] == [True] * 3 + [False]  # a learner that has not saved does not leave
    world.handle("learner").result = Outcome("env_steps", 1, 1, 0.0, 0.0, None, "", "")
    assert world.supervisor.working
    world.supervisor.dismiss()
    assert [name for name in world.engine.handles if world.handle(name).dismissed] == ["actor_1"]


def test_an_error_is_told_even_if_what_raised_it_hangs_as_it_closes(world: World) -> None:
    world.answer()
    world.handle("actor_0").raised = "ValueError: one"
    world.engine.inbox.status = {"env_steps": 40}
    world.tend(11)
    assert world.news[0] == "actor_0: ValueError: one; restart 1 of 3 in 0.5 s"
