"""Builders shared by tests: a tiny CartPole run, unrolls that fit its layout, and peers to speak with an inbox."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from apex_acer.algorithms import make_agent
from apex_acer.config import AlgorithmConfig, RunConfig, settings_classes
from apex_acer.config.runfile import from_dict
from apex_acer.engines.serial import DirectLink
from apex_acer.learner.inbox import Inbox
from apex_acer.learner.learner import Learner
from apex_acer.protocol.actions import Box, Discrete
from apex_acer.protocol.messages import Message, Peer, Reply
from apex_acer.protocol.planes import pack
from apex_acer.protocol.specification import EnvironmentSpec, Part
from apex_acer.protocol.unroll import PRIORITY, Batch, Layout, Unroll

RUN_ID = "this-run"
CARTPOLE = EnvironmentSpec(
    plane_shape=(4,),
    dtype="float32",
    actions=Discrete(2, start=0),
    stack=1,
    channels_last=False,
    action_repeat=1,
    given_shape=(4,),
)
BOX = dataclasses.replace(CARTPOLE, actions=Box((-1.0, 0.0), (3.0, 10.0), (2,), "float32"))
"""The same with continuous actions."""
PARTS = EnvironmentSpec.of_parts(
    (
        Part("action_mask", (2,), "int8", False, (2,)),
        Part("arm", (3,), "float32", False, (3,)),
        Part("camera", (2, 2, 2), "uint8", True, (2, 2, 2)),
        Part("room", (4,), "int8", False, (), choices=(4,), first=(3,)),
    ),
    CARTPOLE.actions,
    stack=1,
    action_repeat=1,
)
"""The same with observations of every kind, and masks."""
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
    """A run that takes a moment; `changes` are keys with `__` for the dot.

    On-policy algorithms get no keys of replay, and those without an optimizer none of it.
    """
    nested: dict[str, Any] = {"out": str(out)}
    settings = settings_classes().get(changes.get("algorithm__name", ""), AlgorithmConfig)
    for key, value in (TINY | {name.replace("__", "."): value for name, value in changes.items()}).items():
        section, _, name = key.rpartition(".")
        if section == "optimizer" and not settings.has_optimizer:
            continue
        if settings.has_replay or not (section == "replay" or name == "replay_ratio"):
            (nested.setdefault(section, {}) if section else nested)[name] = value
    return from_dict(nested)


def tiny_layout(config: RunConfig, spec: EnvironmentSpec = CARTPOLE) -> Layout:
    """The layout of `config`'s unrolls."""
    return make_agent(config, spec).layout


def made_up_unroll(config: RunConfig, seed: int = 0, spec: EnvironmentSpec = CARTPOLE, **replaced: Any) -> Unroll:
    """An unroll without dummy steps that fits `tiny_layout`; `replaced` are fields of it."""
    random = np.random.default_rng(seed)
    k, num = config.algorithm.unroll_length, config.actors.environments
    p = random.uniform(0.2, 0.8, (k, num)).astype(np.float32)
    states = make_agent(config, spec).state.items()
    fields: dict[str, Any] = {
        "obs": made_up_obs(random, spec, k + 1, num),
        "episode_step": np.tile(np.arange(k + 1, dtype=np.int32)[:, None], (1, num)),
        "action": spec.actions.sample(random, k, num),
        "reward": np.ones((k, num), np.float32),
        "terminated": random.random((k, num)) < 0.1,
        "truncated": np.zeros((k, num), bool),
        "mask": np.ones((k, num), bool),
        "extras": made_up_extras(config, p, spec),
        "state": {name: random.normal(size=(num, *shape)).astype(np.float32) for name, shape in states},
    }
    return Unroll(**(fields | replaced))


