"""ACER for both kinds of actions as after some training, and segments to learn from."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from apex_acer.algorithms.acer.acer import Acer
from apex_acer.algorithms.acer.continuous import ContinuousAcer
from apex_acer.protocol.actions import Box, Discrete
from tests.algorithms.learning import PLANE, NoisyBatch, batch_of, made
from tests.algorithms.windows import spec
from tests.functional import reference, reference_continuous
from tests.functional.reference import Sizes

SIZES = Sizes(8, 5, 3)
CPU = torch.device("cpu")
BOX = Box((-2.0,) * SIZES.actions, (3.0,) * SIZES.actions, (SIZES.actions,), "float32")
CHOICES = Discrete(SIZES.actions, 0)
Arrays = dict[str, npt.NDArray[Any]]


def build(seed: int = 0, stack: int = 2, lstm: int = 0, **changes: Any) -> Acer:
    """An `Acer` whose average network is not its network."""
    acer = made("acer", spec(stack, CHOICES), seed, network__lstm=lstm, **{"entropy_cost": 0.05} | changes)
    assert isinstance(acer, Acer)
    return acer


def build_continuous(seed: int = 0, stack: int = 2, lstm: int = 0, **changes: Any) -> ContinuousAcer:
    """A `ContinuousAcer` whose average network is not its network."""
    acer = made("continuous_acer", spec(stack, BOX), seed, network__lstm=lstm, **{"std": 0.6} | changes)
    assert isinstance(acer, ContinuousAcer)
    return acer


def random_segments(
    seed: int = 0, stack: int = 2, dtype: torch.dtype = torch.float64, lstm: int = 0
) -> tuple[NoisyBatch, Arrays]:
    """A batch for `build`, and the arrays of the same episodes that the reference takes."""
    arrays = reference.random_batch(seed, SIZES)
    generator = torch.Generator().manual_seed(seed)
    log_mu = torch.from_numpy(arrays["mu_log_probs"]).to(dtype)
    fields = fields_of(arrays, generator, stack, dtype)
    return batch_of(**fields, extras={"log_probs": log_mu}, state=random_state(generator, lstm, dtype)), arrays


def random_continuous_segments(
    seed: int = 0, stack: int = 2, dtype: torch.dtype = torch.float64, lstm: int = 0
) -> tuple[NoisyBatch, Arrays]:
    """A batch for `build_continuous`, and the arrays of the same episodes that the reference takes."""
    arrays = reference_continuous.random_batch(seed, SIZES)
    generator = torch.Generator().manual_seed(seed)
    fields = fields_of(arrays, generator, stack, dtype)
    noise = torch.randn(*arrays["mask"].shape, 6, SIZES.actions, generator=generator, dtype=dtype)
    own, critics = (random_state(generator, lstm, dtype) for _ in range(2))
    names = {"mean": "mu_mean", "log_std": "mu_log_std", "sample": "action"}
    extras = {name: torch.from_numpy(arrays[key]).to(dtype) for name, key in names.items()}
    fields["action"] = extras["sample"].clamp(-1, 1)
    state = own | {f"critic_{name}": value for name, value in critics.items()}
    return batch_of(**fields, extras=extras, state=state, noise={"actions": noise}), arrays


def fields_of(arrays: Arrays, generator: torch.Generator, stack: int, dtype: torch.dtype) -> dict[str, Any]:
    """The fields of a batch that do not depend on the kind of actions."""
    planes = SIZES.length + stack
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    return {
        **{name: tensors[name] for name in ("action", "terminated", "truncated", "mask")},
        "obs": torch.randn(planes, SIZES.columns, PLANE, generator=generator, dtype=dtype),
        "episode_step": torch.randint(0, 4, (planes, SIZES.columns), generator=generator, dtype=torch.int32),
        "reward": tensors["reward"].to(dtype),
        "importance": tensors["importance"].to(dtype),
    }


def random_state(generator: torch.Generator, lstm: int, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """A recurrent state of the batch's columns; none without an LSTM."""
    shape = (SIZES.columns, lstm)
    return {name: torch.randn(shape, generator=generator, dtype=dtype) for name in ("hidden", "cell") if lstm}


def flat(tensors: Any) -> Tensor:
    """All numbers in one vector."""
    return torch.cat([x.detach().flatten() for x in tensors])
