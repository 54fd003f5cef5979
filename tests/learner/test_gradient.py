from __future__ import annotations

import dataclasses

import pytest
import torch

from apex_acer.config import RunConfig
from apex_acer.learner.gradient import Gradient, num_parts
from apex_acer.learner.optimizer import Optimizer
from apex_acer.protocol.unroll import Batch
from tests.algorithms.learning import samples_of
from tests.algorithms.segments import build, flat, random_segments


def computed(parts: int, batch: Batch, **settings: object) -> tuple[object, torch.Tensor]:
    """The output and the gradient of `batch`."""
    acer = build(3, **settings)
    gradient = Gradient(acer, Optimizer(RunConfig(), acer.groups()), parts)
    try:
        for parameter in acer.network.parameters():
            assert parameter.grad is not None
            parameter.grad.fill_(7.0)  # of another batch
        output = gradient.compute(samples_of(acer, batch), {"network"})
        assert not output.loss.requires_grad
        return output, flat([parameter.grad for parameter in acer.network.parameters()])
    finally:
        gradient.close()


@pytest.mark.parametrize("lstm", [0, 6])
@pytest.mark.parametrize("parts", [2, 3, 50])
def test_parts_make_the_whole(parts: int, lstm: int) -> None:
    batch, _ = random_segments(3, lstm=lstm)
    assert batch.mask.sum(0).unique().numel() > 1  # parts are not of equal weight
    whole, expected = computed(1, batch, lstm=lstm)
    output, found = computed(parts, batch, lstm=lstm)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(output.loss, whole.loss, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(output.priorities, whole.priorities)
    assert output.num_samples == whole.num_samples == batch.mask.sum()
    assert output.metrics.keys() == whole.metrics.keys()
    for name in whole.metrics:
        torch.testing.assert_close(output.metrics[name].double(), whole.metrics[name].double(), msg=name)


def test_parts_leave_out_what_is_frozen_and_what_no_loss_reaches() -> None:
    """As layers of a user's own torso may be."""
    batch, _ = random_segments(3)
    found = []
    for parts in (1, 2):
        acer = build(3)
        acer.network.register_parameter("unused", torch.nn.Parameter(torch.ones(2, dtype=torch.float64)))
        acer.network.q_values.bias.requires_grad_(False)
        gradient = Gradient(acer, Optimizer(RunConfig(), acer.groups()), parts)
        gradient.compute(samples_of(acer, batch), {"network"})
        gradient.close()
        assert acer.network.q_values.bias.grad is None
        assert not acer.network.unused.grad.any()
        found.append(flat([p.grad for p in acer.network.parameters() if p.requires_grad]))
    torch.testing.assert_close(found[1], found[0], rtol=1e-9, atol=1e-12)


def test_parts_repeat_to_the_bit() -> None:
    batch, _ = random_segments(4)
    _, first = computed(3, batch)
    assert all(torch.equal(computed(3, batch)[1], first) for _ in range(10))


def test_a_batch_with_nothing_to_learn_from_has_no_gradient() -> None:
    batch, _ = random_segments(5)
    output, found = computed(2, dataclasses.replace(batch, mask=torch.zeros_like(batch.mask)))
    assert output.loss == 0
    assert output.num_samples == 0  # of several learners the others must not divide by one more than there are
    assert not found.any()


def test_what_a_part_raises_is_raised() -> None:
    batch, _ = random_segments(5)
    with pytest.raises(RuntimeError):
        computed(2, dataclasses.replace(batch, action=batch.action[1:]))


@pytest.mark.parametrize(
    ("threads", "batch_size", "expected"), [(0, 16, 1), (1, 16, 1), (2, 16, 2), (64, 16, 8), (4, 1, 1)]
)
def test_a_part_has_two_segments_at_least(threads: int, batch_size: int, expected: int) -> None:
    assert num_parts(threads, batch_size) == expected
