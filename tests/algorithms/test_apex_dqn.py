from dataclasses import replace

import numpy as np
import pytest
import torch

from apex_acer.algorithms.dqn.apex_dqn import ApexDqn
from apex_acer.algorithms.samples import split
from apex_acer.config import ConfigError, OptimizerConfig, RunConfig
from apex_acer.learner.gradient import merge
from apex_acer.learner.optimizer import Optimizer
from apex_acer.networks.frames import stack_planes
from apex_acer.networks.weights import pack, unpack
from apex_acer.protocol.metrics import METRICS
from tests.algorithms.learning import loss_of, samples_of
from tests.algorithms.segments import CPU, flat, gradients_of, gradients_on
from tests.algorithms.windows import ACTIONS, COLUMNS, STEPS, as_arrays, build_dqn, dqn_config, random_windows, spec
from tests.conftest import config_error
from tests.functional import reference_q

NAMES = ("gamma", "double", "value_rescaling", "reward_clip", "terminal_penalty")


def expected_of(algorithm, batch, stack):
    """The reference's loss on what the networks say, and its gradients carried through the network."""
    obs = stack_planes(batch.obs, batch.episode_step, stack)
    q_values, target = (
        network(obs.flatten(0, 1)).q_values for network in (algorithm.network, algorithm.target_network)
    )
    q_values, target = (x.view(*obs.shape[:2], ACTIONS) for x in (q_values, target))
    settings = {name: getattr(algorithm.settings, name) for name in NAMES}
    heard = q_values.detach().numpy()
    loss = reference_q.loss(as_arrays(batch), heard[0], heard, target.detach().numpy(), **settings)
    taken = q_values[0].gather(-1, batch.action[0].unsqueeze(-1)).squeeze(-1)
    gradients = torch.autograd.grad(taken, list(algorithm.network.parameters()), torch.from_numpy(loss.d_q_taken))
    return loss, gradients


# the loss

SETTINGS = {
    "as published": {},
    "plain": {"double": False, "dueling": False},
    "single, dueling": {"double": False},
    "double, not dueling": {"dueling": False},
    "rescaled": {"value_rescaling": True},
    "rescaled and plain": {"value_rescaling": True, "double": False, "dueling": False},
    "clipped": {"reward_clip": 1.0, "terminal_penalty": 0.5},
    "penalty": {"terminal_penalty": 2.0, "value_rescaling": True},
    "one step": {"n_steps": 1},
    "no discount": {"gamma": 1.0},
    "myopic": {"gamma": 0.0},
}


@pytest.mark.parametrize("stack", [1, 2])
@pytest.mark.parametrize("changes", SETTINGS.values(), ids=SETTINGS)
def test_loss_priorities_and_parameter_gradients_match_the_paper(changes, stack):
    algorithm = build_dqn(1, stack, **changes)
    batch = random_windows(1, stack, changes.get("n_steps", STEPS))
    expected, expected_gradients = expected_of(algorithm, batch, stack)
    output, gradients = gradients_of(algorithm, batch)
    assert output.loss.item() == pytest.approx(expected.total, rel=1e-12)
    assert output.num_samples == batch.mask[0].sum()
    np.testing.assert_allclose(output.priorities.numpy(), expected.td_error, rtol=1e-12, atol=1e-12)
    for one, two in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-12)
    errors = expected.td_error[batch.mask[0].numpy()]
    assert errors.min() < 1 < errors.max()  # both sides of Huber's


def test_metrics_are_the_means_over_what_is_learned_from():
    algorithm, batch = build_dqn(2), random_windows(2)
    expected, _ = expected_of(algorithm, batch, 1)
    metrics, mask = loss_of(algorithm, batch).metrics, batch.mask[0].numpy()
    assert metrics.keys() <= METRICS.keys()
    assert not any(value.requires_grad for value in metrics.values())
    means = {"td_error": expected.td_error, "q_taken": expected.q_taken, "q_target": expected.target}
    means["importance"] = batch.importance.numpy()
    means["value"] = algorithm.network(batch.obs[0]).q_values.max(-1).values.detach().numpy()
    for name, values in means.items():
        assert metrics[name].item() == pytest.approx(values[mask].mean(), rel=1e-12), name
    assert metrics["loss"].item() == metrics["q_loss"].item() == pytest.approx(expected.total, rel=1e-12)


@pytest.mark.parametrize("num_parts", [2, 3, COLUMNS])
def test_parts_of_a_batch_make_the_whole(num_parts):
    algorithm, batch = build_dqn(3, stack=2), random_windows(3, stack=2)
    whole, gradients = gradients_of(algorithm, batch)
    parts = [gradients_on(algorithm, part) for part in split(samples_of(algorithm, batch), num_parts)]
    assert len(parts) == num_parts
    assert any(output.num_samples == 0 for output, _ in parts) == (num_parts == COLUMNS)  # a part may have none
    merged = merge([output for output, _ in parts])
    for one, two in zip((merged.loss, merged.priorities), (whole.loss, whole.priorities), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-12)
    assert merged.metrics.keys() == whole.metrics.keys()
    for name, value in whole.metrics.items():
        torch.testing.assert_close(merged.metrics[name], value, rtol=1e-12, atol=1e-12)
    summed = sum(flat(part) * output.num_samples for output, part in parts) / merged.num_samples
    torch.testing.assert_close(summed, flat(gradients), rtol=1e-10, atol=1e-12)


