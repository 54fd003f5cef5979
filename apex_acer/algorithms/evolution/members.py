"""The agent of algorithms that search in the space of parameters: each episode is played by one member."""

from __future__ import annotations

import torch
from torch import Tensor

from apex_acer.algorithms.algorithm import Action, Agent
from apex_acer.algorithms.evolution.settings import EvolutionConfig
from apex_acer.config import RunConfig
from apex_acer.networks.members import MOST_MEMBERS, MemberNetwork
from apex_acer.networks.network import State
from apex_acer.networks.policies import greedy as best
from apex_acer.protocol.specification import EnvironmentSpec

MEMBER = "member"  # number of the member that plays: remembered within an episode, and recorded; 0: none yet


class MemberAgent(Agent):
    """Draws a member at the start of each episode and takes its best actions; if `greedy`, those of the mean.

    `episodes_per_member` environments in a row play one member.
    """

    settings: EvolutionConfig
    network: MemberNetwork

    def __init__(self, config: RunConfig, spec: EnvironmentSpec) -> None:
        super().__init__(config, spec)
        self.network = MemberNetwork(config.network, spec, self.settings.initial_std)
        self.extras = {MEMBER: (1,)}
        self.state = {MEMBER: (1,)}
        self._numbers = torch.empty(0)  # `[N, 1]` of the members in `_members`
        self._members: dict[str, Tensor] = {}  # parameters by name, `[N, …]` each

    def exploration(self, num: int, actor: int | None = None, env_steps: int = 0) -> Tensor:
        """The mean standard deviation of the parameters, for each of `num` environments, `[num]`."""
        return self.network.std.mean().float().expand(num)

    def act(
        self, obs: Tensor, state: State, *, greedy: bool, exploration: Tensor, generator: torch.Generator, updates: int
    ) -> Action:
        """Takes each member's best action, or the mean's if `greedy`; records the members' numbers."""
        if greedy:
            return Action(self._best(self.network(obs)[0]), {}, state)
        numbers = self._drawn(state[MEMBER] if state else torch.zeros(len(obs), 1, device=obs.device), generator)
        if not torch.equal(self._numbers, numbers):  # weights that come in the middle of an episode change no member
            self._numbers = numbers
            self._members = self.network.stacked(self.network.members(numbers.squeeze(-1)))
        action = self._best(self.network.act(self._members, obs))
        return Action(action, {MEMBER: numbers}, {MEMBER: numbers})

    def _best(self, output: Tensor) -> Tensor:
        return best(self.spec.actions, output, is_joint=False)

    def _drawn(self, numbers: Tensor, generator: torch.Generator) -> Tensor:
        """`numbers` `[N, 1]` with a random one in place of each 0."""
        begins = numbers == 0
        if not begins.any():
            return numbers
        each, count = self.settings.episodes_per_member, int(begins.sum())
        drawn = torch.randint(1, MOST_MEMBERS, (-(-count // each),), generator=generator, device=numbers.device)
        return numbers.masked_scatter(begins, drawn.repeat_interleave(each)[:count].to(numbers))
