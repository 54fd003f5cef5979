import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from apex_acer.algorithms import make_agent
from apex_acer.algorithms.acer.acer import Acer
from apex_acer.algorithms.acer.settings import AcerConfig
from apex_acer.config import ConfigError, LearnerConfig, OptimizerConfig, RunConfig
from apex_acer.learner.optimizer import Optimizer
from apex_acer.networks.frames import stack_planes
from apex_acer.networks.weights import pack, unpack
from apex_acer.protocol.actions import Discrete
from apex_acer.protocol.specification import EnvironmentSpec
from tests.algorithms.learning import loss_of
from tests.algorithms.segments import CPU, PLANE, SIZES, build, flat, gradients_of, random_segments
from tests.conftest import config_error
from tests.functional import reference


def expected_of(acer, batch, arrays, stack=2):
    """The reference's loss on what the networks say, and its gradients carried through the network."""
    settings = acer.settings
    obs = stack_planes(batch.obs, batch.episode_step, stack)
    output = acer.network(obs.flatten(0, 1))
    shape = (SIZES.length + 1, SIZES.columns, -1)
    pi_logits, q_values = (x.view(shape) for x in output)
    average_logits = acer.average_network(obs[:-1].flatten(0, 1)).pi_logits.view(SIZES.length, SIZES.columns, -1)
    given = arrays | {
        "pi_logits": pi_logits.detach().numpy(),
        "q_values": q_values.detach().numpy(),
        "average_logits": average_logits.detach().numpy(),
    }
    names = ("gamma", "truncation_threshold", "trust_region_delta", "entropy_cost", "q_cost")
    loss = reference.acer_loss(given, **{name: getattr(settings, name) for name in names})
    gradients = torch.autograd.grad(
        [pi_logits, q_values],
        list(acer.network.parameters()),
        [torch.from_numpy(loss.d_pi_logits), torch.from_numpy(loss.d_q_values)],
    )
    return loss, gradients


@pytest.mark.parametrize("delta", [0.02, 1.0])
@pytest.mark.parametrize("seed", range(2))
def test_loss_and_parameter_gradients_match_the_paper(seed, delta):
    acer = build(seed, trust_region_delta=delta, truncation_threshold=1.5)
    batch, arrays = random_segments(seed)
    arrays["importance"][:] = np.random.default_rng(seed).uniform(0.2, 1.0, SIZES.columns)
    batch = replace(batch, importance=torch.from_numpy(arrays["importance"]))
    expected, expected_gradients = expected_of(acer, batch, arrays)
    loss, gradients = gradients_of(acer, batch)
    assert loss.loss.item() == pytest.approx(expected.total, rel=1e-10)
    for one, two in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-12)
    mean_error = expected.td_error.sum(0) / arrays["mask"].sum(0)
    np.testing.assert_allclose(loss.priorities.numpy(), mean_error, rtol=1e-10)
    assert loss.metrics["trust_region_share"].item() == pytest.approx(expected.bound_share)
    assert expected.bound_share > 0


def test_trust_region_holds_the_policy_to_the_average_network():
    """The smaller δ, the less a step adds to the divergence from the average network."""
    batch, _ = random_segments(1)
    obs = stack_planes(batch.obs, batch.episode_step, 2)[:-1][batch.mask]

    def divergence_after_a_step(delta):
        acer = build(1, trust_region_delta=delta, q_cost=0.0)
        _, gradients = gradients_of(acer, batch)

        def divergence():
            with torch.no_grad():
                log_pi = acer.network(obs).pi_logits.log_softmax(-1)
                log_average = acer.average_network(obs).pi_logits.log_softmax(-1)
            return (log_average.exp() * (log_average - log_pi)).sum(-1).mean()

        before = divergence()
        with torch.no_grad():
            for parameter, gradient in zip(acer.network.parameters(), gradients, strict=True):
                parameter -= 1e-3 * gradient
        return divergence() - before

    growth = [divergence_after_a_step(delta) for delta in (1e-4, 0.1, 1e6)]
    assert growth[0] < growth[1] < growth[2]


def test_moving_the_average_network_moves_the_gradient():
    acer = build(2, trust_region_delta=0.02)
    batch, _ = random_segments(2)
    _, before = gradients_of(acer, batch)
    torch.nn.init.normal_(acer.average_network.pi_logits.bias)
    _, after = gradients_of(acer, batch)
    assert not torch.allclose(flat(before), flat(after))


@pytest.mark.parametrize("delta", [0.02, 1e9])
def test_entropy_cost_has_gradient(delta):
    batch, _ = random_segments(3)
    _, without = gradients_of(build(3, entropy_cost=0.0, trust_region_delta=delta), batch)
    _, with_entropy = gradients_of(build(3, entropy_cost=1.0, trust_region_delta=delta), batch)
    assert not torch.allclose(flat(without), flat(with_entropy))


