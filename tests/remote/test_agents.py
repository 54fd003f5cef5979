"""Several agents on one connection (version 2 of the protocol), over real sockets, beside clients of version 1."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from apex_acer.remote.listener import listen_at
from tests.remote.conftest import HELLO, LOST, OBS, TOKEN, Acting, Peer, Serve, serve, until

assert serve  # the fixture
HELLO_3 = HELLO | {"version": 2, "agents": 3}


def steps(sequence: int, *kinds: str, first: tuple[float, ...] = (0, 1, 2)) -> dict[str, Any]:
    """A message about three agents, who get the parity of the `first` number of their observation."""
    observations = [[number, *OBS[1:]] for number in first]
    return {"type": "steps", "sequence": sequence, "kinds": kinds, "observations": observations, "rewards": [1, 2, 3]}


def actions(sequence: int, *chosen: int | None) -> dict[str, Any]:
    return {"type": "actions", "sequence": sequence, "actions": [*chosen]}


def seen(acting: Acting) -> list[tuple[int, str, float]]:
    """The slot, kind and reward of each event."""
    return [(event.slot, event.kind, event.reward) for event in acting.events]


def refusal(acting: Acting, hello: dict[str, Any]) -> tuple[str, bool, int | None]:
    """Why a hello is refused, whether it may come again, and the connection's close code."""
    peer = Peer(acting.server.url, None)
    error = peer.ask(hello)
    return error["message"], error["retry"], peer.closed()


def test_each_agent_has_episodes_of_its_own(serve: Serve) -> None:
    acting = serve()
    peer = Peer(acting.server.url, HELLO_3)
    assert peer.welcome | {"session": ""} == {"type": "welcome", "version": 2, "session": "", "sequence": -1}
    assert peer.ask(steps(0, "reset", "wait", "reset")) == actions(0, 0, None, 0)
    assert peer.ask(steps(1, "step", "reset", "wait", first=(1, 1, 1))) == actions(1, 1, 1, None)
    assert peer.ask(steps(2, "terminated", "truncated", "wait")) == actions(2, None, None, None)
    assert peer.ask(steps(3, "wait", "reset", "step")) == actions(3, None, 1, 0)
    assert acting.server.num == 3
    peer.say({"type": "bye", "sequence": 4})
    assert peer.closed() == 1000
    lost = [(1, LOST, 0), (2, LOST, 0)]  # the first one's episode has ended
    played = [
        (0, "reset", 0),
        (2, "reset", 0),
        (0, "step", 1),
        (1, "reset", 0),
        (0, "terminated", 1),
        (1, "truncated", 2),
    ]
    until(lambda: seen(acting) == [*played, (1, "reset", 0), (2, "step", 3), *lost])
    assert acting.server.num == 0


def test_the_answer_waits_for_the_actions_of_all_agents(serve: Serve) -> None:
    acting = serve()
    peer = Peer(acting.server.url, HELLO_3)
    acting.holds = True
    peer.say(steps(0, "reset", "reset", "wait"))
    until(lambda: len(acting.events) == 2)
    first, second = acting.events
    acting.server.answer([(second, 1)])
    with pytest.raises(TimeoutError):
        peer.hear(0.2)
    acting.server.answer([(first, 0)])
    assert peer.hear() == actions(0, 0, 1, None)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (steps(1, "step", "step", "step"), "step of agent 2 came outside an episode; send reset first"),
        (
            steps(1, "step", "reset", "wait"),
            "reset of agent 1 came during an episode; send terminated or truncated first",
        ),
        (steps(2, "step", "step", "wait"), "steps has sequence 2, expected 1"),
        (steps(1, "step", "step") | {"rewards": [1, 1]}, "steps: 2 kinds and 2 rewards; require one for each agent"),
        (
            {"type": "step", "sequence": 1, "observation": OBS, "reward": 1},
            "type 'step' is unknown; allowed: steps, bye",
        ),
    ],
)
def test_an_agent_that_breaks_a_rule_ends_the_session_of_all(serve: Serve, said: dict[str, Any], message: str) -> None:
    acting = serve()
    other, peer = Peer(acting.server.url), Peer(acting.server.url, HELLO_3)
    other.reset()
    peer.ask(steps(0, "reset", "reset", "wait"))
    error = peer.ask(said)
    assert (error["type"], error["retry"]) == ("error", False)
    assert error["message"].startswith(message)
    assert peer.closed() == 1008
    until(lambda: seen(acting)[3:] == [(1, LOST, 0), (2, LOST, 0)])
    assert other.step(1)["type"] == "action"