def made_up_obs(random: np.random.Generator, spec: EnvironmentSpec, *lead: int) -> np.ndarray:
    """Planes `[*lead, *plane_shape]`, of parts those of each."""
    if spec.parts:
        return pack(spec, {name: made_up_obs(random, box, *lead) for name, box in spec.boxes.items()}, *lead)
    size = (*lead, *spec.plane_shape)
    planes = random.normal(size=size) if spec.dtype == "float32" else random.integers(0, 2, size)
    return planes.astype(spec.dtype)


def made_up_extras(config: RunConfig, p: np.ndarray, spec: EnvironmentSpec = CARTPOLE) -> dict[str, np.ndarray]:
    """What an unroll says of its steps, from numbers `p` between 0 and 1, `[k, N]`."""
    made = {"log_probs": np.log(np.stack([p, 1 - p], -1)), PRIORITY: p}
    return {name: made[name] for name in tiny_layout(config, spec).extras}


def numbered_unroll(config: RunConfig, number: int, **replaced: Any) -> Unroll:
    """Its columns' rewards are number · N, number · N + 1, …"""
    k, num = config.algorithm.unroll_length, config.actors.environments
    reward = np.broadcast_to(np.arange(num, dtype=np.float32) + number * num, (k, num)).copy()
    return made_up_unroll(config, number, **{"reward": reward} | replaced)


def segment_numbers(batch: Batch) -> list[int]:
    """Which of the numbered unrolls' columns a batch holds, each whole."""
    assert (batch.reward == batch.reward[:1]).all()
    return [int(reward) for reward in batch.reward[0]]


class Speaker:
    """A peer of `inbox` in this process, which keeps its sequence."""

    def __init__(self, inbox: Inbox, peer: Peer) -> None:
        self.peer = peer
        self.sequence = 0
        self._link = DirectLink(inbox)

    def say(self, **said: Any) -> Reply | None:
        """Sends a message; returns the oldest reply not seen yet."""
        fields: dict[str, Any] = {"run_id": RUN_ID, "peer": self.peer, "sequence": self.sequence}
        self._link.send(Message(**(fields | said)))
        self.sequence += 1
        return self.hear()

    def hear(self) -> Reply | None:
        """The oldest reply not seen yet."""
        return self._link.receive(0)


def known_speakers(inbox: Inbox, *peers: Peer) -> list[Speaker]:
    """Speakers for `peers`, of which a manager has told `inbox`."""
    Speaker(inbox, Peer("manager", 0, 0)).say(incarnations={peer.name: peer.incarnation for peer in peers})
    return [Speaker(inbox, peer) for peer in peers]


MakeLearner = Callable[..., Learner]


def speakers(learner: Learner, count: int = 2) -> list[Speaker]:
    """Actors that `learner` knows."""
    return known_speakers(learner.inbox, *(Peer("actor", index, 0) for index in range(count)))


def work_off(learner: Learner) -> bool:
    """All that can be done without waiting."""
    going = learner.step(0)
    while going and not learner.idle:
        going = learner.step(0)
    return going


def feed(learner: Learner, actor: Speaker, config: RunConfig, count: int, first: int = 0, **said: Any) -> list[Reply]:
    """Sends numbered unrolls one after the other, each learned from at once; the replies to them."""
    replies = []
    for number in range(first, first + count):
        said = {"acting_s": 0.0} | said
        actor.say(unroll=numbered_unroll(config, number), **said)
        work_off(learner)
        reply = actor.hear()
        assert reply is not None
        assert actor.hear() is None, "a message is answered once"
        replies.append(reply)
    return replies


def a_status(**said: Any) -> dict[str, Any]:
    """A status as the supervisor reports it, of a run of which only `said` is known."""
    states = {"learner": "running", "actor_0": "running", "actor_1": "running", "evaluator": "running"}
    nothing: dict[str, Any] = {
        "env_steps": 0,
        "wall_s": 0.0,
        "best": None,
        "learner": "cpu, float32",
        "replay_memory": 0,
        "rows": {},
    }
    return {**nothing, "replay_bytes": 0, "restarts": dict.fromkeys(states, 0), "states": states, "news": [], **said}
