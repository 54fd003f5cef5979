"""Networks of DDPG, TD3 and SAC: critics, which are computed together, and policies.

From images both see the features of one encoder, which only the critics' loss trains: the policy's gradient would ruin it
(Yarats et al. 2019, arXiv 1910.01741).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from apex_acer.config import NetworkConfig
from apex_acer.networks.images import shares_encoder
from apex_acer.networks.network import Network, TorsoNetwork
from apex_acer.networks.torsos import ACTIVATIONS, build_torso, build_trunk
from apex_acer.protocol.specification import EnvironmentSpec

LOG_STD_RANGE = -20.0, 2.0  # of Haarnoja et al. 2018
SMALL_HEAD = 3e-3  # of Lillicrap et al. 2016: the first actions are near 0, where tanh has its slope


class GaussianOutput(NamedTuple):
    """`mean` and `log_std` of a Gaussian before tanh, and `action`, the squashed mean, all `[B, d]`."""

    action: Tensor
    mean: Tensor
    log_std: Tensor


class PolicyOutput(NamedTuple):
    """`action` in [−1, 1], `[B, d]`."""

    action: Tensor


class Critics(TorsoNetwork):
    """`num_critics` networks Q(s, a) with the hidden layers of `config`, computed together.

    Each critic's first layer sees observation and action; of a user's own torso the features, of a policy's encoder a
    bottleneck, which all critics share.
    """

    def __init__(self, config: NetworkConfig, spec: EnvironmentSpec, num_critics: int, encoder_width: int = 0) -> None:
        """`encoder_width` is the policy's: the width of encoded observations, 0 if it has no encoder."""
        if encoder_width:
            super().__init__(build_trunk(config, encoder_width, ()), (encoder_width,))
        else:
            super().__init__(build_torso(config, spec, ()), spec.input_shape)
        self.activation = ACTIVATIONS[config.activation]()
        sizes = (self.width + spec.action_dim, *config.hidden_sizes, 1)
        pairs = list(itertools.pairwise(sizes))
        self.weights = nn.ParameterList([_uniform(num_critics, *pair, fan_in=pair[0]) for pair in pairs])
        self.biases = nn.ParameterList([_uniform(num_critics, 1, size, fan_in=fan_in) for fan_in, size in pairs])
        normalised = config.hidden_sizes if config.layer_norm else ()
        self.norm_weights = nn.ParameterList([nn.Parameter(torch.ones(num_critics, 1, size)) for size in normalised])
        self.norm_biases = nn.ParameterList([nn.Parameter(torch.zeros(num_critics, 1, size)) for size in normalised])

    def forward(self, inputs: Tensor, action: Tensor) -> Tensor:
        """Q `[num_critics, B]` of observations, as the policy `encode`s them, and actions `[B, d]`."""
        return self._q_values(self.features(inputs), action, self._layers())

    def evaluate(self, inputs: Tensor, action: Tensor, num: int | None = None) -> Tensor:
        """Q of all critics, or of the first `num`, with gradient to `action` only.

        Parameters keep their `requires_grad`, because another thread may compute their gradient at the same time.
        """
        layers = [[parameter.detach()[:num] for parameter in layer] for layer in self._layers()]
        return self._q_values(self.features(inputs).detach(), action, layers)

    def _layers(self) -> list[Sequence[Tensor]]:
        """Weight and bias of each layer, `[num, F, H]` and `[num, 1, H]`, and those of its normalisation if it has one."""
        pairs = zip(self.weights, self.biases, strict=True)
        norms = zip(self.norm_weights, self.norm_biases, strict=True)
        return [(*pair, *norm) for pair, norm in itertools.zip_longest(pairs, norms, fillvalue=())]

    def _q_values(self, features: Tensor, action: Tensor, layers: Sequence[Sequence[Tensor]]) -> Tensor:
        first, *inner, last = layers
        joined = torch.cat([features, action], -1)  # [B, F + d], in the parameters' type: it keeps the action's digits
        x = self._layer(joined.expand(len(first[0]), *joined.shape), *first)  # [num, B, H]
        with self.cast(features.device):
            for layer in inner:
                x = self._layer(x, *layer)
        weight, bias = last  # [num, H, 1] and [num, 1, 1]
        return (x.to(weight.dtype) * weight.transpose(1, 2)).sum(-1) + bias.squeeze(-1)

    def _layer(self, x: Tensor, weight: Tensor, bias: Tensor, *norm: Tensor) -> Tensor:
        hidden = torch.baddbmm(bias, x, weight)
        if norm:
            scale, shift = norm
            hidden = torch.addcmul(shift, layer_norm(hidden, hidden.shape[-1:]), scale)
        activated: Tensor = self.activation(hidden)
        return activated


def _uniform(*shape: int, fan_in: int) -> nn.Parameter:
    bound = fan_in**-0.5  # as torch initialises linear layers
    return nn.Parameter(torch.empty(shape).uniform_(-bound, bound))


Output = TypeVar("Output")


class Actor(Network[Output]):
    """The base of policies; from images it has the encoder that critics share."""

    def __init__(self, config: NetworkConfig, spec: EnvironmentSpec) -> None:
        shares = shares_encoder(config, spec)
        super().__init__(config, spec, () if shares else None)
        self.encoder_width = self.width if shares else 0
        """The width of encoded observations; 0: they are not encoded."""
        self.trunk: nn.Module | None = None
        if shares:
            self.trunk, self.width = build_trunk(config, self.width, config.hidden_sizes)

    @property
    def encoder(self) -> nn.Module | None:
        """The layers that critics share and train."""
        return None if self.trunk is None else self.torso

    def encode(self, inputs: Tensor) -> Tensor:
        """What actor and critics see of `prepare`d observations: `[B, encoder_width]`, or the observations themselves."""
        return inputs if self.encoder is None else self.run(self.encoder, inputs)

    def features(self, inputs: Tensor) -> Tensor:
        return self._own_features(self.encode(inputs))

    def decide(self, encoded: Tensor) -> Output:
        """The output for `encode`d observations."""
        return self.heads(self._own_features(encoded), encoded)

    def _own_features(self, encoded: Tensor) -> Tensor:
        return self.run(self.torso if self.trunk is None else self.trunk, encoded)


class SquashedGaussian(Actor[GaussianOutput]):
    """SAC's policy: a Gaussian squashed by tanh, whose mean and standard deviation depend on the observation."""

    def __init__(self, config: NetworkConfig, spec: EnvironmentSpec) -> None:
        super().__init__(config, spec)
        self.head = nn.Linear(self.width, 2 * spec.action_dim)

    def heads(self, features: Tensor, inputs: Tensor) -> GaussianOutput:
        mean, log_std = self.head(features).chunk(2, -1)
        return GaussianOutput(mean.tanh(), mean, log_std.clamp(*LOG_STD_RANGE))


class DeterministicPolicy(Actor[PolicyOutput]):
    """DDPG's policy, and `critics` if `num_critics` of them travel with it to the actors."""

    def __init__(self, config: NetworkConfig, spec: EnvironmentSpec, *, num_critics: int = 0) -> None:
        super().__init__(config, spec)
        self.head = nn.Linear(self.width, spec.action_dim)
        nn.init.uniform_(self.head.weight, -SMALL_HEAD, SMALL_HEAD)
        nn.init.zeros_(self.head.bias)
        self.critics = Critics(config, spec, num_critics, self.encoder_width) if num_critics else None

    def heads(self, features: Tensor, inputs: Tensor) -> PolicyOutput:
        return PolicyOutput(self.head(features).tanh())
