from dataclasses import replace

import pytest
import torch

from apex_acer.algorithms import make_agent
from apex_acer.algorithms.ddpg.ddpg import Ddpg
from apex_acer.algorithms.ddpg.settings import DdpgConfig
from apex_acer.algorithms.samples import split
from apex_acer.config import NetworkConfig, RunConfig
from apex_acer.learner.gradient import Gradient, merge
from apex_acer.learner.optimizer import Optimizer
from apex_acer.networks.weights import pack, unpack
from apex_acer.protocol.metrics import METRICS
from tests.algorithms.continuous import NETWORK, build, config, ddpg_losses, gradients, spec, windows
from tests.algorithms.learning import loss_of, samples_of
from tests.algorithms.segments import CPU, flat
from tests.algorithms.windows import COLUMNS, STEPS
from tests.conftest import config_error

TD3 = {"num_critics": 2, "policy_every": 2, "target_noise": 0.4, "target_noise_clip": 0.3}
SETTINGS = {
    "ddpg": {},
    "td3": TD3,
    "ape-x dpg": {"sampling": "prioritized"},
    "td3, prioritized": {**TD3, "sampling": "prioritized"},
    "one step": {"n_steps": 1},
    "shaped rewards": {"reward_clip": 1.0, "terminal_penalty": 0.5},
    "normalised": {"network": replace(NETWORK, normalise=True)},
}


@pytest.mark.parametrize("stack", [1, 2])
@pytest.mark.parametrize("changes", SETTINGS.values(), ids=SETTINGS)
def test_policy_and_critics_get_the_gradient_of_their_own_loss(changes, stack):
    algorithm = build(Ddpg, 1, stack, **changes)
    batch = windows(algorithm, 1, stack, changes.get("n_steps", STEPS))
    expected = ddpg_losses(algorithm, batch, stack)
    output = loss_of(algorithm, batch)
    torch.testing.assert_close(output.loss, expected.critics + expected.network)
    torch.testing.assert_close(output.priorities, expected.td_error)
    assert output.num_samples == batch.mask[0].sum()
    found = gradients(output.loss, algorithm)
    assert found.keys() == {"network", "critics"}
    for name in found:
        torch.testing.assert_close(found[name], gradients(getattr(expected, name), algorithm)[name], msg=name)
        assert found[name].abs().max() > 1e-3


def due(algorithm, updates):
    """The groups that take a step after so many updates."""
    return Optimizer(RunConfig(), algorithm.groups()).due(updates)


def test_a_policy_that_is_not_due_costs_nothing(monkeypatch):
    algorithm = build(Ddpg, 2, **TD3)
    batch = windows(algorithm, 2)
    expected = ddpg_losses(algorithm, batch)
    monkeypatch.setattr(algorithm.network, "output", None)
    output = Gradient(algorithm, Optimizer(RunConfig(), algorithm.groups()), 1)._loss(
        samples_of(algorithm, batch), due(algorithm, 5)
    )
    torch.testing.assert_close(output.loss, expected.critics)
    assert not gradients(output.loss, algorithm)["network"].any()
    assert not {"policy_loss", "value"} & output.metrics.keys()
    assert {name: group.every for name, group in algorithm.groups().items()} == {"network": 2, "critics": 1}


def test_targets_are_averages_that_move_with_the_policy():
    algorithm = build(Ddpg, 3, ema_decay=0.9, **TD3)
    pairs = ((algorithm.target_network, algorithm.network), (algorithm.target_critics, algorithm.critics))
    for updates in range(1, 5):
        before = [[flat(module.parameters()) for module in pair] for pair in pairs]
        expected = [0.9 * slow + 0.1 * fast if updates % 2 else slow for slow, fast in before]
        algorithm.after_step(updates, due(algorithm, updates - 1))
        for (slow, _), wanted in zip(pairs, expected, strict=True):
            torch.testing.assert_close(flat(slow.parameters()), wanted)


