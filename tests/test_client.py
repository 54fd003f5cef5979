"""The Python client, against a real server."""

from __future__ import annotations

import contextlib
import itertools
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete

from apex_acer.client import Client, Ended, EpisodeLost, RemoteError, run, spaces
from tests.environments_for_tests import Spaces
from tests.remote.conftest import HELLO, LOST, OBS, TOKEN, Serve, broken_server, free_port, serve, until
from tests.runs import BOX, CARTPOLE

SPACES: dict[str, Any] = {name: HELLO[name] for name in ("observation", "action")}
assert serve  # the fixture


def cut(client: Client) -> None:
    """Breaks its connection."""
    assert client._connection
    client._connection.socket.shutdown(2)


def test_it_can_be_copied_to_where_there_is_no_torch(tmp_path: Any) -> None:
    import apex_acer.client as module

    assert module.__file__
    (tmp_path / "mine.py").write_text(Path(module.__file__).read_text())
    code = "import sys, mine; assert not {'torch', 'gymnasium', 'apex_acer'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, timeout=60)


def test_processes_that_one_process_forks_do_not_return_together() -> None:
    # each writes once: what `print` writes in two pieces can lie between the other's
    code = r"import os; from apex_acer.client import JITTER; os.fork(); os.write(1, f'{JITTER.random()}\n'.encode())"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True, timeout=60)
    one, other = done.stdout.split()
    assert one != other


def test_episodes_until_the_run_ends(serve: Serve) -> None:
    acting = serve()
    with Client(acting.server.url, TOKEN, **SPACES) as client:
        assert client.reset(OBS) == 0
        assert client.step(np.array([1, 2, 3, 4], np.float64), 1) == 1
        client.end(OBS, 2.5, terminated=False)
        assert client.reset(OBS) == 0
    until(lambda: acting.kinds() == ["reset", "step", "truncated", "reset", LOST])
    assert [event.reward for event in acting.events] == [0, 1, 2.5, 0, 0]
    assert np.asarray(acting.events[1].obs).tolist() == [1, 2, 3, 4]
    with Client(acting.server.url, TOKEN, **SPACES) as client:
        client.reset(OBS)
        acting.server.close()
        with pytest.raises(Ended, match="the run has ended"):
            client.step(OBS, 1)


def test_a_gymnasium_environment(serve: Serve) -> None:
    acting = serve()
    env = gymnasium.make("CartPole-v1")
    played = run(env, acting.server.url, TOKEN, episodes=3, seed=1)
    assert played.episodes == len(played.returns) == 3
    assert played.steps == sum(played.returns) == acting.kinds().count("step") + 3
    until(lambda: acting.kinds().count("reset") == acting.kinds().count("terminated") == 3)


def test_a_vector_of_environments_plays_on_one_connection(serve: Serve) -> None:
    acting = serve(clients=3)
    envs = gymnasium.make_vec("CartPole-v1", 3, vectorization_mode="sync")
    played = run(envs, acting.server.url, TOKEN, episodes=5, seed=1)
    assert len(played.returns) == played.episodes >= 5
    until(lambda: sum(event.kind not in ("reset", LOST) for event in acting.events) == played.steps)
    assert sum(played.returns) <= played.steps
    kinds = [[event.kind for event in acting.events if event.slot == slot] for slot in range(3)]
    assert sum(each.count("terminated") for each in kinds) == played.episodes
    for each in kinds:  # an episode's end, then a reset
        assert each[0] == "reset"
        assert [after for before, after in itertools.pairwise(each) if before == "terminated"] == ["reset"] * (
            each.count("reset") - 1
        )
    assert sum(event.reward for event in acting.events if event.kind == "reset") == 0


def test_a_vector_that_resets_itself_otherwise_is_refused_in_one_line() -> None:
    envs = gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="sync", vector_kwargs={"autoreset_mode": "SameStep"})
    with pytest.raises(ValueError, match=r"^env has autoreset mode AutoresetMode.SAME_STEP; require NEXT_STEP$"):
        run(envs, "ws://127.0.0.1:9", TOKEN, patience_s=0.0)


def test_agents_go_on_after_a_cut_and_begin_again_after_a_long_one(serve: Serve) -> None:
    acting, zeros = serve(grace_s=60.0), np.zeros(2)
    with Client(acting.server.url, TOKEN, **SPACES, agents=2) as client:
        assert client.steps(["reset", "wait"], [OBS, OBS], zeros) == [0, None]
        for number in range(6):
            if number % 2 == 0:
                cut(client)
            kinds = ["step", "step" if number else "reset"]
            assert client.steps(kinds, np.array([[number, 0, 0, 0], OBS]), zeros) == [number % 2, 0]
        client.steps(["wait", "terminated"], [OBS, OBS], [0, 2.5])
    until(lambda: acting.kinds()[-2:] == ["terminated", LOST])
    assert len(acting.events) == 15
    acting = serve(grace_s=0.0)
    with Client(acting.server.url, TOKEN, **SPACES, agents=2) as client:
        for kinds in (["step", "wait"], ["reset", "wait"]):
            client.steps(["reset", "reset"], [OBS, OBS], zeros)
            client.steps(["terminated", "step"], [OBS, OBS], zeros)
            cut(client)
            until(lambda: acting.server.num == 0)
            with pytest.raises(EpisodeLost):  # also if it is that of an agent that waits
                client.steps(kinds, [OBS, OBS], zeros)
        assert client.steps(["reset", "reset"], [OBS, OBS], zeros) == [0, 0]