def test_clients_of_both_versions_play_side_by_side(serve: Serve) -> None:
    acting = serve(clients=5)
    one = Peer(acting.server.url)
    three = Peer(acting.server.url, HELLO_3)
    last = Peer(acting.server.url)
    for number in range(4):
        kind = "step" if number else "reset"
        assert three.ask(steps(number, kind, kind, kind, first=(1, 0, 1))) == actions(number, 1, 0, 1)
        assert (one.step(number) if number else one.reset()) == {"type": "action", "sequence": number, "action": 0}
        assert (last.step(number, first=1) if number else last.reset())["sequence"] == number
    until(lambda: len(acting.events) == 20)
    assert {slot for slot, _, _ in seen(acting)} == {0, 1, 2, 3, 4}


# ── places ──


def test_more_agents_than_places_are_refused_for_good_or_for_now(serve: Serve) -> None:
    acting = serve(clients=4)
    assert refusal(acting, HELLO_3 | {"agents": 5}) == ("agents is 5, serve.clients allows 4", False, 1008)
    peers = [Peer(acting.server.url), Peer(acting.server.url)]
    busy = "2 clients are connected, serve.clients allows 2 more; try again later"
    assert refusal(acting, HELLO_3) == (busy, True, 1013)
    assert [peer.reset()["type"] for peer in peers] == ["action"] * 2


def test_agents_that_are_away_make_room_only_if_that_is_enough(serve: Serve) -> None:
    acting = serve(clients=4, grace_s=60.0)
    alone, three = Peer(acting.server.url), Peer(acting.server.url, HELLO_3)
    three.ask(steps(0, "reset", "wait", "reset"))
    three.cut()
    until(lambda: acting.server.num == 1)
    message, retry, _ = refusal(acting, HELLO_3 | {"agents": 4})
    assert (message, retry) == ("1 clients are connected, serve.clients allows 3 more; try again later", True)
    assert len(acting.events) == 2, "nobody lost a place in vain"
    two = Peer(acting.server.url, HELLO_3 | {"agents": 2})
    until(lambda: seen(acting)[2:] == [(1, LOST, 0), (3, LOST, 0)])
    assert two.ask({**steps(0, "reset", "reset", first=(0, 1)), "rewards": [0, 0]}) == actions(0, 0, 1)
    assert [event.slot for event in acting.events[-2:]] == [1, 2]
    assert alone.reset()["type"] == "action"


# ── coming back ──


@pytest.mark.parametrize("is_answered", [True, False], ids=["after the answer", "before it"])
def test_a_cut_loses_no_step_and_counts_none_twice(serve: Serve, is_answered: bool) -> None:
    acting = serve(grace_s=60.0)
    peer = Peer(acting.server.url, HELLO_3)
    peer.ask(steps(0, "reset", "reset", "wait"))
    acting.holds = not is_answered
    peer.say(steps(1, "step", "terminated", "reset"))
    until(lambda: len(acting.events) == 5)
    if is_answered:
        assert peer.hear() == actions(1, 0, None, 0)
    peer.cut()
    until(lambda: acting.server.num == 0)
    again = Peer(acting.server.url, HELLO_3 | {"session": peer.welcome["session"]})
    assert (again.welcome["session"], again.welcome["sequence"]) == (peer.welcome["session"], 1)
    acting.holds = False
    assert again.hear() == actions(1, 0, None, 0)
    assert again.ask(steps(2, "step", "reset", "step")) == actions(2, 0, 1, 0)
    assert [slot for slot, _, _ in seen(acting)] == [0, 1, 0, 1, 2, 0, 1, 2]


