from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from apex_acer.algorithms.acer.continuous import ContinuousAcer
from apex_acer.networks.frames import stack_planes
from apex_acer.networks.memory import reset_state
from apex_acer.protocol.unroll import Batch
from tests.algorithms.learning import PLANE, act, assert_learns_finite_numbers, gradients_of, samples_of
from tests.algorithms.segments import (
    SIZES,
    Arrays,
    build_continuous,
    flat,
    random_continuous_segments,
)
from tests.functional import reference_continuous as reference

LSTM, BURN_IN = 6, 3


def expected_of(acer: ContinuousAcer, batch: Batch, arrays: Arrays) -> tuple[reference.Loss, Any, dict[str, float]]:
    """The reference's loss on what the networks say, its gradients carried through the network, and its metrics.

    Densities are of the action as sampled, and Q is of the action as clipped to the box. The actions that the advantage is
    averaged over are samples of the policy, but constants.
    """
    given, obs = acer.settings, stack_planes(batch.obs, batch.episode_step, 2)
    reset, state = batch.episode_step[1:] == 0, batch.state
    mean = acer.network.unroll_policy(obs.flatten(0, 1), reset, state)
    value, features = acer.network.unroll_critic(obs.flatten(0, 1), reset, state)
    average_mean = acer.average_network.unroll_policy(obs[:-1].flatten(0, 1), reset[:-1], state)
    noise = samples_of(acer, batch).noise["actions"]
    samples = mean[:-1].detach().unsqueeze(2) + given.std * noise  # [T, B, 1+n, d]
    clipped = samples.clamp(-1, 1).movedim(2, 0)
    taken, other, *each = (acer.network.advantage(features[:-1], action) for action in (batch.action, *clipped))
    others = torch.stack(each)
    tensors = {
        "mean": mean,
        "value": value,
        "average_mean": average_mean,
        "other_action": samples[:, :, 0],
        "advantage": taken,
        "other_advantage": other,
        "other_advantages": others,
    }
    known = arrays | {name: tensor.detach().numpy() for name, tensor in tensors.items()}
    known["log_std"] = np.full(SIZES.actions, math.log(given.std))
    names = ("gamma", "truncation_threshold", "trust_region_delta", "q_cost")
    loss = reference.acer_loss(known, **{name: getattr(given, name) for name in names})
    derivatives = (loss.d_mean, loss.d_value, loss.d_advantage, loss.d_others)
    gradients = torch.autograd.grad(
        [mean, value, taken, others], list(acer.network.parameters()), [torch.from_numpy(d) for d in derivatives]
    )
    mask, q_taken = arrays["mask"], (value[:-1] + taken - others.mean(0)).detach().numpy()
    q_ret, q_opc, _ = reference.targets(known, q_taken, given.gamma)
    rho, _ = reference.ratios(known)
    averages, policies = (known[name][: SIZES.length][mask] for name in ("average_mean", "mean"))
    log_std = known["log_std"]
    divergences = [reference.kl(one, log_std, other, log_std) for one, other in zip(averages, policies, strict=True)]
    metrics = {
        "average_policy_kl": np.mean(divergences),
        "rho": np.minimum(rho, max(given.truncation_threshold, 1.0))[mask].mean(),
        "truncated_share": (rho > given.truncation_threshold)[mask].mean(),
        "trust_region_share": loss.bound_share,
        "value": known["value"][:-1][mask].mean(),
        "q_ret": q_ret[mask].mean(),
        "q_opc": q_opc[mask].mean(),
        "action_std": given.std,
    }
    return loss, gradients, {name: float(value) for name, value in metrics.items()}


@pytest.mark.parametrize(("delta", "threshold", "lstm"), [(0.02, 1.5, 0), (1.0, 1.5, LSTM), (1.0, 0.2, 0)])
def test_loss_metrics_and_parameter_gradients_match_the_paper(delta: float, threshold: float, lstm: int) -> None:
    acer = build_continuous(lstm=lstm, trust_region_delta=delta, truncation_threshold=threshold)
    batch, arrays = random_continuous_segments(lstm=lstm)
    arrays["importance"][:] = np.random.default_rng(0).uniform(0.2, 1.0, SIZES.columns)
    batch = replace(batch, importance=torch.from_numpy(arrays["importance"]))
    expected, expected_gradients, metrics = expected_of(acer, batch, arrays)
    loss, gradients = gradients_of(acer, batch)
    assert loss.loss.item() == pytest.approx(expected.total, rel=1e-9)
    torch.testing.assert_close(gradients["network"], flat(expected_gradients), rtol=1e-8, atol=1e-11)
    mean_error = expected.td_error.sum(0) / arrays["mask"].sum(0)
    np.testing.assert_allclose(loss.priorities.numpy(), mean_error, rtol=1e-9)
    assert {name: loss.metrics[name].item() for name in metrics} == pytest.approx(metrics)
    assert 0 < metrics["truncated_share"] < 1
    assert 0 < expected.bound_share < 1
    assert (batch.action != batch.extras["sample"]).any()


