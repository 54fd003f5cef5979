from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from apex_acer.algorithms.sac.sac import Sac
from tests.algorithms.continuous import assert_learns, sac_losses
from tests.algorithms.learning import PLANE, act, gradients_of, run_of, samples_of
from tests.algorithms.segments import CPU, flat
from tests.algorithms.windows import DIM, STACK, build, random_windows, spec_for

SETTINGS: dict[str, dict[str, Any]] = {
    "as published": {},
    "one critic, one step": {"num_critics": 1, "n_steps": 1},
    "images": {"images": True},
    "shifted images": {"images": True, "image_shift": 2},
    "three critics, shaped rewards": {"num_critics": 3, "reward_clip": 1.0, "terminal_penalty": 0.5},
}


@pytest.mark.parametrize("changes", SETTINGS.values(), ids=SETTINGS)
def test_each_group_gets_the_gradient_of_its_own_loss(changes: dict[str, Any]) -> None:
    algorithm = build("sac", 1, **changes)
    batch = random_windows(algorithm, 1)
    metrics = assert_learns(algorithm, batch, sac_losses(algorithm, batch))
    mask = batch.mask[0]
    if "shift" not in batch.noise:
        inputs = algorithm.network.prepare(samples_of(algorithm, batch).obs)
        q_taken = algorithm.critics(algorithm.network.encode(inputs), batch.action[0]).mean(0)
        torch.testing.assert_close(metrics["q_taken"], q_taken[mask].mean().detach())
    torch.testing.assert_close(metrics["importance"], batch.importance[mask].mean())
    torch.testing.assert_close(metrics["temperature"], algorithm.temperature["log"].exp().detach())


def set_policy(algorithm: Sac, outputs: list[float]) -> None:
    """Means and logarithms of standard deviations, the same for all observations."""
    head: Any = algorithm.network.head
    torch.nn.init.zeros_(head.weight)
    head.bias.data.copy_(torch.tensor(outputs))


def test_the_temperature_rises_until_the_entropy_is_minus_one_nat_per_dimension() -> None:
    algorithm = build("sac", 5)
    batch = random_windows(algorithm, 5)
    for log_std, falls in ((-3.0, True), (0.0, False)):
        set_policy(algorithm, [0.0] * DIM + [log_std] * DIM)
        output, found = gradients_of(algorithm, batch)
        assert (output.metrics["entropy"] < -DIM) == falls
        assert (found["temperature"] < 0) == falls  # the logarithm rises against its gradient


def test_target_critics_are_averages_of_the_critics() -> None:
    algorithm = build("sac", 6, ema_decay=0.9)
    slow, fast = (flat(m.parameters()).clone() for m in (algorithm.target_critics, algorithm.critics))
    algorithm.after_step(1, algorithm.groups())
    torch.testing.assert_close(flat(algorithm.target_critics.parameters()), 0.9 * slow + 0.1 * fast)
    assert torch.equal(flat(algorithm.critics.parameters()), fast)
    fresh = Sac.make(run_of("sac", initial_temperature=0.1), spec_for("sac"), CPU)
    assert torch.equal(flat(fresh.critics.parameters()), flat(fresh.target_critics.parameters()))
    assert not any(parameter.requires_grad for parameter in fresh.target_critics.parameters())
    assert fresh.temperature["log"].item() == pytest.approx(math.log(0.1))


def test_actions_are_uniform_before_the_first_update_and_the_policy_s_afterwards() -> None:
    algorithm = build("sac", 9, dtype=torch.float32)
    set_policy(algorithm, [0.3, -0.2, -1.0, -0.5])
    obs = torch.randn(20_000, STACK * PLANE)
    before = act(algorithm, obs, updates=0).action
    counts = torch.histc(before, 8, -1, 1) / before.numel()
    torch.testing.assert_close(counts, torch.full((8,), 1 / 8), rtol=0, atol=0.01)
    after = torch.atanh(act(algorithm, obs).action)
    torch.testing.assert_close(after.mean(0), torch.tensor([0.3, -0.2]), rtol=0, atol=0.02)
    torch.testing.assert_close(after.std(0), torch.tensor([-1.0, -0.5]).exp(), rtol=0.03, atol=0)
    mean = torch.tensor([[0.3, -0.2]])
    torch.testing.assert_close(act(algorithm, obs[:1], greedy=True).action, mean.tanh())


def test_images_are_shifted_up_to_so_many_pixels_in_every_direction() -> None:
    algorithm = build("sac", 7, images=True, image_shift=2)
    samples = samples_of(algorithm, random_windows(algorithm, 7))
    shifts = torch.stack([algorithm.noise(samples)["shift"] for _ in range(50)])
    assert shifts.shape == (50, 2, len(samples.importance), 2)
    shares = torch.stack([(shifts == pixels).float().mean((0, 2)) for pixels in range(-2, 3)])
    torch.testing.assert_close(shares, torch.full_like(shares, 0.2), rtol=0, atol=0.03)
    assert "shift" not in build("sac", 7).noise(samples)
