"""Curiosity's losses and its reward against their definitions, and what has gradient."""

import math

import pytest
import torch

from apex_acer.functional import curiosity_loss, forward_error, intrinsic_reward, inverse_error


def test_the_forward_error_is_half_the_squared_distance_and_moves_features_too():
    predicted, features = torch.tensor([[1.0, 2.0], [0.0, 0.0]]), torch.tensor([[0.0, 4.0], [0.0, 6.0]])
    predicted, features = predicted.requires_grad_(), features.requires_grad_()
    error = forward_error(predicted, features)
    assert error.tolist() == [(1 + 4) / 2, 36 / 2]
    gradients = torch.autograd.grad(error.sum(), (predicted, features))
    assert gradients[0].tolist() == (-gradients[1]).tolist() == [[1.0, -2.0], [0.0, -6.0]]


def test_the_inverse_error_of_choices_is_their_cross_entropy():
    logits, action = torch.tensor([[[0.0, 1.0, 3.0]], [[5.0, 2.0, 2.0]]]), torch.tensor([[2], [1]])
    first, second = (math.log(sum(map(math.exp, row))) for row in ((0, 1, 3), (5, 2, 2)))
    torch.testing.assert_close(inverse_error(logits, action), torch.tensor([[first - 3], [second - 2]]))


def test_the_inverse_error_of_numbers_is_half_their_squared_distance():
    predicted, action = torch.tensor([[1.0, 2.0], [0.0, 0.5]]), torch.tensor([[0.0, 0.0], [0.0, 1.0]])
    assert inverse_error(predicted, action).tolist() == [2.5, 0.125]


def test_the_loss_weighs_the_models():
    error = {"forward": torch.tensor([1.0, 0.0]), "inverse": torch.tensor([0.0, 1.0])}
    assert curiosity_loss(**error).tolist() == pytest.approx([0.2, 0.8])
    assert curiosity_loss(**error, beta=0.75).tolist() == [0.75, 0.25]


def test_dummy_steps_pay_nothing_and_the_reward_has_no_gradient():
    error = torch.tensor([[2.0, math.nan], [3.0, 4.0]], requires_grad=True)
    reward = intrinsic_reward(forward=error, mask=torch.tensor([[True, False], [False, True]]), eta=0.5)
    assert reward.tolist() == [[1.0, 0.0], [0.0, 2.0]]
    assert not reward.requires_grad
