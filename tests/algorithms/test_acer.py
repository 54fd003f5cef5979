"""ACER's loss against a slow transcription of the paper, its average network and memory, and how it acts."""

from __future__ import annotations

import dataclasses
import itertools
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from apex_acer.algorithms.acer.acer import Acer, acer_loss
from apex_acer.algorithms.algorithm import LossOutput
from apex_acer.functional import forbid
from apex_acer.networks.discrete import ActorCriticOutput
from apex_acer.networks.frames import stack_planes
from apex_acer.networks.memory import reset_state
from apex_acer.protocol.unroll import Batch
from tests.algorithms.learning import PLANE, act, assert_learns_finite_numbers, gradients_of, loss_of, run_of
from tests.algorithms.segments import (
    CHOICES,
    CPU,
    SIZES,
    Arrays,
    build,
    build_continuous,
    flat,
    random_continuous_segments,
    random_segments,
)
from tests.algorithms.windows import spec
from tests.functional import reference
from tests.functional.reference import Sizes, assert_near, random_batch
from tests.runs import made_up_unroll, tiny_run

SETTINGS = {
    "gamma": 0.9,
    "truncation_threshold": 2.0,
    "trust_region_delta": 0.5,
    "entropy_cost": 0.05,
    "q_cost": 0.5,
}

# the loss of given outputs of the network


def loss_and_gradients(batch: Arrays, **changes: Any) -> tuple[LossOutput, Tensor, Tensor]:
    """The loss, d/d pi_logits and d/d q_values."""
    given: dict[str, Any] = {name: torch.from_numpy(array.copy()) for name, array in batch.items()}
    output = ActorCriticOutput(given["pi_logits"].requires_grad_(), given["q_values"].requires_grad_())
    discount = torch.full_like(given["reward"], SETTINGS["gamma"]).masked_fill(given["terminated"], 0.0)
    samples: Any = SimpleNamespace(**given, extras={"log_probs": given["mu_log_probs"]}, discount=discount)
    settings: Any = SimpleNamespace(**SETTINGS | changes)
    loss = acer_loss(settings, samples, output, given["average_logits"], given["mask"])
    d_pi_logits, d_q_values = torch.autograd.grad(loss.loss, [output.pi_logits, output.q_values])
    return loss, d_pi_logits, d_q_values


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-5), (np.float64, 1e-10)])
@pytest.mark.parametrize(("delta", "threshold"), [(0.05, 2.0), (1.0, 2.0), (1.0, 0.0), (1.0, math.inf)])
def test_loss_and_its_gradients_match_the_paper(delta: float, threshold: float, dtype: type, tolerance: float) -> None:
    batch = random_batch(0, dtype=dtype)
    batch["importance"] = np.random.default_rng(0).uniform(0.2, 1.0, len(batch["importance"])).astype(dtype)
    changes = {"trust_region_delta": delta, "truncation_threshold": threshold}
    expected = reference.acer_loss(batch, **SETTINGS | changes)
    loss, d_pi_logits, d_q_values = loss_and_gradients(batch, **changes)
    assert 0 < expected.bound_share < 1
    assert loss.loss.item() == pytest.approx(expected.total, rel=tolerance)
    assert_near(d_pi_logits, expected.d_pi_logits, tolerance)
    assert_near(d_q_values, expected.d_q_values, tolerance)
    assert_near(loss.priorities, expected.td_error.sum(0) / batch["mask"].sum(0), tolerance)
    assert loss.metrics["trust_region_share"].item() == pytest.approx(expected.bound_share, rel=1e-6)


def test_a_single_action_leaves_the_policy_nothing_to_learn() -> None:
    batch = random_batch(0, Sizes(6, 3, 1))
    loss, d_pi_logits, d_q_values = loss_and_gradients(batch)
    assert not d_pi_logits.any()
    assert_near(d_q_values, reference.acer_loss(batch, **SETTINGS).d_q_values, 1e-10)
    assert [loss.metrics[name] for name in ("entropy", "average_policy_kl", "rho")] == [0, 0, 1]


