"""Networks of DDPG, TD3 and SAC: critics, which are computed together, and policies.

From images both see the features of one encoder, which only the critics' loss trains: the policy's gradient would ruin it
(Yarats et al. 2019, arXiv 1910.01741).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from apex_acer.config import NetworkConfig
from apex_acer.networks.batch_norm import BatchRenorm, Normalisation, NormalisedLayers, batch_renorms
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

    def __init__(
        self,
        config: NetworkConfig,
        spec: EnvironmentSpec,
        num_critics: int,
        encoder_width: int = 0,
        *,
        batch_norm: bool = False,
    ) -> None:
        """`encoder_width` is the policy's: the width of encoded observations, 0 if it has no encoder.

        With `batch_norm` the inputs of every layer are batch renormalised.
        """
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
        inner = sizes[:-1] if batch_norm else ()
        self.batch_norms = nn.ModuleList(BatchRenorm(num_critics, 1, size) for size in inner)

    def forward(self, inputs: Tensor, action: Tensor, mask: Tensor | None = None) -> Tensor:
        """Q `[num_critics, B]` of observations, as the policy `encode`s them, and actions `[B, d]`.

        Batch renormalisation uses the moments of the samples with a true `mask` `[B]`; without a mask the running ones.
        """
        norms = [functools.partial(norm, mask=mask) for norm in self.batch_norms]
        return self._q_values(self.features(inputs), action, self._layers(), norms)

    def evaluate(self, inputs: Tensor, action: Tensor, num: int | None = None) -> Tensor:
        """Q of all critics, or of the first `num`, with gradient to `action` only.

        Parameters keep their `requires_grad`, because another thread may compute their gradient at the same time.
        """
        layers = [[parameter.detach()[:num] for parameter in layer] for layer in self._layers()]
        running = (norm.running() for norm in batch_renorms(self.batch_norms))
        norms = [Normalisation(*(part.detach()[:num] for part in norm)).apply for norm in running]
        return self._q_values(self.features(inputs).detach(), action, layers, norms)

    def _layers(self) -> list[Sequence[Tensor]]:
        """Weight and bias of each layer, `[num, F, H]` and `[num, 1, H]`, and those of its normalisation if it has one."""
        pairs = zip(self.weights, self.biases, strict=True)
        norms = zip(self.norm_weights, self.norm_biases, strict=True)
        return [(*pair, *norm) for pair, norm in itertools.zip_longest(pairs, norms, fillvalue=())]

    def _q_values(
        self,
        features: Tensor,
        action: Tensor,
        layers: Sequence[Sequence[Tensor]],
        norms: Sequence[Callable[[Tensor], Tensor]],
    ) -> Tensor:
        first, *inner, last = layers
        first_norm, *inner_norms, last_norm = norms or [nn.Identity()] * len(layers)
        joined = torch.cat([features, action], -1)  # [B, F + d], in the parameters' type: it keeps the action's digits
        x = self._layer(first_norm(joined.expand(len(first[0]), *joined.shape)), *first)  # [num, B, H]
        with self.cast(features.device):
            for norm, layer in zip(inner_norms, inner, strict=True):
                x = self._layer(norm(x), *layer)
        weight, bias = last  # [num, H, 1] and [num, 1, 1]
        return (last_norm(x).to(weight.dtype) * weight.transpose(1, 2)).sum(-1) + bias.squeeze(-1)

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

    def __init__(
        self, config: NetworkConfig, spec: EnvironmentSpec, hidden_sizes: tuple[int, ...] | None = None
    ) -> None:
        """`hidden_sizes` replace those of `config` if there is no encoder."""
        shares = shares_encoder(config, spec)
        super().__init__(config, spec, () if shares else hidden_sizes)
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
    """SAC's policy: a Gaussian squashed by tanh, whose mean and standard deviation depend on the observation.

    With `batch_norm` the inputs of every fully connected layer are batch renormalised; there must be no encoder.
    """

    def __init__(self, config: NetworkConfig, spec: EnvironmentSpec, *, batch_norm: bool = False) -> None:
        super().__init__(config, spec, () if batch_norm else None)
        self.hidden = NormalisedLayers(config, self.width) if batch_norm else None
        self.head = nn.Linear(config.hidden_sizes[-1] if batch_norm else self.width, 2 * spec.action_dim)

    def decide(self, encoded: Tensor, mask: Tensor | None = None) -> GaussianOutput:
        """The output for `encode`d observations.

        Batch renormalisation uses the moments of those with a true `mask` `[B]`; without a mask the running ones.
        """
        return self.heads(self._own_features(encoded), encoded, mask)

    def heads(self, features: Tensor, inputs: Tensor, mask: Tensor | None = None) -> GaussianOutput:
        if self.hidden is not None:
            features = self.run(functools.partial(self.hidden, mask=mask), features)
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