def test_q_is_that_of_the_action_as_the_environment_took_it() -> None:
    acer = build_continuous(5)
    batch, _ = random_continuous_segments(5)
    beyond = replace(batch, extras=batch.extras | {"sample": batch.extras["sample"] * 3})
    other = replace(batch, action=-batch.action)
    q_taken, same, another = (acer._outputs(samples_of(acer, each)).q_taken for each in (batch, beyond, other))
    assert torch.equal(same, q_taken)
    assert not torch.isclose(another, q_taken).any()


def test_noise_is_drawn_for_the_action_asked_about_and_for_those_averaged_over() -> None:
    batch, _ = random_continuous_segments()
    for num_samples in (5, 9):
        acer = build_continuous(num_samples=num_samples)
        noise = acer.noise(samples_of(acer, batch))["actions"]
        assert noise.shape == (SIZES.length, SIZES.columns, 1 + num_samples, SIZES.actions)
        assert not torch.equal(noise[:, :, 0], noise[:, :, 1])


# memory


def test_a_segment_is_seen_as_the_actor_saw_it_step_by_step() -> None:
    network = build_continuous(11, stack=1, lstm=LSTM).network
    batch, _ = random_continuous_segments(11, stack=1, lstm=LSTM)
    reset, state = batch.episode_step == 0, batch.state
    mean = network.unroll_policy(batch.obs.flatten(0, 1), reset, state)
    value, features = network.unroll_critic(batch.obs.flatten(0, 1), reset, state)
    for t, obs in enumerate(batch.obs):
        output, state = network.step(obs, reset_state(state, reset[t]))
        torch.testing.assert_close(output.mean, mean[t])
        torch.testing.assert_close(output.value, value[t])
        torch.testing.assert_close(state["critic_hidden"], features[t])


# acting


def test_mu_is_what_actions_are_sampled_from() -> None:
    acer, std = build_continuous(14, dtype=torch.float32), 1.2
    obs = torch.randn(1, 2 * PLANE, generator=torch.Generator().manual_seed(0)).expand(20_000, -1)
    action, extras, _ = act(acer, obs, std)
    mean = acer.network(obs).mean.detach()
    torch.testing.assert_close(extras["mean"], mean)
    torch.testing.assert_close(extras["log_std"], torch.full((20_000, SIZES.actions), math.log(std)))
    deviations = (extras["sample"] - extras["mean"]) / std
    torch.testing.assert_close(deviations.mean(0), torch.zeros(SIZES.actions), rtol=0, atol=0.03)
    torch.testing.assert_close(deviations.std(0), torch.ones(SIZES.actions), rtol=0, atol=0.03)
    assert torch.equal(action, extras["sample"].clamp(-1, 1))
    assert (extras["sample"].abs() > 1).any()
    assert torch.equal(act(acer, obs, std, greedy=True).action, mean.clamp(-1, 1))
    assert torch.equal(act(acer, obs, seed=3).action, act(acer, obs, seed=3).action)
    assert not torch.equal(act(acer, obs, seed=3).action, act(acer, obs, seed=4).action)


def test_an_actor_s_temperature_widens_its_policy() -> None:
    agent = build_continuous(std=0.4, actors__temperature_low=2.0, actors__temperature_high=2.0).agent
    assert agent.exploration(3).tolist() == pytest.approx([0.4] * 3)
    assert agent.exploration(3, 0).tolist() == pytest.approx([0.8] * 3)


# extremes


@pytest.mark.parametrize(("far", "std"), [(0.0, 1e-3), (50.0, 0.3), (1e25, 0.3), (-1e6, 1e-3), (-1e6, 100.0)])
def test_policies_that_are_far_apart_learn_finite_steps(far: float, std: float) -> None:
    acer = build_continuous(17, stack=1, dtype=torch.float32, std=std)
    batch, _ = random_continuous_segments(17, stack=1, dtype=torch.float32)
    elsewhere = {name: part + (name != "log_std") * far for name, part in batch.extras.items()}
    batch = replace(batch, reward=1e6 * batch.reward, extras=elsewhere)
    assert_learns_finite_numbers(acer, batch)
