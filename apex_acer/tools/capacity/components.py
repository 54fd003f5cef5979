"""The components of a run, each of which can be called again and again to measure what it costs."""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import math
from collections.abc import Collection
from types import ModuleType

import numpy as np
import torch

from apex_acer.actor.policy import Policy
from apex_acer.actor.rollout import Rollout
from apex_acer.algorithms import make_agent
from apex_acer.algorithms.algorithm import LossOutput
from apex_acer.algorithms.samples import Samples
from apex_acer.config import RunConfig
from apex_acer.engines.local.wire import decode_message, encode_message
from apex_acer.environments.vector import make_environments
from apex_acer.learner.gradient import Gradient
from apex_acer.learner.inbox import Inbox
from apex_acer.learner.parts import make_sampler, make_storage
from apex_acer.learner.trainer import Trainer
from apex_acer.networks import weights
from apex_acer.networks.device import CPU
from apex_acer.networks.frames import stack_planes
from apex_acer.protocol.messages import Message, Peer, Reply
from apex_acer.protocol.specification import EnvironmentSpec
from apex_acer.protocol.unroll import Batch
from apex_acer.replay.storage import Storage
from apex_acer.system.imports import needs

RUN_ID, ACTOR = "capacity", Peer("actor", 0, 0)
SEQUENCES = 256  # in replay


