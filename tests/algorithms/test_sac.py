from dataclasses import replace

import pytest
import torch

from apex_acer.algorithms.sac.sac import Sac
from apex_acer.algorithms.sac.settings import SacConfig
from apex_acer.algorithms.samples import split
from apex_acer.config import NetworkConfig
from apex_acer.learner.gradient import merge
from apex_acer.networks.weights import pack, unpack
from apex_acer.protocol.metrics import METRICS
from tests.algorithms.continuous import DIM, build, config, gradients, sac_losses, spec, windows
from tests.algorithms.learning import loss_of, samples_of
from tests.algorithms.segments import CPU, PLANE, flat
from tests.algorithms.windows import COLUMNS, STEPS
from tests.conftest import config_error

SETTINGS = {
    "as published": {},
    "one step": {"n_steps": 1},
    "one critic": {"num_critics": 1},
    "three critics": {"num_critics": 3},
    "shaped rewards": {"reward_clip": 1.0, "terminal_penalty": 0.5},
    "cool": {"initial_temperature": 0.1},
}


@pytest.mark.parametrize("stack", [1, 2])
@pytest.mark.parametrize("changes", SETTINGS.values(), ids=SETTINGS)
def test_each_group_gets_the_gradient_of_its_own_loss(changes, stack):
    algorithm = build(Sac, 1, stack, **changes)
    batch = windows(algorithm, 1, stack, changes.get("n_steps", STEPS))
    expected = sac_losses(algorithm, batch, stack)
    output = loss_of(algorithm, batch)
    torch.testing.assert_close(output.loss, expected.critics + expected.network + expected.temperature)
    torch.testing.assert_close(output.priorities, expected.td_error)
    assert output.num_samples == batch.mask[0].sum()
    found = gradients(output.loss, algorithm)
    for name in ("network", "critics", "temperature"):
        torch.testing.assert_close(found[name], gradients(getattr(expected, name), algorithm)[name], msg=name)
        assert found[name].abs().max() > 1e-3


def test_metrics_are_means_over_what_is_learned_from():
    algorithm = build(Sac, 2)
    batch = windows(algorithm, 2)
    expected, metrics = sac_losses(algorithm, batch), loss_of(algorithm, batch).metrics
    mask = batch.mask[0]
    assert metrics.keys() <= METRICS.keys()
    assert not any(value.requires_grad for value in metrics.values())
    torch.testing.assert_close(metrics["q_loss"], expected.critics.detach())
    torch.testing.assert_close(metrics["policy_loss"], expected.network.detach())
    torch.testing.assert_close(metrics["td_error"], expected.td_error[mask].mean())
    torch.testing.assert_close(metrics["importance"], batch.importance[mask].mean())
    torch.testing.assert_close(metrics["temperature"], algorithm.temperature["log"].exp().detach())
    q_taken = algorithm.critics(batch.obs[0], batch.action[0]).mean(0)[mask].mean()
    torch.testing.assert_close(metrics["q_taken"], q_taken.detach())


@pytest.mark.parametrize("num_parts", [2, COLUMNS])
def test_parts_of_a_batch_make_the_whole(num_parts):
    algorithm = build(Sac, 3, stack=2)
    batch = windows(algorithm, 3, stack=2)
    whole, parts = (
        loss_of(algorithm, batch),
        [algorithm.loss(part) for part in split(samples_of(algorithm, batch), num_parts)],
    )
    merged = merge(parts)
    torch.testing.assert_close(merged.loss, whole.loss)
    torch.testing.assert_close(merged.priorities, whole.priorities)
    for name, value in whole.metrics.items():
        torch.testing.assert_close(merged.metrics[name], value, msg=name)
    summed = sum(gradients(part.loss, algorithm)["network"] * part.num_samples for part in parts)
    torch.testing.assert_close(summed / merged.num_samples, gradients(whole.loss, algorithm)["network"])


def test_nothing_but_dummy_steps_is_a_loss_of_zero():
    algorithm = build(Sac, 4)
    batch = windows(algorithm, 4)
    output = loss_of(algorithm, replace(batch, mask=torch.zeros_like(batch.mask)))
    assert (output.loss, output.num_samples) == (0, 0)
    assert not any(gradient.any() for gradient in gradients(output.loss, algorithm).values())
    assert not output.priorities.any()