# endings


def one_episode(ending):
    """Eight steps; `ending` is on the third, and the fourth is a dummy where the environment was reset."""
    batch, _ = random_segments(4, stack=1)
    terminated, truncated, mask = (torch.zeros_like(batch.mask) for _ in range(3))
    mask |= True
    if ending == "truncated":
        truncated[2] = True
    else:
        terminated[2] = True
    mask[3] = ending == "life lost"
    return replace(batch, terminated=terminated, truncated=truncated, mask=mask)


@pytest.mark.parametrize(
    ("ending", "learns_from_the_final_observation"), [("truncated", True), ("terminated", False), ("life lost", False)]
)
def test_a_time_limit_bootstraps_and_a_death_does_not(ending, learns_from_the_final_observation):
    acer = build(4, stack=1)
    batch = one_episode(ending)
    ending_step = replace(batch, mask=batch.mask & (torch.arange(SIZES.length) == 2).unsqueeze(-1))
    errors = loss_of(acer, ending_step).priorities
    output = acer.network(batch.obs.flatten(0, 1))
    q_values = output.q_values.view(9, SIZES.columns, -1)
    value = (output.pi_logits.softmax(-1) * output.q_values).sum(-1).view(9, -1)[3]
    q_taken = q_values[2].gather(-1, batch.action[2].unsqueeze(-1)).squeeze(-1)
    target = batch.reward[2] + (0.9 * value if learns_from_the_final_observation else 0)
    torch.testing.assert_close(errors, (target - q_taken).abs().detach())


@pytest.mark.parametrize("ending", ["truncated", "terminated", "life lost"])
def test_nothing_passes_from_one_episode_to_the_one_before(ending):
    acer = build(5, stack=1)
    batch = one_episode(ending)
    first_episode = batch.mask & (torch.arange(SIZES.length) < 3).unsqueeze(-1)

    def gradient(first_changed):
        reward = batch.reward.clone()
        reward[first_changed:] += 100
        return flat(gradients_of(acer, replace(batch, mask=first_episode, reward=reward))[1])

    unchanged = gradient(SIZES.length)
    assert torch.equal(gradient(3), unchanged)
    assert not torch.equal(gradient(2), unchanged)


def test_rewards_are_clipped_for_learning_only():
    batch, arrays = random_segments(6)
    batch = replace(batch, reward=10 * batch.reward)
    clipped = np.clip(10 * arrays["reward"], -1, 1)
    acer = build(6, reward_clip=1.0)
    expected, _ = expected_of(acer, batch, arrays | {"reward": clipped})
    assert loss_of(acer, batch).loss.item() == pytest.approx(expected.total)
    expected, _ = expected_of(acer, batch, arrays | {"reward": 10 * arrays["reward"]})
    assert loss_of(build(6), batch).loss.item() == pytest.approx(expected.total)