def test_who_comes_back_with_other_agents_is_refused_and_the_session_lives_on(serve: Serve) -> None:
    acting = serve(grace_s=60.0)
    alone, peer = Peer(acting.server.url), Peer(acting.server.url, HELLO_3)
    peer.ask(steps(0, "reset", "reset", "wait"))
    peer.cut()
    until(lambda: acting.server.num == 1)
    session = {"session": peer.welcome["session"]}
    three = "version 2 with 3 agents"
    for hello, said in ((HELLO_3 | {"agents": 2}, "version 2 with 2 agents"), (HELLO, "version 1")):
        assert refusal(acting, hello | session) == (f"hello is of {said}, but its session is of {three}", False, 1008)
    other = HELLO_3 | {"agents": 1, "session": alone.welcome["session"]}
    message = "hello is of version 2 with 1 agents, but its session is of version 1"
    assert refusal(acting, other) == (message, False, 1008)
    again = Peer(acting.server.url, HELLO_3 | session)
    assert (again.welcome["sequence"], again.hear()) == (0, actions(0, 0, 1, None))
    assert len(acting.events) == 2
    assert alone.reset()["type"] == "action"


def test_after_too_long_only_episodes_that_had_not_ended_are_lost(serve: Serve) -> None:
    acting = serve(grace_s=0.1)
    peer = Peer(acting.server.url, HELLO_3)
    peer.ask(steps(0, "reset", "reset", "wait"))
    peer.ask(steps(1, "truncated", "wait", "wait"))
    peer.cut()
    until(lambda: seen(acting)[3:] == [(1, LOST, 0)])
    again = Peer(acting.server.url, HELLO_3 | {"session": peer.welcome["session"]})
    assert again.welcome["session"] != peer.welcome["session"]
    assert again.welcome["sequence"] == -1
    assert again.ask(steps(0, "reset", "reset", "reset")) == actions(0, 0, 1, 0)


# ── limits ──


def padded(values: dict[str, Any], size: int) -> str:
    """The message in so many bytes of JSON."""
    return json.dumps(values).ljust(size)


@pytest.mark.parametrize("relayed", [False, True], ids=["learned from", "evaluated"])
def test_a_message_may_be_as_long_as_those_of_its_agents(serve: Serve, tmp_path: Path, relayed: bool) -> None:
    (tmp_path / "evaluator").write_text(str(tmp_path / "socket"))
    serve(listener=listen_at(tmp_path / "socket"))
    acting = serve(evaluator=tmp_path / "evaluator")
    peer = Peer(acting.server.url, HELLO_3 | {"train": not relayed})
    most = (1 << 16) + 3 * 4 * 32
    assert peer.ask(padded(steps(0, "reset", "reset", "reset"), most)) == actions(0, 0, 1, 0)
    error = peer.ask(padded(steps(1, "step", "step", "step"), most + 1))
    assert error["message"] == f"a message is too large; require at most {most} bytes"
    assert peer.closed() == 1009


def test_a_hello_that_is_refused_gets_no_room(serve: Serve) -> None:
    acting = serve(clients=2)
    peer = Peer(acting.server.url, None)
    peer.say(HELLO_3 | {"agents": 2, "token": TOKEN[1:]})
    assert peer.hear()["message"] == "wrong token"
    peer = Peer(acting.server.url, None)
    assert peer.ask(padded(HELLO_3, (1 << 16) + 4 * 32 + 1))["message"].startswith("a message is too large")


# ── what is told of clients ──


