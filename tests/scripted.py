"""An algorithm for continuous actions that learns nothing and checks everything: what was done is what its script says.

Its loss raises if an action, a reward, what was said of a step or what was remembered does not belong to the observation, so
that any run with it shows that actions keep their place on every way from the environment to a batch.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from apex_acer.algorithms.algorithm import Action, Algorithm, Feeding, LossOutput
from apex_acer.config import AlgorithmConfig, RunConfig
from apex_acer.networks.network import Network, State
from apex_acer.protocol.specification import EnvironmentSpec
from apex_acer.protocol.unroll import PRIORITY, Batch, Shapes, Unroll
from tests.environments_for_tests import aim_reward

NAME = f"{__name__}:Scripted"
AIM = "tests.environments_for_tests:Aim-v0"


def script(obs: Any) -> Any:
    """What is sampled at `obs` `[..., d]`, of which the action is the part inside the box; exact, alone or in a batch."""
    return 1.25 * obs


@dataclass(frozen=True)
class Settings(AlgorithmConfig):
    """Those of all algorithms, and the steps of a window."""

    actions = "Box"

    window: int = 0
    """Steps of a sample; 0: whole segments."""


class ScriptedOutput(NamedTuple):
    """The `action` `[B, d]`."""

    action: Tensor


class ScriptedPolicy(Network):
    """Acts by the script; `weight` is trained to be 0 and changes nothing."""

    def __init__(self, config: RunConfig, spec: EnvironmentSpec) -> None:
        super().__init__(config.network, spec)
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, obs: Tensor) -> ScriptedOutput:
        return ScriptedOutput(script(self.prepare(obs)).clamp(-1, 1))


class Scripted(Algorithm):
    """See above."""

    settings = Settings
    network: ScriptedPolicy

    def __init__(self, config: RunConfig, spec: EnvironmentSpec, device: torch.device) -> None:
        self._given = given(config)
        self.network = self.build_network(config, spec).to(device)
        self.modules = {"network": self.network}

    @staticmethod
    def build_network(config: RunConfig, spec: EnvironmentSpec) -> ScriptedPolicy:
        return ScriptedPolicy(config, spec)

    @staticmethod
    def behaviour_shapes(config: RunConfig, spec: EnvironmentSpec) -> Shapes:
        return {"sample": (spec.action_dim,)} | ({PRIORITY: ()} if _has_priorities(config) else {})

    @staticmethod
    def state_shapes(config: RunConfig, spec: EnvironmentSpec) -> Shapes:
        """The steps made in the episode, once for each number of an action."""
        return {"steps": (spec.action_dim,)}

    @staticmethod
    def exploration(config: RunConfig, num: int, actor: int | None = None) -> Tensor:
        return torch.zeros(num)

    @staticmethod
    def act(
        network: nn.Module, obs: Tensor, state: State, *, greedy: bool, exploration: Tensor, generator: torch.Generator
    ) -> Action:
        steps = state["steps"] + 1 if state else torch.ones_like(obs)
        return Action(network(obs).action, {"sample": script(obs)}, {"steps": steps})

    @staticmethod
    def complete(config: RunConfig, unroll: Unroll, ahead: dict[str, Any]) -> Unroll:
        if _has_priorities(config):
            unroll.behaviour[PRIORITY] = np.where(unroll.mask, 1 + np.abs(unroll.action).sum(-1), 0).astype(np.float32)
        return unroll

    @staticmethod
    def feeding(config: RunConfig) -> Feeding:
        return Feeding(fresh=not given(config).window, window=given(config).window)

    def observe(self, unroll: Unroll, source: Hashable) -> None:
        pass

    def noise(self, batch: Batch) -> dict[str, Tensor]:
        return {"noise": torch.randn(2, len(batch.fresh), batch.action.shape[-1])}

    def loss(self, batch: Batch, updates: int) -> LossOutput:
        check(batch, whole=not self._given.window)
        count = batch.mask.sum()
        noise = batch.noise["noise"].mean((0, 2)) * batch.mask[0]
        loss = (self.network.weight.square() * batch.mask + 1e-3 * self.network.weight * noise).sum() / count.clamp(
            min=1
        )
        return LossOutput(loss, {"loss": loss.detach()}, batch.reward.abs().mean(0) + 0.1, count)


def check(batch: Batch, *, whole: bool) -> None:
    """Raises AssertionError if something in `batch` does not belong to its observations; `whole`: it is of segments."""
    assert batch.action.dtype == torch.float32
    assert batch.action.shape == batch.behaviour["sample"].shape == (*batch.mask.shape, batch.obs.shape[-1])
    assert batch.noise["noise"].shape == (2, *batch.action.shape[1:])
    obs, inside = batch.obs[:-1], batch.mask
    assert torch.equal(batch.action[inside], script(obs)[inside].clamp(-1, 1)), "another's actions"
    assert torch.equal(batch.behaviour["sample"][inside], script(obs)[inside]), "another's samples"
    torch.testing.assert_close(batch.reward[inside], aim_reward(batch.action, obs)[inside], rtol=1e-4, atol=1e-5)
    if whole:
        known = inside[0] & (batch.episode_step[0] > 0)  # at the start of an episode it is cleared when it is used
        assert torch.equal(batch.state["steps"][known][:, 0], batch.episode_step[0][known].float()), "another's memory"


def _has_priorities(config: RunConfig) -> bool:
    return bool(config.replay.sampling == "prioritized" and given(config).window)


def given(config: RunConfig) -> Settings:
    """The algorithm's settings."""
    assert isinstance(config.algorithm, Settings)
    return config.algorithm