def test_importance_weighs_the_loss_but_not_the_priorities():
    algorithm, batch = build_dqn(4), random_windows(4)
    loss, gradients = gradients_of(algorithm, batch)
    double, doubled = gradients_of(algorithm, replace(batch, importance=2 * batch.importance))
    torch.testing.assert_close(2 * loss.loss, double.loss)
    torch.testing.assert_close(2 * flat(gradients), flat(doubled))
    assert torch.equal(loss.priorities, double.priorities)


def test_nothing_but_dummy_steps_is_a_loss_of_zero():
    algorithm, batch = build_dqn(5), random_windows(5)
    output, gradients = gradients_of(algorithm, replace(batch, mask=torch.zeros_like(batch.mask)))
    assert (output.loss, output.num_samples) == (0, 0)
    assert not flat(gradients).any()
    assert not output.priorities.any()
    assert all(value.isfinite() for value in output.metrics.values())


def test_float32_agrees_with_float64():
    double, single = build_dqn(6), build_dqn(6)
    for network in (single.network, single.target_network):
        network.float()
    batch = random_windows(6)
    names = ("obs", "reward", "importance")
    small = replace(batch, **{name: getattr(batch, name).float() for name in names})
    (wide, two), (narrow, one) = gradients_of(double, batch), gradients_of(single, small)
    assert narrow.loss.dtype == narrow.priorities.dtype == torch.float32
    torch.testing.assert_close(narrow.loss.double(), wide.loss, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(flat(one).double(), flat(two), rtol=1e-3, atol=1e-4)


# the target network


@pytest.mark.parametrize("every", [1, 3])
def test_the_target_moves_every_so_many_updates_and_not_between(every):
    algorithm = ApexDqn.make(dqn_config(target_every=every), spec(), CPU)
    assert torch.equal(flat(algorithm.network.parameters()), flat(algorithm.target_network.parameters()))
    for update in range(1, 3 * every + 1):
        before = flat(algorithm.target_network.parameters())
        with torch.no_grad():
            for parameter in algorithm.network.parameters():
                parameter += 1
        algorithm.after_step(update, algorithm.groups())
        newest, target = (flat(network.parameters()) for network in (algorithm.network, algorithm.target_network))
        assert torch.equal(target, newest if update % every == 0 else before)


def test_the_target_is_not_trained_and_copies_buffers():
    algorithm, batch = build_dqn(7, target_every=2), random_windows(7)
    for network, value in ((algorithm.network, 3.0), (algorithm.target_network, 0.0)):
        network.register_buffer("scale", torch.tensor(value))
    optimizer = Optimizer(RunConfig(optimizer=OptimizerConfig(learning_rate=0.01)), algorithm.groups())
    scales = []
    for update in range(1, 4):
        before = flat(algorithm.target_network.parameters())
        loss = loss_of(algorithm, batch).loss
        optimizer.backward(loss)
        optimizer.step(loss.detach(), 0, optimizer.due(0))
        assert torch.equal(flat(algorithm.target_network.parameters()), before)
        algorithm.after_step(update, algorithm.groups())
        scales.append(algorithm.target_network.scale.item())
    assert scales == [0, 3, 3]
    assert all(parameter.grad is None for parameter in algorithm.target_network.parameters())


# files


def test_both_networks_come_back_from_a_file():
    saved, other = build_dqn(8), build_dqn(9)
    other.load(unpack(pack(saved.tensors(), {})))
    assert other.tensors().keys() == saved.tensors().keys()
    for name, tensor in saved.tensors().items():
        assert torch.equal(other.tensors()[name], tensor), name
    assert not torch.equal(flat(saved.network.parameters()), flat(saved.target_network.parameters()))


def test_tensors_that_lack_a_module_are_refused_by_name():
    policy = {name: tensor for name, tensor in build_dqn(10).tensors().items() if name.startswith("network.")}
    message = config_error(lambda: build_dqn(11).load(policy))
    assert message == "weights: tensor target.advantage.0.bias is missing; expected [16]"


def test_tensors_of_another_network_are_refused_by_name():
    with pytest.raises(ConfigError, match=r"network\.advantage\.0\.bias is \[8\], this network has \[16\]"):
        build_dqn(12).load(build_dqn(12, hidden=8).tensors())
    with pytest.raises(ConfigError, match=r"network\.advantage\.0\.bias is \[16\], this network has \[5\]"):
        build_dqn(12, dueling=False).load(build_dqn(12).tensors())


def test_an_lstm_is_refused():
    message = config_error(lambda: dqn_config(lstm=4))
    assert message == "network.lstm: 4 is not allowed; apex_dqn learns from single steps; give 0"