def test_the_temperature_rises_until_the_entropy_is_minus_one_nat_per_dimension():
    algorithm = build(Sac, 5)
    batch = windows(algorithm, 5)
    with torch.no_grad():
        algorithm.network.head.weight.zero_()
        for log_std, falls in ((-3.0, True), (0.0, False)):
            algorithm.network.head.bias.copy_(torch.tensor([0.0] * DIM + [log_std] * DIM))
            with torch.enable_grad():
                output = loss_of(algorithm, batch)
                gradient = gradients(output.loss, algorithm)["temperature"]
            assert (output.metrics["entropy"] < -DIM) == falls
            assert (gradient < 0) == falls  # the logarithm rises against its gradient


def test_target_critics_are_averages_of_the_critics():
    algorithm = build(Sac, 6, ema_decay=0.9)
    slow, fast = (flat(m.parameters()).clone() for m in (algorithm.target_critics, algorithm.critics))
    algorithm.after_step(1, algorithm.groups())
    torch.testing.assert_close(flat(algorithm.target_critics.parameters()), 0.9 * slow + 0.1 * fast)
    assert torch.equal(flat(algorithm.critics.parameters()), fast)
    fresh = Sac.make(config(Sac), spec(), CPU)
    assert torch.equal(flat(fresh.critics.parameters()), flat(fresh.target_critics.parameters()))
    assert not any(parameter.requires_grad for parameter in fresh.target_critics.parameters())


def test_all_modules_come_back_from_a_file():
    saved, other = build(Sac, 7), build(Sac, 8)
    other.load(unpack(pack(saved.tensors(), {})))
    for name, tensor in saved.tensors().items():
        assert torch.equal(other.tensors()[name], tensor), name


# how it acts


def act(algorithm, obs, seed=0, greedy=False, updates=1):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        return algorithm.agent.act(
            obs, {}, greedy=greedy, exploration=torch.ones(len(obs)), generator=generator, updates=updates
        )


def test_actions_are_uniform_before_the_first_update_and_the_policy_s_afterwards():
    algorithm = build(Sac, 9, dtype=torch.float32)
    obs = torch.randn(1, PLANE).expand(20_000, PLANE)
    before = act(algorithm, obs, updates=0).action
    counts = torch.histc(before, 8, -1, 1) / before.numel()
    torch.testing.assert_close(counts, torch.full((8,), 1 / 8), rtol=0, atol=0.01)
    output = algorithm.network(obs)
    after = torch.atanh(act(algorithm, obs, 1).action.double().clamp(-1 + 1e-7, 1 - 1e-7))
    inside = output.log_std[0].exp() < 1  # so that tanh does not cut much off
    assert inside.any()
    torch.testing.assert_close(after.mean(0)[inside], output.mean[0].double()[inside], rtol=0, atol=0.05)
    torch.testing.assert_close(after.std(0)[inside], output.log_std[0].exp().double()[inside], rtol=0.05, atol=0)
    torch.testing.assert_close(act(algorithm, obs[:1], greedy=True).action, output.mean[:1].detach().tanh())


# settings

WRONG = {
    "num_critics": (0, "give 1 or more"),
    "ema_decay": (1.5, "give 0 to 1"),
    "initial_temperature": (0.0, "give a number above 0"),
    "n_steps": (9, "give at most algorithm.unroll_length (8)"),
    "replay_ratio": (0.0, "give a number above 0"),
}


@pytest.mark.parametrize(("name", "value", "allowed"), [(name, *rest) for name, rest in WRONG.items()], ids=WRONG)
def test_settings_that_make_no_sense_are_refused(name, value, allowed):
    message = config_error(lambda: SacConfig(**{"unroll_length": 8, name: value}))
    assert message.startswith(f"algorithm.{name}: {value!r} is not allowed; {allowed}")


def test_an_lstm_is_refused():
    message = config_error(lambda: config(Sac, network=NetworkConfig(lstm=4)))
    assert message == "network.lstm: 4 is not allowed; sac learns from single steps; give 0"
