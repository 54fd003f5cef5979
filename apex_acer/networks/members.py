"""A network that acts with the weights of members: random vectors of parameters around the network's own."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from apex_acer.config import NetworkConfig
from apex_acer.networks.critics import PolicyOutput
from apex_acer.networks.network import Network
from apex_acer.networks.policies import CategoricalOutput
from apex_acer.networks.torsos import linear
from apex_acer.protocol.specification import EnvironmentSpec

MOST_MEMBERS = 2**24  # numbers below it are exact in float32


class Scores(NamedTuple):
    """`scores` `[B, Σ branches + d]`: the logits of each choice, then the numbers of the action."""

    scores: Tensor


class MemberNetwork(Network[Any]):
    """Logits of choices, an action in the box [−1, 1], or both, by one linear layer on the torso.

    Its parameters are the mean of the distribution of members. A member's parameters follow from the member's number and the
    distribution, so that a number is all that an actor has to send.
    """

    std: Tensor
    """`[P]` standard deviation of each trained parameter, in the order of `named_parameters`."""
    generation: Tensor
    """Number of times that the distribution has moved, an int64 scalar."""

    def __init__(self, config: NetworkConfig, spec: EnvironmentSpec, initial_std: float) -> None:
        super().__init__(config, spec)
        self.head = linear(self.width, spec.num_choices + spec.action_dim, gain=0.01)
        self.register_buffer("std", torch.full((len(self.mean()),), initial_std))
        self.register_buffer("generation", torch.zeros((), dtype=torch.int64))

    def forward(self, obs: Tensor, *, is_prepared: bool = False) -> Any:
        """The output for raw observations `[B, *obs_shape]`, or for `prepare`d ones."""
        return self.output(obs if is_prepared else self.prepare(obs))

    def heads(self, features: Tensor, inputs: Tensor) -> CategoricalOutput | PolicyOutput | Scores:
        output = self.head(features)
        if not self._spec.num_choices:
            return PolicyOutput(output.clamp(-1, 1))
        return (Scores if self._spec.action_dim else CategoricalOutput)(self.forbid(output, inputs))

    def mean(self) -> Tensor:
        """The trained parameters as one vector `[P]`, a copy."""
        return torch.cat([parameter.detach().flatten() for parameter in self._searched().values()])

    def members(self, numbers: Tensor) -> Tensor:
        """The parameters `[M, P]` of the members with these `numbers` `[M]`, from 1 to `MOST_MEMBERS` − 1."""
        noise = torch.stack([_noise(int(number), len(self.std)) for number in numbers])
        return self.mean() + self.std * noise.to(self.std)

    @torch.no_grad()
    def move(self, mean: Tensor, std: Tensor) -> None:
        """Replaces the mean and the standard deviations, both `[P]`: the next generation begins."""
        for parameter, values in zip(self._searched().values(), self._parts(mean), strict=True):
            parameter.copy_(values)
        self.std.copy_(std)
        self.generation += 1

    def stacked(self, members: Tensor) -> dict[str, Tensor]:
        """The `members` `[N, P]` as parameters by name, `[N, …]` each, for `act`."""
        parts = (part.contiguous() for part in self._parts(members))
        return dict(zip(self._searched(), parts, strict=True))

    def act(self, stacked: dict[str, Tensor], obs: Tensor) -> Tensor:
        """The first field of the output for raw observations `[N, *obs_shape]`, each by the parameters of its own member."""
        outputs: Tensor = vmap(self._act_alone)(stacked, self.prepare(obs))
        return outputs

    def _act_alone(self, parameters: dict[str, Tensor], inputs: Tensor) -> Tensor:
        output = functional_call(self, parameters, (inputs.unsqueeze(0),), {"is_prepared": True})
        first: Tensor = output[0].squeeze(0)
        return first

    def _searched(self) -> dict[str, nn.Parameter]:
        """The parameters that members differ in; those of a user's torso that are frozen stay as they are."""
        return {name: parameter for name, parameter in self.named_parameters() if parameter.requires_grad}

    def _parts(self, vectors: Tensor) -> list[Tensor]:
        """The parameters in `vectors` `[..., P]`, each with its shape, `[..., *shape]`."""
        shapes = [parameter.shape for parameter in self._searched().values()]
        parts = torch.split(vectors, [shape.numel() for shape in shapes], -1)
        return [part.view((*part.shape[:-1], *shape)) for part, shape in zip(parts, shapes, strict=True)]


def _noise(number: int, size: int) -> Tensor:
    """Standard normal numbers `[size]` that depend on `number` alone; always made on the CPU, so that devices agree."""
    return torch.randn(size, generator=torch.Generator().manual_seed(number), dtype=torch.float32)
