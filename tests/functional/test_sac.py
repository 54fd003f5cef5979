import math

import pytest
import torch

from apex_acer.functional import soft_policy_loss, soft_target, temperature_loss

generator = torch.Generator().manual_seed(0)
REWARD, LOG_PROB = torch.randn(2, 7, generator=generator, dtype=torch.float64)
DISCOUNT = torch.tensor([0.9, 0.0, 0.9, 0.81, 0.0, 0.9, 0.729], dtype=torch.float64)
Q_VALUES = torch.randn(3, 7, generator=generator, dtype=torch.float64)
ALPHA = 0.3


def smallest(column):
    return min(float(q_values[column]) for q_values in Q_VALUES)


def test_targets_and_policy_losses_match_the_paper():
    temperature = torch.tensor(ALPHA)
    target = soft_target(
        reward=REWARD, discount=DISCOUNT, q_values=Q_VALUES, log_prob=LOG_PROB, temperature=temperature
    )
    loss = soft_policy_loss(q_values=Q_VALUES, log_prob=LOG_PROB, temperature=temperature)
    for i in range(7):
        value = smallest(i) - ALPHA * float(LOG_PROB[i])  # equation 3
        assert target[i].item() == pytest.approx(float(REWARD[i]) + float(DISCOUNT[i]) * value)
        assert loss[i].item() == pytest.approx(ALPHA * float(LOG_PROB[i]) - smallest(i))  # equation 7
    assert target[1] == REWARD[1]


def test_the_temperature_follows_equation_18_and_nothing_else_does():
    log_temperature = torch.tensor(math.log(ALPHA), requires_grad=True)
    log_prob = LOG_PROB.clone().requires_grad_()
    loss = temperature_loss(log_temperature, log_prob, -2.0).sum()
    (gradient,) = torch.autograd.grad(loss, log_temperature, retain_graph=True)
    assert gradient.item() == pytest.approx(sum(-(float(x) - 2.0) for x in LOG_PROB), rel=1e-6)
    assert torch.autograd.grad(loss, log_prob, allow_unused=True) == (None,)
