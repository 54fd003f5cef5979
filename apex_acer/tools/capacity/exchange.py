"""The cost of sending an unroll from an actor to replay, and weights back, without the network in between."""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import math
from types import ModuleType

from apex_acer.actor.policy import Policy
from apex_acer.algorithms.algorithm import Algorithm
from apex_acer.config import RunConfig
from apex_acer.engines.local.wire import decode_message, encode_message
from apex_acer.learner.inbox import Inbox
from apex_acer.networks import weights
from apex_acer.protocol.messages import Message, Peer, Reply
from apex_acer.protocol.specification import EnvironmentSpec
from apex_acer.protocol.unroll import Layout, Unroll
from apex_acer.replay.sampler import Sampler
from apex_acer.replay.storage import Storage
from apex_acer.system.imports import needs

RUN_ID, ACTOR = "exchange", Peer("actor", 0, 0)


class Exchange:
    """An actor and a learner that exchange the same unroll again and again."""

    def __init__(
        self,
        config: RunConfig,
        spec: EnvironmentSpec,
        shapes: Layout,
        unroll: Unroll,
        ends: tuple[Policy, Algorithm, Storage, Sampler],
    ) -> None:
        """`ends` are the actor's policy, and the learner's algorithm, storage and sampler."""
        self._policy, self._algorithm, self._storage, self._sampler = ends
        self._unroll, self._message = unroll, Message(RUN_ID, ACTOR, 0, unroll=unroll)
        # writable, like the parts of a message that was received
        self._parts = [memoryview(bytearray(part)) for part in encode_message(self._message)]
        self._inbox = Inbox(RUN_ID, shapes, unroll.num_columns, spec, max_waiting=1)
        self._inbox.expect({ACTOR.name: ACTOR.incarnation})
        self._sequence = itertools.count()
        rest = math.ceil(config.actors.weights_every / config.algorithm.unroll_length) - 1
        self._asks = itertools.cycle([True, *[False] * rest])
        self._weights = self._pack()
        self._compression = compression() if config.ray.compress else None
        self._packed = self._compression.pack(self._message, compress=True) if self._compression else None

    @property
    def sizes(self) -> dict[str, float]:
        """`unroll_bytes`: bytes sent per environment step; `weights_bytes`: size of one version of the weights."""
        size = sum(map(len, self._parts))
        if self._packed:
            size += len(self._packed.obs) - self._unroll.obs.nbytes
        return {"unroll_bytes": size / self._unroll.num_steps, "weights_bytes": len(self._weights)}

    def send(self) -> int:
        """The actor's part: encodes the unroll and loads weights if it asked for them; returns the unroll's steps."""
        encode_message(self._message)
        if self._compression:
            self._compression.pack(self._message, compress=True)
        if next(self._asks):
            self._policy.load(weights.unpack(self._weights), 1)
        return self._unroll.num_steps

    def take(self) -> int:
        """The learner's part: decodes, checks, stores and answers the unroll; returns its environment steps."""
        if self._compression:
            self._compression.unpack(self._packed)
        message = dataclasses.replace(decode_message(self._parts), sequence=next(self._sequence))
        self._inbox.post(message, lambda reply: None)
        post = self._inbox.take_unroll(0)
        assert post
        unroll = post.message.unroll
        assert unroll
        self._sampler.insert(self._storage.insert(unroll, 0), unroll)
        self._algorithm.observe(unroll, ACTOR)
        post.answer(Reply(post.message.sequence, weights=self._pack() if next(self._asks) else None))
        return self._unroll.num_steps

    def _pack(self) -> bytes:
        return weights.pack_policy(self._algorithm.tensors(), 0)


def compression() -> ModuleType:
    """The module with which the ray engine packs messages; raises `ConfigError` if LZ4 is not installed."""
    with needs("ray.compress", "ray"):
        return importlib.import_module("apex_acer.engines.ray.link")
