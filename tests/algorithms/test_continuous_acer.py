import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from apex_acer.algorithms import make_agent
from apex_acer.algorithms.samples import split
from apex_acer.config import ActorsConfig
from apex_acer.learner.gradient import merge
from apex_acer.networks.frames import stack_planes
from apex_acer.networks.memory import reset_state
from apex_acer.networks.weights import pack, unpack
from tests.algorithms.continuous_segments import SIZES, build, config_of, random_segments, recurrent_state, spec_of
from tests.algorithms.learning import loss_of, samples_of
from tests.algorithms.segments import PLANE, flat, gradients_of
from tests.functional import reference_continuous as reference
from tests.runs import made_up_unroll, tiny_run

LSTM, BURN_IN = 6, 3


def expected_of(acer, batch, arrays):
    """The reference's loss on what the networks say, and its gradients carried through the network."""
    given, obs = acer.settings, stack_planes(batch.obs, batch.episode_step, 2)
    reset = batch.episode_step[1:] == 0
    mean = acer.network.unroll_policy(obs.flatten(0, 1), reset, {})
    value, features = acer.network.unroll_critic(obs.flatten(0, 1), reset, {})
    average_mean = acer.average_network(obs[:-1].flatten(0, 1)).mean.view(*batch.mask.shape, -1)
    samples = mean[:-1].detach().unsqueeze(2) + given.std * batch.noise["actions"]  # [T, B, 1+n, d]
    clipped = samples.clamp(-1, 1).movedim(2, 0)
    taken, other, *others = (acer.network.advantage(features[:-1], a) for a in (batch.action, *clipped))
    others = torch.stack(others)
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
    return loss, gradients


