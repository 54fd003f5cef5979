"""The JavaScript of docs/examples in Node: CartPole's physics, the client, and carts that it plays."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from tests import ROOT
from tests.programs import eventually
from tests.remote.conftest import LOST, TOKEN, Acting, Serve, serve

EXAMPLES = ROOT / "docs" / "examples"
NODE = shutil.which("node")

pytestmark = pytest.mark.skipif(not NODE, reason="node is not installed")
assert serve  # the fixture

# plays each of the given episodes and prints what its steps return
PHYSICS = """
import { CartPole } from "./cartpole.js";
const cart = new CartPole();
const episodes = JSON.parse(process.argv[1]).map(({ start, actions, push }) => {
  cart.reset(start);
  return actions.map((action) => cart.step(action, push));
});
console.log(JSON.stringify(episodes));
"""


def javascript(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a module that stands among the examples."""
    command = [str(NODE), "--experimental-websocket", "--input-type=module", "--eval", program, *arguments]
    return subprocess.run(command, cwd=EXAMPLES, capture_output=True, text=True, timeout=60)


def simulated(episodes: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """What each step of each episode returns in JavaScript."""
    done = javascript(PHYSICS, json.dumps(episodes))
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


# ── physics ──


def keeps_upright(observation: np.ndarray) -> int:
    return int(observation @ [0.02, 0.05, 1.0, 0.5] > 0)


def test_the_physics_is_that_of_gymnasium() -> None:
    random = np.random.default_rng(0)
    starts = random.uniform(-0.05, 0.05, (22, 4)).tolist()
    policies = [keeps_upright, keeps_upright, *[lambda _: int(random.integers(2))] * 20]
    played = [play_in_gymnasium(start, policy) for start, policy in zip(starts, policies, strict=True)]
    theirs = [step for _, steps in played for step in steps]
    again = [{"start": start, "actions": actions} for start, (actions, _) in zip(starts, played, strict=True)]
    mine = [step for steps in simulated(again) for step in steps]
    assert len(mine) == len(theirs) > 1300
    assert [len(steps) for _, steps in played[:2]] == [500, 500]
    for my, (observation, reward, terminated, truncated) in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(my["observation"], observation, rtol=1e-6, atol=1e-7)
        assert (my["reward"], my["terminated"], my["truncated"]) == (reward, terminated, truncated)


def play_in_gymnasium(start: list[float], policy: Callable[[Any], int]) -> tuple[list[int], list[tuple[Any, ...]]]:
    """The actions of an episode from `start`, and what its steps return."""
    environment = gymnasium.make("CartPole-v1")
    environment.reset()
    environment.unwrapped.state = np.array(start)  # type: ignore[attr-defined]
    actions, steps, observation, over = [], [], np.array(start), False
    while not over:
        actions.append(policy(observation))
        observation, reward, terminated, truncated, _ = environment.step(actions[-1])
        steps.append((observation, reward, terminated, truncated))
        over = terminated or truncated
    return actions, steps


def test_a_push_obeys_newton() -> None:
    """Cart and pole together gain the momentum, and the pole the angular momentum, that the forces give."""
    starts = np.random.default_rng(0).uniform(-1, 1, (10, 4)) * [2, 2, 0.2, 2]
    push = np.resize([-0.7, 0.0, 0.4], len(starts))
    episodes = [{"start": start.tolist(), "actions": [1], "push": by} for start, by in zip(starts, push, strict=True)]
    after = np.array([steps[0]["observation"] for steps in simulated(episodes)])
    (_, acceleration, _, angular), (_, _, angle, spin) = ((after - starts) / 0.02).T, starts.T
    sin, cos = np.sin(angle), np.cos(angle)
    cart, pole, length, gravity = 1.0, 0.1, 0.5, 9.8
    of_the_pole = acceleration + length * (angular * cos - spin**2 * sin)
    np.testing.assert_allclose(cart * acceleration + pole * of_the_pole, 10 + push)
    torque = length * (pole * gravity * sin - pole * acceleration * cos + push * cos)
    np.testing.assert_allclose(4 / 3 * pole * length**2 * angular, torque)


# ── the client ──

# `client()` begins a session, and `tried` prints what a call returns, or why it fails
CLIENT = """
import { Client, Ended, EpisodeLost, RemoteError } from "./apex_acer_client.js";
const [url, token] = process.argv.slice(1);
const spaces = { observation: { shape: [4], dtype: "float32" }, action: { n: 2 } };
const client = (changes = {}) => Client.connect(url, token, { ...spaces, ...changes });
const say = (got) => console.log(JSON.stringify(got ?? null));
const tried = (call) => call().then(say, (error) => say(`${error.constructor.name}: ${error.message}`));
"""


def said(acting: Acting, program: str) -> list[Any]:
    """What `program` prints with a client of the server; it must not fail."""
    done = javascript(CLIENT + program, acting.server.url, TOKEN)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_client_plays_one_episode_after_another(serve: Serve) -> None:
    program = """
const one = await client();
for (const terminated of [true, false]) {
  say(await one.reset([1, 2, 3, 4]));
  say(await one.step(new Float32Array([4, 5, 6, 7]), 0.5));
  say(await one.end([7, 8, 9, 0], -1, { terminated }));
}
await one.bye();
"""
    acting = serve()
    assert said(acting, program) == [1, 0, None] * 2
    assert acting.kinds() == ["reset", "step", "terminated", "reset", "step", "truncated"]
    assert [event.reward for event in acting.events] == [0, 0.5, -1] * 2
    assert np.array([event.obs for event in acting.events]).tolist() == [[1, 2, 3, 4], [4, 5, 6, 7], [7, 8, 9, 0]] * 2


# of every fifth message and of the answer to every seventh nothing arrives, because the connection breaks
BREAKS = """
let sent = 0;
globalThis.WebSocket = class extends WebSocket {
  send(data) {
    sent += 1;
    if (sent % 5) super.send(data);
    if (sent % 5 && sent % 7) return;
    this.onmessage = null;
    this.close();
  }
};
"""


def test_connections_that_break_change_nothing(serve: Serve) -> None:
    program = """
const one = await client();
say(await one.reset([0, 0, 0, 0]));
for (let number = 1; number < 30; number += 1) say(await one.step([number, 0, 0, 0], number));
await one.bye();
"""
    acting = serve(grace_s=10.0)
    assert said(acting, BREAKS + program) == [0, 1] * 15
    assert [event.reward for event in acting.events[:30]] == list(range(30))


def test_a_session_that_is_over_costs_one_episode(serve: Serve) -> None:
    program = """
const one = await client();
await one.reset([0, 0, 0, 0]);
let lost = 0;
const beginAgain = (error) => {
  if (!(error instanceof EpisodeLost)) throw error;
  lost += 1;
  return one.reset([0, 0, 0, 0]);
};
for (let number = 1; number < 20; number += 1) await one.step([number, 0, 0, 0], 1).catch(beginAgain);
say(lost);
await one.bye();
"""
    acting = serve(grace_s=0.0)
    (lost,) = said(acting, BREAKS + program)
    assert lost > 3
    assert acting.kinds().count(LOST) >= lost


def test_what_is_wrong_is_one_line(serve: Serve) -> None:
    program = """
const one = await client();
const first = one.reset([0, 0, 0, 0]);
await tried(() => one.step([0, 0, 0, 0], 1));
say(await first);
await one.bye();
await tried(() => Client.connect(url, "another", spaces));
await tried(() => Client.connect("127.0.0.1:1", token, spaces));
await tried(() => Client.connect("ws://127.0.0.1:1", token, { ...spaces, patienceMs: 50 }));
"""
    assert said(serve(), program) == [
        "RemoteError: the message before this one has no answer yet; await it first",
        0,
        "RemoteError: wrong token",
        "RemoteError: 127.0.0.1:1: TypeError: Invalid URL; give an address such as ws://127.0.0.1:7777",
        "RemoteError: ws://127.0.0.1:1: cannot connect; gave up after 0.05 s",
    ]


# ── carts ──


def node(*arguments: str) -> subprocess.CompletedProcess[str]:
    """What `cartpole_node.js` prints until it ends."""
    command = [str(NODE), "--experimental-websocket", str(EXAMPLES / "cartpole_node.js"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=200)


def test_carts_play_until_the_run_ends_and_say_why_they_were_refused(serve: Serve, tmp_path: Path) -> None:
    acting, token = serve(), tmp_path / "token"
    token.write_text(f"{TOKEN}\n")

    def leave() -> None:
        eventually(lambda: acting.kinds().count("terminated") >= 30, 30)
        acting.server.close()

    leaving = threading.Thread(target=leave)
    leaving.start()
    done = node(acting.server.url, str(token))
    leaving.join()
    assert (done.returncode, done.stderr) == (0, "the run has ended\n")
    assert " 20 episodes, mean return of the newest 20: " in done.stdout
    token.write_text("another token\n")
    done = node(serve().server.url, str(token))
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "wrong token\n")
    done = node("ws://127.0.0.1:1", str(tmp_path / "no"))
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.endswith("give the file with the run's token\n")
