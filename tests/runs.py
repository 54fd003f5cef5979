"""Builders shared by tests: a tiny CartPole run, unrolls that fit its layout, and a peer to speak with an inbox."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from apex_acer.config import RunConfig
from apex_acer.engines.serial import DirectLink
from apex_acer.inbox import Inbox
from apex_acer.messages import Message, Peer, Reply
from apex_acer.runfile import from_dict
from apex_acer.trajectory import EnvironmentSpec, Layout, Unroll, layout

RUN_ID = "this-run"
CARTPOLE = EnvironmentSpec(
    plane_shape=(4,), dtype="float32", num_actions=2, first_action=0, stack=1, channels_last=False, action_repeat=1
)
TINY: dict[str, Any] = {
    "engine": "serial",
    "actors.count": 2,
    "actors.environments": 4,
    "actors.weights_every": 10,
    "actors.threads": 1,
    "learner.device": "cpu",
    "learner.batch_size": 4,
    "learner.threads": 1,
    "network.hidden_sizes": (16,),
    "replay.capacity": 2000,
    "replay.start": 100,
    "algorithm.unroll_length": 5,
    "algorithm.replay_ratio": 1.0,
    "evaluation.every": 0,
    "evaluation.episodes": 4,
    "evaluation.environments": 4,
    "logging.every_seconds": 0.1,
    "stop.env_steps": 1000,
}


def tiny_run(out: Path | str = "", **changes: Any) -> RunConfig:
    """A run that takes a moment; `changes` are keys with `__` for the dot."""
    nested: dict[str, Any] = {"out": str(out)}
    for key, value in (TINY | {name.replace("__", "."): value for name, value in changes.items()}).items():
        section, _, name = key.rpartition(".")
        (nested.setdefault(section, {}) if section else nested)[name] = value
    return from_dict(nested)


def tiny_layout(config: RunConfig) -> Layout:
    """The layout of `config`'s unrolls."""
    return layout(CARTPOLE, config.algorithm.unroll_length, {"log_probs": (CARTPOLE.num_actions,)})


def made_up_unroll(config: RunConfig, seed: int = 0, **replaced: Any) -> Unroll:
    """An unroll without dummy steps that fits `tiny_layout`; `replaced` are fields of it."""
    random = np.random.default_rng(seed)
    k, num = config.algorithm.unroll_length, config.actors.environments
    p = random.uniform(0.2, 0.8, (k, num)).astype(np.float32)
    fields: dict[str, Any] = {
        "obs": random.normal(size=(k + 1, num, 4)).astype(np.float32),
        "episode_step": np.tile(np.arange(k + 1, dtype=np.int32)[:, None], (1, num)),
        "action": random.integers(0, 2, (k, num)),
        "reward": np.ones((k, num), np.float32),
        "terminated": random.random((k, num)) < 0.1,
        "truncated": np.zeros((k, num), bool),
        "mask": np.ones((k, num), bool),
        "behaviour": {"log_probs": np.log(np.stack([p, 1 - p], -1))},
        "state": {},
    }
    return Unroll(**(fields | replaced))


class Speaker:
    """A peer of `inbox` in this process, which keeps its sequence."""

    def __init__(self, inbox: Inbox, peer: Peer) -> None:
        self.peer = peer
        self.sequence = 0
        self._link = DirectLink(inbox)

    def say(self, **said: Any) -> Reply | None:
        """Sends a message; returns the oldest reply not seen yet."""
        message = Message(**({"run_id": RUN_ID, "peer": self.peer, "sequence": self.sequence} | said))
        self._link.send(message)
        self.sequence += 1
        return self.hear()

    def hear(self) -> Reply | None:
        """The oldest reply not seen yet."""
        return self._link.receive(0)


def known_speakers(inbox: Inbox, *peers: Peer) -> list[Speaker]:
    """Speakers for `peers`, of which a manager has told `inbox`."""
    Speaker(inbox, Peer("manager", 0, 0)).say(incarnations={peer.name: peer.incarnation for peer in peers})
    return [Speaker(inbox, peer) for peer in peers]
