import pytest
import torch

from apex_acer.functional import correlated_noise, smallest_target, smoothed_action


def drawn(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("critics", [1, 3])
def test_the_target_is_that_of_the_smallest_critic(critics):
    reward, discount = drawn(5), torch.tensor([0.9, 0.0, 0.81, 0.9, 0.5], dtype=torch.float64)
    q_values = drawn(critics, 5)
    target = smallest_target(reward=reward, discount=discount, q_values=q_values)
    for i in range(5):
        value = min(float(q[i]) for q in q_values)
        assert target[i].item() == pytest.approx(float(reward[i]) + float(discount[i]) * value)


def test_smoothing_is_clipped_and_so_is_the_action():
    action, noise = torch.tensor([[0.9, -0.9, 0.0, 0.2]]), torch.tensor([[0.3, -2.0, 0.7, 0.1]])
    expected = torch.tensor([[1.0, -1.0, 0.5, 0.3]])
    torch.testing.assert_close(smoothed_action(action, noise, 0.5), expected)


def test_correlated_noise_is_an_ornstein_uhlenbeck_process():
    """Its variance is σ² / (1 − (1 − θ)²), and its autocorrelation falls by 1 − θ a step."""
    theta, noise, path = 0.15, torch.zeros(2000, 1, dtype=torch.float64), []
    innovations = drawn(120, 2000, 1)
    for innovation in innovations:
        noise = correlated_noise(noise, 0.2 * innovation, theta)
        path.append(noise)
    late = torch.stack(path[40:]).squeeze(-1)  # [80, N]
    assert late.var().item() == pytest.approx(0.2**2 / (1 - (1 - theta) ** 2), rel=0.03)
    autocorrelation = (late[1:] * late[:-1]).mean() / late.square().mean()
    assert autocorrelation.item() == pytest.approx(1 - theta, abs=0.01)
    assert torch.equal(correlated_noise(noise, innovations[0], 1.0), innovations[0])
