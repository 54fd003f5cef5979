"""An actor whose environments are remote, with a learner that a test plays."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import gymnasium

from apex_acer.actor.actor import Actor
from apex_acer.client import run
from apex_acer.protocol.messages import Peer
from tests.actor.test_actor import RecordingLink, first_weights, network
from tests.remote.conftest import TOKEN, free_port
from tests.runs import RUN_ID, tiny_run


def test_clients_go_on_while_the_learner_is_busy_until_an_unroll_of_each_waits(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "token").chmod(0o600)
    listen = f"127.0.0.1:{free_port()}"
    remote = {"listen": listen, "observation_shape": (4,), "num_actions": 2, "local": "CartPole-v1"}
    config = tiny_run(
        engine="local", environment__id="remote", environment__remote=remote, actors__count=1, actors__environments=1
    )
    link = RecordingLink()
    actor = Actor(config, RUN_ID, Peer("actor", 0, 0), link, folder=tmp_path)
    link.replies.append(first_weights(sent=network(config)))
    made: list[int] = []
    env = gymnasium.wrappers.TransformReward(gymnasium.make("CartPole-v1"), lambda reward: (made.append(1), reward)[1])
    client = threading.Thread(target=run, args=(env, f"ws://{listen}", TOKEN))
    client.start()
    try:
        ends_at = time.monotonic() + 3
        while time.monotonic() < ends_at and len(made) < 30:
            actor.step(0.05)
        unrolls = [message for message in link.sent if message.unroll]
        assert len(unrolls) == config.max_unanswered
        length = config.algorithm.unroll_length
        assert (len(unrolls) + 1) * length - 2 <= len(made) < (len(unrolls) + 2) * length
    finally:
        actor.close()
        client.join(10)