class Components:
    """An actor and a learner in one process; the methods return the environment steps or samples they processed."""

    def __init__(self, config: RunConfig, device: torch.device) -> None:
        k, num = config.algorithm.unroll_length, config.actors.environments
        self._config, self._environments = config, make_environments(config.environment, num, training=True)
        spec = self._environments.spec
        self._policy = Policy(config, spec)
        self._policy.compute_as_the_learner()
        self._rollout = Rollout(self._environments, self._policy, seed=0, actor=0)
        on_one_core = dataclasses.replace(config.learner, device=str(device), threads=1)
        self._trainer = Trainer(dataclasses.replace(config, learner=on_one_core), spec)
        self._gradient, self._recalled = self._trainer.gradient, _Recalled(self._trainer.gradient)
        self._storage = _make_storage(config, spec, SEQUENCES, device)
        self._sampler = make_sampler(config, self._storage)
        while len(self._storage) < SEQUENCES:
            unroll = self._rollout.unroll(k)
            self._sampler.insert(self._storage.insert(unroll, 0), unroll)
        _, batch = self._batch()
        self._obs = stack_planes(batch.obs, batch.episode_step, spec.stack).flatten(0, 1)
        self._action = np.zeros((num, *spec.actions.shape), spec.actions.dtype)
        self._updates = 0

        self._unroll, self._message = unroll, Message(RUN_ID, ACTOR, 0, unroll=unroll)
        # writable, like the parts of a message that was received
        self._parts = [memoryview(bytearray(part)) for part in encode_message(self._message)]
        self._inbox = Inbox(RUN_ID, self._storage.layout, unroll.num_columns, spec, max_waiting=1)
        self._inbox.expect({ACTOR.name: ACTOR.incarnation})
        self._sequence = itertools.count()
        unrolls_per_request = math.ceil(config.actors.weights_every / k)
        self._wants_weights = itertools.cycle([True, *[False] * (unrolls_per_request - 1)])
        self._weights = self._pack_weights()
        self._compression = compression() if config.ray.compress else None
        self._packed = self._compression.pack(self._message, compress=True) if self._compression else None

    @property
    def sizes(self) -> dict[str, float]:
        """`unroll_bytes`: bytes sent per environment step; `weights_bytes`: size of one version of the weights."""
        size = sum(map(len, self._parts))
        if self._packed:
            size += len(self._packed[1]) - self._unroll.obs.nbytes
        return {"unroll_bytes": size / self._unroll.num_steps, "weights_bytes": len(self._weights)}

    def environment(self) -> int:
        """Steps the environments, always with the same action."""
        self._environments.step(self._action)
        return len(self._action)

    def acting(self) -> int:
        """Collects an unroll: environments, and forward passes of the policy."""
        unroll = self._rollout.unroll(self._config.algorithm.unroll_length)
        return unroll.num_steps + self._rollout.unlearned_steps

    def sending(self) -> int:
        """Does the rest of an actor's work on an unroll: encodes it, and loads weights as often as it asks for them."""
        encode_message(self._message)
        if self._compression:
            self._compression.pack(self._message, compress=True)
        if next(self._wants_weights):
            self._policy.load(weights.unpack(self._weights), 1)
        return self._unroll.num_steps

    def intake(self) -> int:
        """Does the learner's work on an unroll before any update: decodes, checks, stores, answers with weights."""
        if self._compression:
            self._compression.unpack(self._packed)
        message = dataclasses.replace(decode_message(self._parts), sequence=next(self._sequence))
        self._inbox.post(message, lambda reply: None)
        post = self._inbox.take_unroll(0)
        assert post
        unroll = post.message.unroll
        assert unroll
        self._sampler.insert(self._storage.insert(unroll, 0), unroll)
        self._trainer.algorithm.observe(unroll, ACTOR)
        packed = self._pack_weights() if next(self._wants_weights) else None
        post.answer(Reply(post.message.sequence, weights=packed))
        return self._unroll.num_steps

    def replay(self) -> int:
        """Draws and gathers a batch."""
        return self._num_samples(self._batch()[0])

    def update(self) -> int:
        """Learns from a batch: draws it, computes gradients, steps the optimizer, sets priorities."""
        return self._learn(self._gradient)

    def stepping(self) -> int:
        """Does the part of an update that always runs on one core: all but the gradients."""
        return self._learn(self._recalled)

    def forward(self) -> int:
        """Computes a forward pass of the network without gradients."""
        with torch.no_grad():
            self._trainer.algorithm.network(self._obs)
        return len(self._obs)

    def _learn(self, gradient: Gradient) -> int:
        samples, batch = self._batch()
        self._trainer.gradient = gradient
        update = self._trainer.update(batch, 0, self._updates)
        self._updates += len(update.metrics)
        if update.priorities is not None:
            self._sampler.set_priorities(samples, update.priorities, self._storage.num_inserted)
        return self._num_samples(samples)

    def _batch(self) -> tuple[torch.Tensor, Batch]:
        samples = self._sampler.draw(self._config.learner.batch_size)
        probabilities = self._sampler.probabilities(samples)
        importance = self._sampler.importance(probabilities, 0.0, probabilities.min())
        return samples, self._storage.gather(samples, importance=importance)

    def _num_samples(self, samples: torch.Tensor) -> int:
        return int(self._storage.count_steps(samples).sum())

    def _pack_weights(self) -> bytes:
        return weights.pack_policy(self._trainer.algorithm.tensors(), 0)


class _Recalled(Gradient):
    """Returns again and again what `gradient` computed first."""

    def __init__(self, gradient: Gradient) -> None:
        self._gradient = gradient
        self._output: LossOutput | None = None

    def compute(self, samples: Samples, due: Collection[str]) -> LossOutput:
        self._output = self._output or self._gradient.compute(samples, due)
        return self._output


def replay_bytes_per_step(config: RunConfig, spec: EnvironmentSpec) -> float:
    """Bytes of replay memory for one environment step, on the learner's GPU if it has one, which need not be here."""
    on_gpu = config.learner.device.startswith("cuda") and config.replay.device == "learner"
    device = torch.device("meta") if on_gpu else CPU
    return _make_storage(config, spec, 1, device).num_bytes / config.algorithm.unroll_length


def _make_storage(config: RunConfig, spec: EnvironmentSpec, sequences: int, device: torch.device = CPU) -> Storage:
    return make_storage(config, make_agent(config, spec).layout, sequences * config.algorithm.unroll_length, device)


def compression() -> ModuleType:
    """The module with which the ray engine packs messages; raises `ConfigError` if LZ4 is not installed."""
    with needs("ray.compress", "ray"):
        return importlib.import_module("apex_acer.engines.ray.link")
