"""Numbers at the edges of float32 stay numbers, through real updates."""

import dataclasses

import numpy as np
import pytest
import torch

from apex_acer.algorithms.acer.acer import Acer
from apex_acer.algorithms.acer.settings import AcerConfig
from apex_acer.config import NetworkConfig, OptimizerConfig, RunConfig
from apex_acer.learner.optimizer import Optimizer
from apex_acer.protocol.actions import Discrete
from apex_acer.protocol.specification import EnvironmentSpec
from tests.algorithms.learning import loss_of
from tests.algorithms.segments import CPU, PLANE, SIZES, flat, random_segments
from tests.runs import made_up_unroll, tiny_run

UPDATES = 4
LOGITS = {
    "uniform": [0.0, 0.0, 0.0],
    "one impossible": [-200.0, 200.0, 200.0],
    "one certain": [200.0, -200.0, -200.0],
}


def build(num_actions=SIZES.actions, optimizer="rmsprop", **settings):
    """An `Acer` for float32 segments without stacks, and its optimizer."""
    torch.manual_seed(0)
    config = RunConfig(
        network=NetworkConfig(hidden_sizes=(16,)),
        algorithm=AcerConfig(**{"unroll_length": SIZES.length} | settings),
        optimizer=OptimizerConfig(name=optimizer, learning_rate=1e-3),
    )
    acer = Acer.make(config, EnvironmentSpec((PLANE,), "float32", Discrete(num_actions, 0), 1, False, 1, (PLANE,)), CPU)
    return acer, Optimizer(config, acer.groups())


def set_policy(network, logits):
    torch.nn.init.zeros_(network.pi_logits.weight)
    network.pi_logits.bias.data.copy_(torch.tensor(logits))


def acted(logits, seed=0):
    """Segments whose actions a policy of these logits took."""
    batch, _ = random_segments(seed, stack=1, dtype=torch.float32)
    log_mu = torch.tensor(logits).log_softmax(-1).expand(*batch.action.shape, -1)
    action = torch.distributions.Categorical(logits=log_mu).sample()
    return dataclasses.replace(batch, action=action, extras={"log_probs": log_mu})


def assert_learns(acer, optimizer, batch):
    """Every update is applied, moves the network, and leaves only finite numbers."""
    for _ in range(UPDATES):
        before = flat(acer.network.parameters())
        loss = loss_of(acer, batch)
        optimizer.backward(loss.loss)
        norm, taken = optimizer.step(loss.loss.detach(), 0, optimizer.due(0))
        assert taken
        assert torch.isfinite(norm)
        acer.after_step(0, acer.groups())
        assert {name: value.item() for name, value in loss.metrics.items() if not torch.isfinite(value)} == {}
        assert torch.isfinite(loss.priorities).all()
        after = flat(acer.network.parameters())
        assert torch.isfinite(after).all()
        assert not torch.equal(after, before)
    assert torch.isfinite(flat(acer.average_network.parameters())).all()


@pytest.mark.parametrize("mu", LOGITS)
@pytest.mark.parametrize("average", LOGITS)
@pytest.mark.parametrize("pi", LOGITS)
def test_probabilities_that_underflow(pi, average, mu):
    torch.manual_seed(1)
    acer, optimizer = build()
    set_policy(acer.network, LOGITS[pi])
    set_policy(acer.average_network, LOGITS[average])
    batch = acted(LOGITS[mu])
    assert_learns(acer, optimizer, batch)


def test_a_dummy_step_with_an_action_that_nobody_would_take():
    acer, optimizer = build()
    set_policy(acer.network, LOGITS["one impossible"])
    batch = acted(LOGITS["one impossible"])
    batch.action[3], batch.mask[3] = 0, False
    assert_learns(acer, optimizer, batch)


@pytest.mark.parametrize("optimizer", ["rmsprop", "adam"])
@pytest.mark.parametrize("size", [1e6, -1e6])
@pytest.mark.parametrize("normalise", [False, True])
def test_huge_rewards(size, normalise, optimizer):
    acer, optimizer = build(optimizer=optimizer, normalise_rewards=normalise)
    batch = acted(LOGITS["uniform"])
    reward = size * torch.from_numpy(np.random.default_rng(0).random(batch.reward.shape)).float()
    for seed in range(3):
        acer.observe(made_up_unroll(tiny_run(), seed, reward=np.full((5, 4), size, np.float32)), "a")
    batch = dataclasses.replace(batch, reward=reward)
    assert_learns(acer, optimizer, batch)
    assert loss_of(acer, batch).metrics["q_loss"] < 1e3 or not normalise


@pytest.mark.parametrize("normalise", [False, True])
def test_rewards_of_both_signs_and_sizes(normalise):
    acer, optimizer = build(normalise_rewards=normalise)
    batch = acted(LOGITS["uniform"])
    exponents = np.random.default_rng(0).uniform(-6, 6, batch.reward.shape)
    reward = torch.from_numpy(10**exponents).float() * batch.reward.sign()
    acer.observe(made_up_unroll(tiny_run(), reward=reward[:5, :4].numpy()), "a")
    assert_learns(acer, optimizer, dataclasses.replace(batch, reward=reward))


def test_rewards_that_never_come():
    acer, optimizer = build(normalise_rewards=True)
    nothing = made_up_unroll(tiny_run(), reward=np.zeros((5, 4), np.float32))
    acer.observe(nothing, "a")
    batch = acted(LOGITS["uniform"])
    assert_learns(acer, optimizer, dataclasses.replace(batch, reward=torch.zeros_like(batch.reward)))


def test_a_single_action():
    acer, optimizer = build(num_actions=1)
    batch, _ = random_segments(0, stack=1, dtype=torch.float32)
    zeros = torch.zeros(*batch.action.shape, 1)
    batch = dataclasses.replace(batch, action=torch.zeros_like(batch.action), extras={"log_probs": zeros})
    assert_learns(acer, optimizer, batch)
    metrics = loss_of(acer, batch).metrics
    assert [metrics[name].item() for name in ("entropy", "average_policy_kl", "rho")] == [0, 0, 1]