@pytest.mark.parametrize("sampling", ["uniform", "prioritized"])
def test_critics_travel_if_actors_compute_priorities(sampling):
    given = config(Ddpg, sampling=sampling, num_critics=2)
    algorithm, travelling = Ddpg.make(given, spec(), CPU), make_agent(given, spec()).network
    sent = {name for name in algorithm.tensors() if name.startswith("network.")}
    assert sent == {f"network.{name}" for name in travelling.state_dict()}
    assert any("critics" in name for name in sent) == (sampling == "prioritized")
    ids = [id(parameter) for group in algorithm.groups().values() for parameter in group.parameters]
    assert len(set(ids)) == len(ids) == 6 + 6
    before = flat(algorithm.target_critics.parameters())
    with torch.no_grad():
        algorithm.critics.weights[0] += 1
    algorithm.after_step(1, algorithm.groups())
    moved = flat(algorithm.target_critics.parameters()) - before
    torch.testing.assert_close(moved.max(), torch.tensor(1 - algorithm.settings.ema_decay), rtol=1e-3, atol=0)


def test_metrics_are_means_over_what_is_learned_from():
    algorithm = build(Ddpg, 4, **TD3)
    batch = windows(algorithm, 4)
    expected, metrics, mask = ddpg_losses(algorithm, batch), loss_of(algorithm, batch).metrics, batch.mask[0]
    assert metrics.keys() <= METRICS.keys()
    assert not any(value.requires_grad for value in metrics.values())
    torch.testing.assert_close(metrics["q_loss"], expected.critics.detach())
    torch.testing.assert_close(metrics["policy_loss"], expected.network.detach())
    torch.testing.assert_close(metrics["value"], -expected.network.detach())
    torch.testing.assert_close(metrics["td_error"], expected.td_error[mask].mean())


@pytest.mark.parametrize("num_parts", [2, COLUMNS])
def test_parts_of_a_batch_make_the_whole(num_parts):
    algorithm = build(Ddpg, 5, **TD3)
    batch = windows(algorithm, 5)
    whole, parts = (
        loss_of(algorithm, batch),
        [algorithm.loss(part) for part in split(samples_of(algorithm, batch), num_parts)],
    )
    merged = merge(parts)
    torch.testing.assert_close(merged.loss, whole.loss)
    torch.testing.assert_close(merged.priorities, whole.priorities)
    for name, value in whole.metrics.items():
        torch.testing.assert_close(merged.metrics[name], value, msg=name)


def test_nothing_but_dummy_steps_is_a_loss_of_zero():
    algorithm = build(Ddpg, 6, **TD3)
    batch = windows(algorithm, 6)
    output = loss_of(algorithm, replace(batch, mask=torch.zeros_like(batch.mask)))
    assert (output.loss, output.num_samples) == (0, 0)
    assert not any(gradient.any() for gradient in gradients(output.loss, algorithm).values())
    assert not output.priorities.any()


@pytest.mark.parametrize("sampling", ["uniform", "prioritized"])
def test_all_modules_come_back_from_a_file(sampling):
    saved, other = build(Ddpg, 7, sampling=sampling), build(Ddpg, 8, sampling=sampling)
    other.load(unpack(pack(saved.tensors(), {})))
    for mine, theirs in ((saved.critics, other.critics), (saved.target_critics, other.target_critics)):
        assert torch.equal(flat(mine.parameters()), flat(theirs.parameters()))
    for name, tensor in saved.tensors().items():
        assert torch.equal(other.tensors()[name], tensor), name


# settings

WRONG = {
    "num_critics": (0, "give 1 or more"),
    "policy_every": (0, "give 1 or more"),
    "target_noise": (-0.1, "give 0 or more"),
    "target_noise_clip": (-0.1, "give 0 or more"),
    "ema_decay": (1.5, "give 0 to 1"),
    "noise": ("pink", "give gaussian or ornstein_uhlenbeck"),
    "noise_std": (-0.1, "give 0 or more"),
    "noise_alpha": (-1.0, "give 0 or more"),
    "noise_theta": (1.5, "give 0 to 1"),
    "n_steps": (9, "give at most algorithm.unroll_length (8)"),
}


@pytest.mark.parametrize(("name", "value", "allowed"), [(name, *rest) for name, rest in WRONG.items()], ids=WRONG)
def test_settings_that_make_no_sense_are_refused(name, value, allowed):
    message = config_error(lambda: DdpgConfig(**{"unroll_length": 8, name: value}))
    assert message.startswith(f"algorithm.{name}: {value!r} is not allowed; {allowed}")


def test_an_lstm_is_refused():
    message = config_error(lambda: config(Ddpg, network=NetworkConfig(lstm=4)))
    assert message == "network.lstm: 4 is not allowed; ddpg learns from single steps; give 0"