@pytest.mark.parametrize("delta", [0.02, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_loss_and_parameter_gradients_match_the_paper(seed, delta):
    acer = build(seed, trust_region_delta=delta, truncation_threshold=1.5)
    batch, arrays = random_segments(seed)
    arrays["importance"][:] = np.random.default_rng(seed).uniform(0.2, 1.0, SIZES.columns)
    batch = replace(batch, importance=torch.from_numpy(arrays["importance"]))
    expected, expected_gradients = expected_of(acer, batch, arrays)
    loss, gradients = gradients_of(acer, batch)
    assert loss.loss.item() == pytest.approx(expected.total, rel=1e-9)
    for one, two in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-8, atol=1e-11)
    mean_error = expected.td_error.sum(0) / arrays["mask"].sum(0)
    np.testing.assert_allclose(loss.priorities.numpy(), mean_error, rtol=1e-9)
    assert loss.metrics["trust_region_share"].item() == pytest.approx(expected.bound_share)
    assert 0 < expected.bound_share < 1


def test_what_a_dummy_step_did_changes_nothing():
    """Its observation counts (the final one of a time limit); its action, its reward and its mu do not."""
    acer = build(1)
    batch, _ = random_segments(1)
    dummy = ~batch.mask
    other = replace(batch, action=batch.action.clone(), reward=batch.reward.clone())
    other.action[dummy], other.reward[dummy] = 0.5, 1e3
    other = replace(other, extras={name: part.clone() for name, part in batch.extras.items()})
    for part in other.extras.values():
        part[dummy] += 3
    (one, gradients), (two, others) = gradients_of(acer, batch), gradients_of(acer, other)
    assert dummy.any()
    assert torch.equal(one.loss, two.loss)
    assert torch.equal(flat(gradients), flat(others))
    assert {name: value.item() for name, value in one.metrics.items()} == {n: v.item() for n, v in two.metrics.items()}


def test_nothing_but_dummy_steps_is_a_loss_of_zero():
    batch, _ = random_segments(2)
    loss, gradients = gradients_of(build(2), replace(batch, mask=torch.zeros_like(batch.mask)))
    assert loss.loss == 0
    assert not flat(gradients).any()
    assert all(math.isfinite(value) for value in loss.metrics.values())


def test_a_time_limit_bootstraps_and_a_death_does_not():
    acer = build(3, lstm=LSTM)
    batch, _ = random_segments(3, lstm=LSTM)
    ended = torch.zeros_like(batch.mask)
    ended[3] = True
    only = ended & True
    none = torch.zeros_like(ended)
    truncated = replace(batch, mask=only, truncated=ended, terminated=none)
    as_if_no_end = loss_of(acer, replace(truncated, truncated=none))
    assert torch.equal(loss_of(acer, truncated).loss, as_if_no_end.loss)
    assert not torch.equal(loss_of(acer, replace(truncated, terminated=ended)).loss, as_if_no_end.loss)


def outputs_of(acer, batch):
    return acer._outputs(samples_of(acer, batch))


# values carry no gradient into the policy


def test_q_and_v_leave_the_policy_s_head_alone():
    """The actions u_i are samples of it, but constants."""
    acer = build(4)
    batch, _ = random_segments(4)
    outputs = outputs_of(acer, batch)
    (found,) = torch.autograd.grad(
        outputs.q_taken.sum() + outputs.value.sum(), acer.network.mean.weight, allow_unused=True
    )
    assert found is None
    assert not any(x.requires_grad for x in (outputs.q_other, outputs.other_action, outputs.average_mean))


def test_q_averages_over_the_actions_of_the_noise_given():
    acer = build(4)
    batch, _ = random_segments(4)
    mean_q = torch.stack(
        [
            outputs_of(acer, replace(batch, noise={"actions": batch.noise["actions"].roll(-i, 2)})).q_other
            for i in range(6)
        ]
    ).mean(0)
    # each of the six is once the action asked about, and five times among those averaged over
    torch.testing.assert_close(mean_q, outputs_of(acer, batch).value[:-1].detach())
    shape = tuple(acer.noise(samples_of(acer, batch))["actions"].shape)
    assert shape == (SIZES.length, SIZES.columns, 1 + 5, SIZES.actions)
    noise = build(4, num_samples=9).noise(samples_of(acer, batch))["actions"]
    assert noise.shape[2] == 10
    assert not torch.equal(noise[:, :, 0], noise[:, :, 1])


# actions beyond the box


def test_rho_is_that_of_the_action_as_sampled():
    """The environment gets it clipped to the box, but neither policy's density is that of the clipped action."""
    acer = build(5, std=1.5)
    batch, _ = random_segments(5)
    mean = outputs_of(acer, batch).mean.detach()
    sample = mean + 1.5 * batch.noise["actions"][:, :, 0]
    same = {"mean": mean, "log_std": torch.full_like(mean, 1.5).log(), "sample": sample}
    batch = replace(batch, action=sample.clamp(-1, 1), extras=same)
    assert (batch.action.abs() == 1).double().mean() > 0.2
    assert loss_of(acer, batch).metrics["rho"].item() == pytest.approx(1, abs=1e-9)
    wider = same | {"log_std": same["log_std"] + 0.3}
    assert loss_of(acer, replace(batch, extras=wider)).metrics["rho"].item() != pytest.approx(1, abs=0.1)


def test_q_is_that_of_the_action_as_the_environment_took_it():
    acer = build(5)
    batch, _ = random_segments(5)
    q_taken = outputs_of(acer, batch).q_taken
    beyond = replace(batch, extras=batch.extras | {"sample": batch.extras["sample"] * 3})
    assert torch.equal(outputs_of(acer, beyond).q_taken, q_taken)
    other = replace(batch, action=-batch.action)
    assert not torch.allclose(outputs_of(acer, other).q_taken, q_taken)


# the average network


def test_trust_region_holds_the_policy_to_the_average_network():
    """The smaller δ, the less a step adds to the divergence from the average network."""
    batch, _ = random_segments(6)
    obs = stack_planes(batch.obs, batch.episode_step, 2)[:-1][batch.mask]

    def growth(delta):
        acer = build(6, trust_region_delta=delta, q_cost=0.0)
        _, gradients = gradients_of(acer, batch)

        def divergence():
            with torch.no_grad():
                return (acer.network(obs).mean - acer.average_network(obs).mean).square().sum(-1).mean()

        before = divergence()
        with torch.no_grad():
            for parameter, gradient in zip(acer.network.parameters(), gradients, strict=True):
                parameter -= 1e-4 * gradient
        return divergence() - before

    found = [growth(delta) for delta in (1e-4, 0.1, 1e6)]
    assert found[0] < found[1] < found[2]


def test_average_network_moves_by_its_share_and_comes_back_from_a_file():
    acer, other = build(7, ema_decay=0.75), build(8)
    expected = 0.75 * flat(acer.average_network.parameters()) + 0.25 * flat(acer.network.parameters())
    acer.after_step(1, acer.groups())
    torch.testing.assert_close(flat(acer.average_network.parameters()), expected)
    other.load(unpack(pack(acer.tensors(), {})))
    batch, _ = random_segments(7)
    assert torch.equal(loss_of(other, batch).loss, loss_of(acer, batch).loss)
    assert all(not parameter.requires_grad for parameter in acer.average_network.parameters())


# memory


def alike(seed=0, **settings):
    """A `ContinuousAcer` whose average network is still its network."""
    acer = build(seed, lstm=LSTM, **settings)
    acer.average_network.load_state_dict(acer.network.state_dict())
    return acer


def test_both_networks_begin_in_the_stored_state():
    batch, _ = random_segments(9, lstm=LSTM)
    acer = alike(9)
    loss = loss_of(acer, batch)
    assert loss.metrics["average_policy_kl"].item() == pytest.approx(0, abs=1e-12)
    other = recurrent_state(torch.Generator().manual_seed(9), LSTM)
    expected = outputs_of(acer, batch)
    for name in batch.state:
        changed = replace(batch, state=batch.state | {name: other[name]})
        assert loss_of(acer, changed).metrics["average_policy_kl"].item() == pytest.approx(0, abs=1e-12)
        outputs, is_critic_s = outputs_of(acer, changed), name.startswith("critic_")
        assert torch.allclose(outputs.mean, expected.mean, rtol=1e-3) == is_critic_s
        assert torch.allclose(outputs.value, expected.value, rtol=1e-3) != is_critic_s


@pytest.mark.parametrize("fresh", [[0, 2], []])
def test_burn_in_leaves_out_steps_of_replayed_segments_only(fresh):
    batch, _ = random_segments(10, lstm=LSTM)
    batch.fresh[fresh] = True
    left = batch.mask & (batch.fresh | (torch.arange(SIZES.length) >= BURN_IN).unsqueeze(-1))
    acer, plain = (build(10, lstm=LSTM, burn_in=steps) for steps in (BURN_IN, 0))
    loss, expected = loss_of(acer, batch), loss_of(plain, replace(batch, mask=left))
    for name in expected.metrics:
        assert loss.metrics[name].item() == pytest.approx(expected.metrics[name].item(), rel=1e-9), name


def test_a_segment_is_seen_as_the_actor_saw_it_step_by_step():
    network = build(11, stack=1, lstm=LSTM).network
    batch, _ = random_segments(11, stack=1, lstm=LSTM)
    reset, state = batch.episode_step == 0, batch.state
    mean = network.unroll_policy(batch.obs.flatten(0, 1), reset, state)
    value, features = network.unroll_critic(batch.obs.flatten(0, 1), reset, state)
    for t, obs in enumerate(batch.obs):
        output, state = network.step(obs, reset_state(state, reset[t]))
        torch.testing.assert_close(output.mean, mean[t])
        torch.testing.assert_close(output.value, value[t])
        torch.testing.assert_close(state["critic_hidden"], features[t])


# rewards, parts


def test_rewards_are_scaled_as_they_are_learned():
    acer, plain = build(12, normalise_rewards=True), build(12)
    unroll = made_up_unroll(tiny_run(), reward=np.random.default_rng(0).normal(0, 50, (5, 4)).astype(np.float32))
    acer.observe(unroll, "a")
    batch, _ = random_segments(12)
    scaled = replace(batch, reward=acer.samples.scale(batch.reward))
    assert loss_of(acer, batch).loss.item() == pytest.approx(loss_of(plain, scaled).loss.item(), rel=1e-6)
    assert loss_of(acer, batch).loss.item() != pytest.approx(loss_of(plain, batch).loss.item(), rel=1e-2)
    assert len(acer.statistics()) == 3


@pytest.mark.parametrize("lstm", [0, LSTM])
def test_parts_make_the_whole(lstm):
    acer = build(13, lstm=lstm)
    batch, _ = random_segments(13, lstm=lstm)
    whole, parts = loss_of(acer, batch), merge([acer.loss(part) for part in split(samples_of(acer, batch), 3)])
    torch.testing.assert_close(parts.loss, whole.loss, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(parts.priorities, whole.priorities)
    for name in whole.metrics:
        torch.testing.assert_close(parts.metrics[name], whole.metrics[name], msg=name)


# acting


def act(acer, obs, *, seed=0, greedy=False, exploration=0.3, state=None):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        return acer.agent.act(
            obs,
            state or {},
            greedy=greedy,
            exploration=torch.full((len(obs),), exploration),
            generator=generator,
            updates=1,
        )


@pytest.mark.parametrize("std", [0.3, 1.2])
def test_mu_is_what_actions_are_sampled_from(std):
    acer = build(14, dtype=torch.float32)
    obs = torch.randn(1, 2 * PLANE, generator=torch.Generator().manual_seed(0)).expand(20_000, -1)
    action, extras, _ = act(acer, obs, exploration=std)
    torch.testing.assert_close(extras["mean"], acer.network(obs).mean.detach())
    torch.testing.assert_close(extras["log_std"], torch.full((20_000, SIZES.actions), math.log(std)))
    deviations = (extras["sample"] - extras["mean"]) / std
    torch.testing.assert_close(deviations.mean(0), torch.zeros(SIZES.actions), rtol=0, atol=0.03)
    torch.testing.assert_close(deviations.std(0), torch.ones(SIZES.actions), rtol=0, atol=0.03)
    assert torch.equal(action, extras["sample"].clamp(-1, 1))
    assert (extras["sample"].abs() > 1).any()
    shapes = make_agent(config_of(), spec_of()).extras
    assert {name: tuple(part.shape[1:]) for name, part in extras.items()} == shapes


def test_greedy_takes_the_mean_and_sampling_follows_its_generator():
    acer = build(15, dtype=torch.float32)
    obs = torch.randn(50, 2 * PLANE, generator=torch.Generator().manual_seed(1))
    assert torch.equal(act(acer, obs, greedy=True).action, acer.network(obs).mean.detach().clamp(-1, 1))
    assert torch.equal(act(acer, obs, seed=3).action, act(acer, obs, seed=3).action)
    assert not torch.equal(act(acer, obs, seed=3).action, act(acer, obs, seed=4).action)


def test_an_actor_s_temperature_widens_its_policy():
    config = replace(config_of(std=0.4), actors=ActorsConfig(temperature_low=2.0, temperature_high=2.0))
    assert make_agent(config, spec_of()).exploration(3).tolist() == pytest.approx([0.4] * 3)
    assert make_agent(config, spec_of()).exploration(3, 0).tolist() == pytest.approx([0.8] * 3)


def test_acting_gives_the_state_after_the_observation():
    acer = build(16, lstm=LSTM)
    generator = torch.Generator().manual_seed(0)
    obs, state = (
        torch.randn(5, 2 * PLANE, dtype=torch.float64, generator=generator),
        recurrent_state(generator, LSTM),
    )
    chosen = act(acer, obs, state=state)
    shapes = make_agent(config_of(lstm=LSTM), spec_of()).state
    assert {name: tuple(part.shape[1:]) for name, part in chosen.state.items()} == shapes
    for name, part in acer.network.step(obs, state)[1].items():
        assert torch.equal(chosen.state[name], part)


# extremes


@pytest.mark.parametrize("std", [1e-3, 0.3, 100.0])
@pytest.mark.parametrize("far", [0.0, 50.0, -1e6])
def test_policies_that_are_far_apart_learn_finite_steps(far, std):
    acer = build(17, stack=1, dtype=torch.float32, std=std)
    batch, _ = random_segments(17, stack=1, dtype=torch.float32)
    elsewhere = {name: part + (name != "log_std") * far for name, part in batch.extras.items()}
    batch = replace(batch, reward=1e6 * batch.reward, extras=elsewhere)
    loss, gradients = gradients_of(acer, batch)
    assert {name: value.item() for name, value in loss.metrics.items() if not torch.isfinite(value)} == {}
    assert torch.isfinite(flat(gradients)).all()
    assert flat(gradients).any()