def test_float32_agrees_with_float64():
    (single, _), (double, _) = random_segments(7, dtype=torch.float32), random_segments(7)
    double = replace(double, obs=single.obs.double(), episode_step=single.episode_step)
    wide, narrow = build(7), build(7)
    for network in (narrow.network, narrow.average_network):
        network.float()
    one, two = gradients_of(narrow, single), gradients_of(wide, double)
    assert one[0].loss.dtype == torch.float32
    torch.testing.assert_close(one[0].loss.double(), two[0].loss, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(flat(one[1]).double(), flat(two[1]), rtol=1e-4, atol=1e-5)


def test_bfloat16_points_the_same_way_and_keeps_its_parameters_in_float32():
    """Where it computes in bfloat16 at all."""
    batch, _ = random_segments(7, dtype=torch.float32)
    gradients = []
    for precision in ("float32", "bfloat16"):
        acer = build(7, dtype=torch.float32, learner=LearnerConfig(precision=precision))
        output, gradient = gradients_of(acer, batch)
        assert output.loss.dtype == torch.float32
        gradients.append(flat(gradient))
    one, two = gradients
    assert two.dtype == torch.float32
    assert not torch.equal(one, two)
    assert torch.cosine_similarity(one, two, dim=0) > 0.995


# the average network


def test_average_network_begins_at_the_network_and_moves_by_its_share():
    torch.manual_seed(0)
    spec = EnvironmentSpec((PLANE,), "float32", Discrete(SIZES.actions, 0), 1, False, 1, (PLANE,))
    acer = Acer.make(RunConfig(algorithm=AcerConfig(ema_decay=0.75)), spec, CPU)
    assert torch.equal(flat(acer.network.parameters()), flat(acer.average_network.parameters()))
    expected = flat(acer.average_network.parameters())
    for _ in range(3):
        with torch.no_grad():
            for parameter in acer.network.parameters():
                parameter += torch.randn_like(parameter)
        acer.after_step(0, acer.groups())
        expected = 0.75 * expected + 0.25 * flat(acer.network.parameters())
        torch.testing.assert_close(flat(acer.average_network.parameters()), expected)


def test_average_network_copies_buffers():
    acer = build(8)
    for network, value in ((acer.network, 3.0), (acer.average_network, 0.0)):
        network.register_buffer("scale", torch.tensor(value))
    acer.after_step(0, acer.groups())
    assert acer.average_network.scale == 3.0
    acer.network.scale.fill_(4.0)
    assert acer.average_network.scale == 3.0


def test_average_network_follows_training_and_is_not_trained():
    acer = build(9)
    config = RunConfig(optimizer=OptimizerConfig(learning_rate=0.01))
    optimizer = Optimizer(config, acer.groups())
    first = flat(acer.average_network.parameters())
    batch, _ = random_segments(9)
    for _ in range(5):
        before = flat(acer.average_network.parameters())
        loss = loss_of(acer, batch).loss
        optimizer.backward(loss)
        optimizer.step(loss.detach(), 0, optimizer.due(0))
        assert torch.equal(flat(acer.average_network.parameters()), before)
        acer.after_step(0, acer.groups())
        assert not torch.equal(flat(acer.average_network.parameters()), before)
    moved = flat(acer.average_network.parameters())
    newest = flat(acer.network.parameters())
    assert (moved - newest).norm() < (first - newest).norm()
    assert all(parameter.grad is None for parameter in acer.average_network.parameters())


def test_both_networks_come_back_from_a_file():
    saved, other = build(10), build(11)
    other.load(unpack(pack(saved.tensors(), {})))
    assert torch.equal(flat(other.network.parameters()), flat(saved.network.parameters()))
    assert torch.equal(flat(other.average_network.parameters()), flat(saved.average_network.parameters()))
    assert not torch.equal(flat(other.network.parameters()), flat(other.average_network.parameters()))
    batch, _ = random_segments(10)
    assert torch.equal(loss_of(other, batch).loss, loss_of(saved, batch).loss)


def test_tensors_that_lack_a_module_are_refused_by_name():
    policy = {name: tensor for name, tensor in build(12).tensors().items() if name.startswith("network.")}
    message = config_error(lambda: build(13).load(policy))
    assert message == "weights: tensor average.pi_logits.bias is missing; expected [3]"


def test_tensors_of_another_network_are_refused_by_name():
    with pytest.raises(ConfigError, match=r"network\.pi_logits\.weight is \[3, 8\], this network has \[3, 16\]"):
        build(14).load(build(14, hidden=8).tensors())


# acting


def act(acer, obs, *, seed=0, greedy=False, exploration=1.0):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        return acer.agent.act(
            obs, {}, greedy=greedy, exploration=torch.full((len(obs),), exploration), generator=generator, updates=1
        )


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_mu_is_what_actions_are_sampled_from(temperature):
    acer = build(15, dtype=torch.float32)
    obs = torch.randn(1, 2 * PLANE, generator=torch.Generator().manual_seed(0)).expand(20_000, -1)
    action, extras, _ = act(acer, obs, exploration=temperature)
    mu = extras["log_probs"][0].exp()
    logits = acer.network(obs[:1]).pi_logits[0].detach()
    torch.testing.assert_close(mu, (logits / temperature).softmax(-1))
    frequency = action.bincount(minlength=SIZES.actions) / len(action)
    torch.testing.assert_close(frequency, mu, rtol=0, atol=4 * math.sqrt(0.25 / len(action)))
    assert (action.dtype, extras["log_probs"].dtype) == (torch.int64, torch.float32)
    assert (
        tuple(extras["log_probs"].shape[1:])
        == make_agent(
            RunConfig(), EnvironmentSpec((PLANE,), "float32", Discrete(SIZES.actions, 0), 2, False, 1, (PLANE,))
        ).extras["log_probs"]
    )


def test_greedy_takes_the_likeliest_and_sampling_follows_its_generator():
    acer = build(16, dtype=torch.float32)
    obs = torch.randn(50, 2 * PLANE, generator=torch.Generator().manual_seed(1))
    assert torch.equal(act(acer, obs, greedy=True).action, acer.network(obs).pi_logits.argmax(-1))
    assert torch.equal(act(acer, obs, seed=3).action, act(acer, obs, seed=3).action)
    assert not torch.equal(act(acer, obs, seed=3).action, act(acer, obs, seed=4).action)
