"""Conjugate gradients against a direct solution, and products with the Fisher matrix against the matrix itself."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call

from apex_acer.functional import Categorical, Gaussian, conjugate_gradient, fisher_product
from tests.functional import reference_on_policy as slow

DAMPING = 0.1


def random(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def positive_definite(size):
    root = random(size, size)
    return root @ root.T + torch.eye(size, dtype=torch.float64)


class Policy(nn.Module):
    """A small policy beside a head that has no part in it."""

    def __init__(self, kind):
        super().__init__()
        torch.manual_seed(0)
        self.kind = kind
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        self.value = nn.Linear(3, 1)
        self.log_std = nn.Parameter(torch.tensor([0.3, -0.2]))
        self.double()

    def forward(self, obs):
        mean = self.layers(obs)
        return Categorical(mean.log_softmax(-1)) if self.kind is Categorical else Gaussian(mean, self.log_std)


def mean_kl(network, obs):
    new = network(obs)
    return type(new)(*(tensor.detach() for tensor in new)).kl(new).mean()


def explicit_hessian(network, obs):
    """Of the mean KL with respect to all parameters, as one matrix."""
    names, shapes = zip(*((name, parameter.shape) for name, parameter in network.named_parameters()), strict=True)
    sizes = [shape.numel() for shape in shapes]
    old = type(network(obs))(*(tensor.detach() for tensor in network(obs)))

    def divergence(flat):
        parts = (part.view(shape) for part, shape in zip(flat.split(sizes), shapes, strict=True))
        return old.kl(functional_call(network, dict(zip(names, parts, strict=True)), obs)).mean()

    flat = torch.cat([parameter.detach().reshape(-1) for parameter in network.parameters()])
    return torch.autograd.functional.hessian(divergence, flat)


@pytest.mark.parametrize("kind", [Categorical, Gaussian])
def test_products_are_those_of_the_damped_hessian(kind):
    network, obs = Policy(kind), random(6, 3, seed=1)
    matrix = explicit_hessian(network, obs)
    damped = matrix + DAMPING * torch.eye(len(matrix), dtype=torch.float64)
    product = fisher_product(mean_kl(network, obs), list(network.parameters()), DAMPING)
    for seed in range(3):  # of one graph
        vector = random(len(matrix), seed=seed)
        found = product(vector)
        torch.testing.assert_close(found, damped @ vector)
        assert not found.requires_grad
    assert all(parameter.grad is None for parameter in network.parameters())
    solution = conjugate_gradient(product, vector, len(matrix))
    torch.testing.assert_close(solution, torch.linalg.solve(damped, vector), rtol=1e-4, atol=1e-4)


def test_the_hessian_at_the_old_policy_is_the_fisher_matrix():
    network, obs = Policy(Categorical), random(6, 3, seed=1)
    log_probs, parameters = network(obs).log_probs, list(network.parameters())
    scores = np.zeros((*log_probs.shape, sum(parameter.numel() for parameter in parameters)))
    for state, action in np.ndindex(scores.shape[:2]):
        found = torch.autograd.grad(log_probs[state, action], parameters, retain_graph=True, materialize_grads=True)
        scores[state, action] = torch.cat([gradient.reshape(-1) for gradient in found])
    expected = torch.from_numpy(slow.fisher(log_probs.exp().detach().numpy(), scores))
    product = fisher_product(mean_kl(network, obs), parameters, 0.0)
    found = torch.stack([product(row) for row in torch.eye(len(expected), dtype=torch.float64)])
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("size", [1, 2, 10])
def test_as_many_products_as_dimensions_solve_the_system(size):
    matrix, vector = positive_definite(size), random(size, seed=1)
    solution = conjugate_gradient(matrix.mv, vector, size, tolerance=0.0)
    torch.testing.assert_close(solution, torch.linalg.solve(matrix, vector))


@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
def test_ends_once_the_residual_is_small_whatever_the_scale(scale):
    matrix, vector = positive_definite(10), scale * random(10, seed=1)
    products = []
    solution = conjugate_gradient(lambda x: products.append(x) or matrix @ x, vector, 1000, tolerance=1e-4)
    assert 2 < len(products) < 10
    assert (vector - matrix @ solution).norm() <= 1e-2 * vector.norm()


def test_more_products_come_nearer():
    matrix, vector = positive_definite(10), random(10, seed=1)
    exact = torch.linalg.solve(matrix, vector)

    def distance(count):
        error = conjugate_gradient(matrix.mv, vector, count, tolerance=0.0) - exact
        return (error @ matrix @ error).item()

    distances = [distance(count) for count in range(11)]
    assert distances == sorted(distances, reverse=True)


def test_of_nothing_it_is_nothing():
    solution = conjugate_gradient(lambda _: pytest.fail("no product is needed"), torch.zeros(3), 10)
    assert torch.equal(solution, torch.zeros(3))


def test_stops_before_a_direction_without_positive_curvature():
    vector = torch.tensor([1.0, 1.0])
    for diagonal in ([-1.0, -2.0], [1.0, -1.0], [0.0, 0.0], [torch.nan, 1.0], [torch.inf, 1.0], [1e-45, 0.0]):
        matrix = torch.tensor(diagonal)
        assert torch.equal(conjugate_gradient(lambda x, matrix=matrix: matrix * x, vector, 10), torch.zeros(2)), (
            diagonal
        )
    later = conjugate_gradient(
        lambda x: torch.tensor([3.0, -1.0]) * x, vector, 10
    )  # the second direction is the bad one
    assert torch.equal(later, torch.tensor([1.0, 1.0]))
