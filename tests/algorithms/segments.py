"""An `Acer` with an average network of its own, and segments to learn from."""

from __future__ import annotations

import torch

from apex_acer.algorithms.acer.acer import Acer
from apex_acer.algorithms.acer.settings import AcerConfig
from apex_acer.config import LearnerConfig, NetworkConfig, RunConfig
from apex_acer.protocol.actions import Discrete
from apex_acer.protocol.specification import EnvironmentSpec
from apex_acer.protocol.unroll import Batch
from tests.algorithms.learning import samples_of
from tests.functional import reference
from tests.functional.reference import Sizes

SIZES = Sizes(8, 5, 3)
PLANE = 4
CPU = torch.device("cpu")


def build(seed=0, hidden=16, stack=2, dtype=torch.float64, lstm=0, normalise=False, learner=None, **settings):
    """An `Acer` with an average network of its own, as after some training."""
    torch.manual_seed(seed)
    config = RunConfig(
        network=NetworkConfig(hidden_sizes=(hidden,), lstm=lstm, normalise=normalise),
        learner=learner or LearnerConfig(),
        algorithm=AcerConfig(**{"unroll_length": SIZES.length, "entropy_cost": 0.05, "gamma": 0.9} | settings),
    )
    spec = EnvironmentSpec((PLANE,), "float32", Discrete(SIZES.actions, 0), stack, False, 1, (PLANE,))
    acer = Acer.make(config, spec, CPU)
    for network in (acer.network, acer.average_network):
        network.to(dtype)
        for head in (network.pi_logits, network.q_values):
            torch.nn.init.normal_(head.weight, std=0.5)
        torch.nn.init.normal_(network.pi_logits.bias)
    return acer


def random_segments(seed=0, stack=2, dtype=torch.float64, lstm=0):
    """A batch for `build`, and the arrays of the same episodes that the reference takes."""
    arrays = reference.random_batch(seed, SIZES)
    generator = torch.Generator().manual_seed(seed)
    planes = SIZES.length + stack
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    batch = Batch(
        obs=torch.randn(planes, SIZES.columns, PLANE, generator=generator, dtype=dtype),
        episode_step=torch.randint(0, 4, (planes, SIZES.columns), generator=generator, dtype=torch.int32),
        action=tensors["action"],
        reward=tensors["reward"].to(dtype),
        terminated=tensors["terminated"],
        truncated=tensors["truncated"],
        mask=tensors["mask"],
        extras={"log_probs": tensors["mu_log_probs"].to(dtype)},
        state=random_state(generator, lstm, dtype),
        weights_version=torch.zeros(SIZES.columns, dtype=torch.int64),
        fresh=torch.zeros(SIZES.columns, dtype=torch.bool),
        importance=tensors["importance"].to(dtype),
    )
    return batch, arrays


def random_state(generator, lstm, dtype=torch.float64):
    """A recurrent state of the batch's columns; none without an LSTM."""
    shape = (SIZES.columns, lstm)
    return {name: torch.randn(shape, generator=generator, dtype=dtype) for name in ("hidden", "cell") if lstm}


def gradients_of(acer, batch):
    """The loss of a batch, and its gradients in the order of the network's parameters."""
    return gradients_on(acer, samples_of(acer, batch))


def gradients_on(acer, samples):
    """The loss of samples, and its gradients in the order of the network's parameters."""
    loss = acer.loss(samples)
    return loss, torch.autograd.grad(loss.loss, list(acer.network.parameters()))


def flat(tensors):
    """All numbers in one vector."""
    return torch.cat([x.detach().flatten() for x in tensors])