def test_an_action_that_is_not_legal_changes_nothing() -> None:
    """The loss and its gradients are those without it, whatever value it has, and it has no gradient of its own."""
    batch = random_batch(0, dtype=np.float32)
    with_others = {**batch}
    legal = torch.tensor([True] * batch["q_values"].shape[-1] + [False, False])
    for name in ("pi_logits", "average_logits", "mu_log_probs", "q_values"):
        others = np.random.default_rng(1).normal(size=(*batch[name].shape[:-1], 2)).astype(np.float32)
        with_others[name] = np.concatenate([batch[name], 100 * others], -1)
        if name != "q_values":
            with_others[name] = forbid(torch.from_numpy(with_others[name]), legal).numpy()
    changes = {"trust_region_delta": 0.05}
    expected, *gradients = loss_and_gradients(batch, **changes)
    loss, *found = loss_and_gradients(with_others, **changes)
    for gradient, with_zeros in zip(gradients, found, strict=True):
        torch.testing.assert_close(with_zeros[..., :-2], gradient)
        assert (with_zeros[..., -2:] == 0).all()
    assert expected.metrics["trust_region_share"] > 0
    torch.testing.assert_close(loss.metrics, expected.metrics, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(loss.priorities, expected.priorities)


# the loss of a batch


def test_loss_and_parameter_gradients_match_the_paper() -> None:
    """Through the network, from stored planes, rewards and ends of episodes."""
    acer = build(trust_region_delta=0.02, truncation_threshold=1.5, reward_clip=1.0, terminal_penalty=0.75)
    batch, arrays = random_segments()
    obs = stack_planes(batch.obs, batch.episode_step, 2)
    output = acer.network(obs.flatten(0, 1))
    pi_logits, q_values = (part.view(SIZES.length + 1, SIZES.columns, -1) for part in output)
    average = acer.average_network(obs[:-1].flatten(0, 1)).pi_logits.view(SIZES.length, SIZES.columns, -1)
    known = {"pi_logits": pi_logits, "q_values": q_values, "average_logits": average}
    arrays |= {name: tensor.detach().numpy() for name, tensor in known.items()}
    arrays["reward"] = np.clip(arrays["reward"], -1, 1) - 0.75 * arrays["terminated"]
    expected = reference.acer_loss(arrays, **{name: getattr(acer.settings, name) for name in SETTINGS})
    derivatives = [torch.from_numpy(expected.d_pi_logits), torch.from_numpy(expected.d_q_values)]
    expected_gradients = torch.autograd.grad([pi_logits, q_values], list(acer.network.parameters()), derivatives)
    loss, gradients = gradients_of(acer, batch)
    assert loss.loss.item() == pytest.approx(expected.total, rel=1e-10)
    torch.testing.assert_close(gradients["network"], flat(expected_gradients), rtol=1e-9, atol=1e-12)
    assert loss.metrics["trust_region_share"].item() == pytest.approx(expected.bound_share)
    assert 0 < expected.bound_share < 1


def test_bfloat16_points_the_same_way_and_keeps_its_parameters_in_float32() -> None:
    """Where it computes in bfloat16 at all."""
    batch, _ = random_segments(7, dtype=torch.float32)
    found: list[Tensor] = []
    for precision in ("float32", "bfloat16"):
        output, gradients = gradients_of(build(7, dtype=torch.float32, learner__precision=precision), batch)
        assert output.loss.dtype == gradients["network"].dtype == torch.float32
        found.append(gradients["network"])
    one, other = found
    assert not torch.equal(one, other)
    assert torch.cosine_similarity(one, other, dim=0) > 0.995


# the average network


def test_average_network_begins_at_the_network_and_moves_by_its_share() -> None:
    acer = Acer.make(run_of("acer", ema_decay=0.75), spec(1, CHOICES), CPU)
    assert torch.equal(flat(acer.network.parameters()), flat(acer.average_network.parameters()))
    expected = flat(acer.average_network.parameters())
    for _ in range(3):
        for parameter in acer.network.parameters():
            parameter.data += torch.randn_like(parameter)
        acer.after_step(0, acer.groups())
        expected = 0.75 * expected + 0.25 * flat(acer.network.parameters())
        torch.testing.assert_close(flat(acer.average_network.parameters()), expected)
    assert not any(parameter.requires_grad for parameter in acer.average_network.parameters())


def test_both_networks_see_observations_by_the_newest_statistics() -> None:
    acer = build(2, stack=1, network__normalise=True)
    acer.average_network.load_state_dict(acer.network.state_dict())
    acer.observe(made_up_unroll(tiny_run(), obs=np.full((6, 4, 4), 3, np.float32)), "a")
    networks: list[Any] = [acer.network, acer.average_network]
    newest, average = (network.normaliser.moments for network in networks)
    before = average.mean.clone()
    batch, _ = random_segments(2, stack=1)
    assert loss_of(acer, batch).metrics["average_policy_kl"].item() == pytest.approx(0, abs=1e-12)
    assert torch.equal(average.mean, before)
    acer.after_step(0, acer.groups())
    torch.testing.assert_close(dict(average.named_buffers()), dict(newest.named_buffers()), rtol=0, atol=0)
    assert average.mean.tolist() == [3, 3, 3, 3]
    newest.mean.fill_(4.0)
    assert average.mean.tolist() == [3, 3, 3, 3]


# memory: stored states, episodes within a segment, burn-in

LSTM, BURN_IN = 6, 3


def later(batch: Batch, network: Any) -> Batch:
    """`batch` after its burn-in, in the state to which `network` gets step by step; its stack is 1."""
    state = batch.state
    with torch.no_grad():
        for obs, step in zip(batch.obs[:BURN_IN], batch.episode_step[:BURN_IN], strict=True):
            _, state = network.step(obs, reset_state(state, step == 0))
    fields = ("obs", "episode_step", "action", "reward", "terminated", "truncated", "mask")
    extras = {name: part[BURN_IN:] for name, part in batch.extras.items()}
    return dataclasses.replace(
        batch, **{name: getattr(batch, name)[BURN_IN:] for name in fields}, extras=extras, state=state
    )


def test_burn_in_only_warms_up_the_state_of_each_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replayed segment is learned from as if it began after its burn-in."""
    batch, _ = random_segments(0, stack=1, lstm=LSTM)
    acer, plain = (build(stack=1, lstm=LSTM, burn_in=steps) for steps in (BURN_IN, 0))
    rest, state = later(batch, acer.network), later(batch, acer.average_network).state
    unroll = plain.average_network.unroll
    monkeypatch.setattr(plain.average_network, "unroll", lambda obs, first, _: unroll(obs, first, state))
    (expected, expected_gradients), (loss, gradients) = gradients_of(plain, rest), gradients_of(acer, batch)
    torch.testing.assert_close(loss, expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(gradients, expected_gradients, rtol=1e-6, atol=1e-9)
    cold = loss_of(plain, dataclasses.replace(rest, state=batch.state))
    assert loss.loss.item() != pytest.approx(cold.loss.item())


KINDS: list[tuple[Any, Any]] = [(build, random_segments), (build_continuous, random_continuous_segments)]


@pytest.mark.parametrize(("build", "segments"), KINDS, ids=["discrete", "continuous"])
def test_burn_in_leaves_out_steps_of_replayed_segments_only(build: Any, segments: Any) -> None:
    batch, _ = segments(2, lstm=LSTM)
    batch.fresh[[0, 2]] = True
    left = batch.mask & (batch.fresh | (torch.arange(SIZES.length) >= BURN_IN).unsqueeze(-1))
    acer, plain = (build(2, lstm=LSTM, burn_in=steps) for steps in (BURN_IN, 0))
    loss, expected = loss_of(acer, batch), loss_of(plain, dataclasses.replace(batch, mask=left))
    torch.testing.assert_close(loss.metrics, expected.metrics, rtol=1e-9, atol=1e-12)
    assert loss.metrics["q_loss"] != loss_of(plain, batch).metrics["q_loss"]
    batch.fresh[:] = True
    torch.testing.assert_close(gradients_of(acer, batch), gradients_of(plain, batch), rtol=0, atol=0)


# acting


def test_mu_is_what_actions_are_sampled_from() -> None:
    acer, temperature = build(15, dtype=torch.float32), 3.0
    obs = torch.randn(1, 2 * PLANE, generator=torch.Generator().manual_seed(0)).expand(20_000, -1)
    action, extras, _ = act(acer, obs, temperature)
    mu = extras["log_probs"][0].exp()
    logits = acer.network(obs[:1]).pi_logits[0].detach()
    torch.testing.assert_close(mu, (logits / temperature).softmax(-1))
    frequency = action.bincount(minlength=SIZES.actions) / len(action)
    torch.testing.assert_close(frequency, mu, rtol=0, atol=4 * math.sqrt(0.25 / len(action)))
    assert (action.dtype, extras["log_probs"].dtype) == (torch.int64, torch.float32)
    assert torch.equal(act(acer, obs[:1], greedy=True).action, logits.argmax(-1, keepdim=True))
    assert torch.equal(act(acer, obs, seed=3).action, act(acer, obs, seed=3).action)
    assert not torch.equal(act(acer, obs, seed=3).action, act(acer, obs, seed=4).action)


@pytest.mark.parametrize(("build", "segments"), KINDS, ids=["discrete", "continuous"])
def test_acting_gives_the_state_after_the_observation(build: Any, segments: Any) -> None:
    acer = build(7, lstm=LSTM)
    batch, _ = segments(7, lstm=LSTM)
    obs = torch.randn(SIZES.columns, 2 * PLANE, dtype=torch.float64)
    action = act(acer, obs, 2.0, state=batch.state)
    torch.testing.assert_close(action.state, acer.network.step(obs, batch.state)[1], rtol=0, atol=0)
    assert {name: tuple(value.shape[1:]) for name, value in action.state.items()} == acer.agent.state
    assert {name: tuple(value.shape[1:]) for name, value in action.extras.items()} == acer.agent.extras
    assert not any(torch.equal(value, batch.state[name]) for name, value in action.state.items())


# numbers at the edges of float32 stay numbers

LOGITS = {
    "uniform": [0.0, 0.0, 0.0],
    "one impossible": [-200.0, 200.0, 200.0],
    "one certain": [200.0, -200.0, -200.0],
}


def set_policy(network: Any, logits: list[float]) -> None:
    torch.nn.init.zeros_(network.pi_logits.weight)
    network.pi_logits.bias.data.copy_(torch.tensor(logits))


def acted(logits: list[float]) -> Batch:
    """Segments whose actions a policy of these logits took; a dummy step has one that nobody may have taken."""
    batch, _ = random_segments(stack=1, dtype=torch.float32)
    log_mu = torch.tensor(logits).log_softmax(-1).expand(*batch.action.shape, -1)
    action = torch.multinomial(log_mu.exp().flatten(0, 1), 1).view(batch.action.shape)
    batch.mask[3], action[3] = False, 0
    return dataclasses.replace(batch, action=action, extras={"log_probs": log_mu})


@pytest.mark.parametrize(("pi", "average", "mu"), list(itertools.product(LOGITS, repeat=3)))
def test_probabilities_that_underflow(pi: str, average: str, mu: str) -> None:
    acer = build(stack=1, dtype=torch.float32)
    set_policy(acer.network, LOGITS[pi])
    set_policy(acer.average_network, LOGITS[average])
    assert_learns_finite_numbers(acer, acted(LOGITS[mu]))


@pytest.mark.parametrize("normalise", [False, True])
def test_huge_rewards_and_rewards_of_all_sizes(normalise: bool) -> None:
    random, batch = np.random.default_rng(0), acted(LOGITS["uniform"])
    sizes = 10 ** random.uniform(-6, 6, batch.reward.shape) * batch.reward.sign().numpy()
    for reward in (1e6 * random.random(batch.reward.shape), -1e6 * random.random(batch.reward.shape), sizes):
        acer = build(stack=1, dtype=torch.float32, normalise_rewards=normalise)
        for seed in range(3):
            acer.observe(made_up_unroll(tiny_run(), seed, reward=reward[:5, :4].astype(np.float32)), "a")
        huge = dataclasses.replace(batch, reward=torch.from_numpy(reward).float())
        assert assert_learns_finite_numbers(acer, huge).metrics["q_loss"] < 1e3 or not normalise
