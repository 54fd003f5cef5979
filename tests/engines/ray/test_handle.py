"""Several learners as one role."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from apex_acer.engines.engine import Handle
from apex_acer.engines.ray import handle as handles
from apex_acer.engines.ray.handle import GroupHandle
from apex_acer.protocol.messages import Outcome, Peer
from tests.programs import program

LEARNER = Peer("learner", 0, 0)
RESULT = Outcome("env_steps", 10, 1, 1.0, 1.0, None, "weights", "folder")


class Member(Handle):
    """One whose end a test decides."""

    going, said = True, ""

    @property
    def alive(self) -> bool:
        return self.going

    @property
    def failure(self) -> str:
        return self.said

    def end(self, said: str = "", **known: Any) -> None:
        self.going, self.said = False, said
        vars(self).update(known)

    def dump(self) -> None:
        self.said = "dumped"

    def dismiss(self) -> None:
        raise NotImplementedError

    def kill(self) -> None:
        self.going = False


@pytest.fixture
def members() -> list[Any]:
    return [Member(LEARNER), Member(LEARNER), Member(LEARNER)]


def test_they_are_ready_together_and_end_with_the_first_one_s_result(members: list[Any]) -> None:
    handle = GroupHandle(LEARNER, members)
    for member in members:
        assert (handle.alive, handle.ready) == (True, False)
        member.ready = True
    assert (handle.alive, handle.ready) == (True, True)
    members[0].end(result=RESULT)
    assert (handle.alive, handle.result) == (True, RESULT)
    members[1].end()
    members[2].end()
    assert not handle.alive
    assert (handle.failure, handle.raised, handle.config_error) == ("", "", "")


def test_one_that_is_lost_ends_all_and_says_why(members: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    handle = GroupHandle(LEARNER, members)
    members[0].end("Traceback …\napex_acer.ranks.LearnerLost: connection closed\nlearner: failed")
    lives = [handle.alive]  # for the one that is meant
    members[2].end("learner: its process died (Killed)", config_error="load: no")
    assert [*lives, handle.alive] == [True, True]
    monkeypatch.setattr(handles, "LAST_WORDS_S", -1.0)
    assert not handle.alive
    assert not members[1].going
    assert handle.failure == "learner: its process died (Killed)"
    assert (handle.raised, handle.config_error) == ("", "load: no")


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="processes are looked up in /proc")
def test_two_learners_go_on_when_one_of_them_is_killed(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"learner__count": 2, "stop__env_steps": 10**9, "checkpoint__every": 500}
    with program(tmp_path / "run", engine="ray", replay__capacity=100_000, backoff_s=0.05, **settings) as run:
        run.wait_for(lambda: any((run.out / "checkpoint").glob("*")))
        run.kill_child("learner_1")
        run.wait_for(lambda: run.statuses[-1]["restarts"]["learner"] == 1)
        assert "learner: its process died (" in run.news[-1]
        before = run.statuses[-1]["env_steps"]
        run.wait_for(lambda: run.statuses[-1]["env_steps"] > before + 1000)
        assert {"learner_0", "learner_1", "actor_0", "actor_1"} <= run.children().keys()
        run.send(2, group=True)
        result = run.ended(within_s=20)
    assert result["reason"] == "SIGINT"
    rows = [json.loads(line) for line in (run.out / "metrics.jsonl").read_text().splitlines()]
    assert {row["source"] for row in rows} == {"learner", "actor_0", "actor_1"}
    steps = [row["env_steps"] for row in rows if row["source"] == "learner"]
    assert steps == sorted(steps)
