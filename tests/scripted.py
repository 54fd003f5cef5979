"""An algorithm for continuous actions that learns nothing and checks everything: what was done is what its script says.

Its loss raises if an action, a reward, what was said of a step or what was remembered does not belong to the observation, so
that any run with it shows that actions keep their place on every way from the environment to a batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from apex_acer.algorithms.algorithm import Action, Agent, Algorithm, LossOutput
from apex_acer.algorithms.samples import Samples, Sequences, Transitions
from apex_acer.config import AlgorithmConfig, RunConfig, Sampling
from apex_acer.networks.network import Network, State
from apex_acer.protocol.specification import EnvironmentSpec
from tests.environments_for_tests import aim_reward

NAME = f"{__name__}:Scripted"
AIM = "tests.environments_for_tests:Aim-v0"


def script(obs: Any) -> Any:
    """What is sampled at `obs` `[..., d]`, of which the action is the part inside the box; exact, alone or in a batch."""
    return 1.25 * obs


@dataclass(frozen=True)
class Settings(AlgorithmConfig):
    """The settings of all algorithms, and n."""

    actions = "Box"

    n_steps: int = 0
    """The n of transitions; 0: samples are sequences."""

    @property
    def sampling(self) -> Sampling:
        """Fresh sequences and replayed ones, or replayed transitions."""
        return Sampling(fresh=not self.n_steps, n_steps=self.n_steps)


class ScriptedOutput(NamedTuple):
    """The `action` `[B, d]`."""

    action: Tensor


class ScriptedPolicy(Network[ScriptedOutput]):
    """Acts by the script; `weight` is trained to be 0 and changes nothing."""

    def __init__(self, config: RunConfig, spec: EnvironmentSpec) -> None:
        super().__init__(config.network, spec)
        self.weight = nn.Parameter(torch.ones(()))

    def heads(self, features: Tensor, inputs: Tensor) -> ScriptedOutput:
        return ScriptedOutput(script(inputs).clamp(-1, 1))


class ScriptedAgent(Agent):
    """See above."""

    def __init__(self, config: RunConfig, spec: EnvironmentSpec) -> None:
        super().__init__(config, spec)
        self.network = ScriptedPolicy(config, spec)
        self.state = {"steps": (spec.action_dim,)}  # made in the episode, once for each number of an action
        self.extras = {"sample": (spec.action_dim,)} | self.state

    def exploration(self, num: int, actor: int | None = None, env_steps: int = 0) -> Tensor:
        return torch.zeros(num)

    def act(
        self, obs: Tensor, state: State, *, greedy: bool, exploration: Tensor, generator: torch.Generator, updates: int
    ) -> Action:
        steps = state.get("steps", torch.zeros_like(obs))
        return Action(self.network(obs).action, {"sample": script(obs), "steps": steps}, {"steps": steps + 1})

    def priority(self, steps: Transitions) -> Tensor:
        return torch.where(steps.mask, 1 + steps.action.abs().sum(-1), 0.0)

    @property
    def gives_priorities(self) -> bool:
        return bool(super().gives_priorities and self.settings.sampling.n_steps)


class Scripted(Algorithm):
    """See above."""

    settings_class = Settings
    agent_class = ScriptedAgent

    def noise(self, samples: Samples) -> dict[str, Tensor]:
        return {"noise": torch.randn(2, len(samples.importance), samples.action.shape[-1])}

    def loss(self, samples: Samples) -> LossOutput:
        check(samples)
        weight: Any = self.network.weight
        count = samples.mask.sum()
        mask = samples.mask if samples.mask.ndim == 1 else samples.mask[0]
        noise = samples.noise["noise"].mean((0, 2)) * mask
        loss = (weight.square() * samples.mask + 1e-3 * weight * noise).sum() / count.clamp(min=1)
        return LossOutput(
            loss, {"loss": loss.detach()}, samples.reward.reshape(-1, len(mask)).abs().mean(0) + 0.1, count
        )


def check(samples: Samples) -> None:
    """Raises AssertionError if something in `samples` does not belong to its observations."""
    obs, inside = samples.obs[:-1] if isinstance(samples, Sequences) else samples.obs, samples.mask
    assert samples.action.dtype == torch.float32
    assert samples.action.shape == samples.extras["sample"].shape == (*inside.shape, obs.shape[-1])
    assert samples.noise["noise"].shape == (2, *samples.action.shape[-2:])
    assert torch.equal(samples.action[inside], script(obs)[inside].clamp(-1, 1)), "another's actions"
    assert torch.equal(samples.extras["sample"][inside], script(obs)[inside]), "another's samples"
    if isinstance(samples, Sequences):
        torch.testing.assert_close(
            samples.reward[inside], aim_reward(samples.action, obs)[inside], rtol=1e-4, atol=1e-5
        )
        known = inside[0] & ~samples.first[0]  # at the start of an episode it is cleared when it is used
        assert torch.equal(samples.state["steps"][known], samples.extras["steps"][0][known]), "another's memory"