def test_each_kind_of_actions_is_told_as_the_page_says() -> None:
    told: list[tuple[Any, dict[str, Any]]] = [
        (Discrete(3, start=2), {"n": 3, "start": 2}),
        (MultiDiscrete(np.array([[3], [2]]), start=np.array([[1], [0]])), {"nvec": [3, 2], "start": [1, 0]}),
        (MultiBinary((2, 2)), {"nvec": [2, 2, 2, 2]}),
        (Box(-2, 2, (1,)), {"low": [-2.0], "high": [2.0]}),
    ]
    for space, action in told:
        assert spaces(Spaces(action=space)) == {"observation": {"shape": [2], "dtype": "float32"}, "action": action}


def test_a_broken_connection_goes_unnoticed(serve: Serve) -> None:
    acting = serve(grace_s=60.0)
    with Client(acting.server.url, TOKEN, **SPACES) as client:
        client.reset(OBS)
        for number in range(20):
            if number % 3 == 0:
                cut(client)
            assert client.step([number, 0, 0, 0], 1) == number % 2
        client.end(OBS, 1, terminated=True)
    until(lambda: acting.kinds() == ["reset", *["step"] * 20, "terminated"])


def test_an_episode_that_was_lost_is_reported_and_the_next_one_begins_in_whatever_session(serve: Serve) -> None:
    acting = serve(grace_s=0.0)
    with Client(acting.server.url, TOKEN, **SPACES) as client:
        for number in range(2):
            client.reset(OBS)
            if number:
                client.end(OBS, 1, terminated=True)
            cut(client)
            until(lambda: acting.server.num == 0)
            if not number:
                with pytest.raises(EpisodeLost):
                    client.step(OBS, 1)
            assert client.reset(OBS) == 0
            assert client.step(OBS, 1) == 0
            client.end(OBS, 1, terminated=True)
    assert acting.kinds().count(LOST) == 1


def test_it_waits_for_a_server_that_comes_later_and_for_a_place(serve: Serve) -> None:
    port = free_port()
    results: list[Any] = []

    def play() -> None:
        results.append(run(gymnasium.make("CartPole-v1"), f"ws://127.0.0.1:{port}", TOKEN, episodes=1))

    threads = [threading.Thread(target=play) for _ in range(2)]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    serve(listen=f"127.0.0.1:{port}", clients=1)
    for thread in threads:
        thread.join(20)
    assert [played.episodes for played in results] == [1, 1]


def test_pauses_grow_as_long_as_no_message_is_answered(caplog: pytest.LogCaptureFixture) -> None:
    def play() -> None:
        with (
            contextlib.suppress(RemoteError),
            Client(f"ws://127.0.0.1:{port}", TOKEN, **SPACES, patience_s=1.0) as client,
        ):
            client.reset(OBS)

    with broken_server() as (port, welcomes):
        playing = threading.Thread(target=play)
        playing.start()
        until(lambda: len(welcomes) >= 5, 30)
    playing.join(30)
    assert welcomes[4] - welcomes[0] > 0.5 * (0.1 + 0.2 + 0.4 + 0.8)
    assert caplog.messages[0].endswith("; trying again for 1 s")


def test_what_is_refused_and_nobody_there_is_one_line(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    given, started = {"url": serve().server.url, "token": TOKEN, **SPACES}, time.monotonic()
    nobody = f"ws://127.0.0.1:{free_port()}"
    refusals: list[tuple[dict[str, Any], str]] = [
        ({"token": "open"}, "wrong token"),
        ({"action": {"n": 3}}, r"action is \{.n.: 3}, this server.s is \{.n.: 2, .start.: 0}"),
        ({"url": "http://127.0.0.1"}, "http://127.0.0.1 isn't a valid URI"),
        ({"url": nobody, "patience_s": 0.5}, f"{nobody}: .*refused"),
    ]
    random.seed(3)
    expected = random.getstate()
    for changes, message in refusals:
        with pytest.raises(RemoteError, match=message):
            Client(**(given | changes))
    assert time.monotonic() - started < 3
    (line,) = [record.getMessage() for record in caplog.records if record.name == "apex_acer.client"]
    assert line.startswith(f"{nobody}: ")
    assert line.endswith("; trying again for 0.5 s")
    assert random.getstate() == expected, "the environment's random numbers are its own"


def test_numbers_of_another_type_are_converted(serve: Serve) -> None:
    acting = serve(BOX)
    bounds = {"low": [-1.0, 0.0], "high": [3.0, 10.0]}
    with Client(acting.server.url, TOKEN, observation=SPACES["observation"], action=bounds) as client:
        acting.holds = True
        threading.Timer(0.2, lambda: acting.server.answer([(acting.events[0], [0.5, 2.0])])).start()
        np.testing.assert_array_equal(client.reset([1, 2, 3, 4]), np.array([0.5, 2.0], np.float32))
    assert isinstance(acting.events[0].obs, np.ndarray)
    assert acting.events[0].obs.dtype == CARTPOLE.dtype