def test_the_log_has_a_named_client_s_steps_rate_and_mean_return(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    acting = serve()
    Peer(acting.server.url).reset()  # without a name
    leaving, staying = (Peer(acting.server.url, HELLO_3 | {"name": name}) for name in (f"unity {TOKEN}", "godot"))
    leaving.ask(steps(0, "reset", "reset", "wait"))
    leaving.ask(steps(1, "step", "truncated", "wait"))
    leaving.ask(steps(2, "terminated", "reset", "wait"))
    leaving.ask(steps(3, "reset", "truncated", "wait"))
    leaving.say({"type": "bye", "sequence": 4})
    assert leaving.closed() == 1000
    staying.ask(steps(0, "reset", "reset", "reset"))
    acting.server.close()
    came = [f"client {name!r} has come with 3 agents" for name in ("unity …", "godot")]
    said = [line for line in caplog.messages if line.startswith("client ")]
    assert said[:2] == came
    assert re.sub(r"[\d,]+/s", "n/s", said[2]) == (
        "client 'unity …' has left: 3 agents, 4 steps, n/s, mean return 2.0 of 3 episodes"  # 1 + 1, 2, 2
    )
    assert said[3:] == ["client 'godot' has left: 3 agents, 0 steps, 0/s"]


def test_refused_clients_are_counted(serve: Serve) -> None:
    acting = serve(clients=1)
    peer = Peer(acting.server.url)
    assert acting.server.metrics() == {"clients": 1, "refused_clients": 0}
    refusal(acting, HELLO_3)
    refusal(acting, HELLO)
    assert peer.step(0)["type"] == "error"
    until(lambda: acting.server.metrics() == {"clients": 0, "refused_clients": 3})
    assert acting.server.client_rows() == {"@127.0.0.1": {"refused_clients": 3}}


def test_each_name_has_a_row_and_who_knows_no_token_has_none(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    acting = serve(clients=6)
    robot = HELLO_3 | {"name": "robot"}
    peer, other = Peer(acting.server.url, robot), Peer(acting.server.url, robot | {"agents": 2, "name": f"a {TOKEN}"})
    Peer(acting.server.url).reset()  # without a name
    peer.ask(steps(0, "reset", "reset", "wait"))
    peer.ask(steps(1, "terminated", "step", "wait"))
    rows = acting.server.client_rows()
    assert rows["robot"].pop("env_steps_per_s") > 0
    played = {"clients": 3, "episodes": 1, "episode_return": 1, "episode_return_max": 1, "refused_clients": 0}
    assert rows.pop("robot") == played
    assert rows.keys() == {"a__"}, "a name without the token"
    refused: list[tuple[dict[str, Any], str]] = [
        ({"token": "a guess", "name": "evil"}, "a client at 127.0.0.1: wrong token"),
        ({"name": "evil" * 11}, "a client at 127.0.0.1: hello: name is of type str; require a string of"),
        ({"action": {"n": 3}}, "client 'robot': action is {'n': 3}, this server's is"),
        ({"observation": {"shape": [2], "dtype": "float32"}}, "client 'robot': observation is"),
        ({"agents": 7}, "client 'robot': agents is 7, serve.clients allows 6"),
    ]
    for change, _ in refused:
        refusal(acting, robot | change)
    assert other.ask(steps(0, "reset", "step", "wait"))["type"] == "error"
    assert peer.ask(steps(0, "reset", "reset", "wait"))["type"] == "error"
    said = [line.removeprefix("refused ") for line in caplog.messages if line.startswith("refused ")]
    starts = [*(start for _, start in refused), "client 'a …': steps: 3 kinds", "client 'robot': steps has sequence 0"]
    assert all(line.startswith(start) for line, start in zip(said, starts, strict=True)), said
    until(lambda: acting.server.num == 1)
    counts = {name: row["refused_clients"] for name, row in acting.server.client_rows().items()}
    assert counts == {"robot": 4, "a__": 1, "@127.0.0.1": 2}
    acting.server.close()
    assert caplog.messages[-1] == "refused clients: robot 4, a__ 1, @127.0.0.1 2"
    assert TOKEN not in caplog.text
    assert "evil" not in caplog.text
