"""Learning with an LSTM: stored states, episodes within a segment, burn-in."""

import dataclasses

import pytest
import torch

from apex_acer.algorithms import make_agent
from apex_acer.config import NetworkConfig, RunConfig
from apex_acer.networks.memory import reset_state
from apex_acer.networks.weights import pack, unpack
from tests.algorithms.learning import loss_of
from tests.algorithms.segments import PLANE, SIZES, build, flat, gradients_of, random_segments, random_state
from tests.runs import CARTPOLE

LSTM, BURN_IN = 6, 3


def alike(seed=0, **settings):
    """An `Acer` whose average network is still its network."""
    acer = build(seed, lstm=LSTM, **settings)
    acer.average_network.load_state_dict(acer.network.state_dict())
    return acer


def later(batch, state):
    """`batch` without its first `BURN_IN` steps, which led to `state`; its stack is 1."""
    fields = ("obs", "episode_step", "action", "reward", "terminated", "truncated", "mask")
    extras = {name: part[BURN_IN:] for name, part in batch.extras.items()}
    cut = {name: getattr(batch, name)[BURN_IN:] for name in fields}
    return dataclasses.replace(batch, **cut, extras=extras, state=state)


def state_after_burn_in(network, batch):
    """One step after the other; the batch's stack is 1."""
    state = batch.state
    with torch.no_grad():
        for obs, step in zip(batch.obs[:BURN_IN], batch.episode_step[:BURN_IN], strict=True):
            _, state = network.step(obs, reset_state(state, step == 0))
    return state


def test_burn_in_only_warms_up_the_state():
    """A replayed segment is learned from as if it began after its burn-in, in the state the newest network is then in."""
    batch, _ = random_segments(0, stack=1, lstm=LSTM)
    acer = alike(stack=1, burn_in=BURN_IN)
    rest = later(batch, state_after_burn_in(acer.network, batch))
    loss, gradients = gradients_of(acer, batch)
    expected, expected_gradients = gradients_of(alike(stack=1), rest)
    assert loss.loss.item() == pytest.approx(expected.loss.item(), rel=1e-9)
    for name in ("q_loss", "entropy", "value", "rho"):
        assert loss.metrics[name].item() == pytest.approx(expected.metrics[name].item(), rel=1e-9), name
    torch.testing.assert_close(flat(gradients), flat(expected_gradients), rtol=1e-6, atol=1e-9)
    assert loss.loss.item() != pytest.approx(gradients_of(alike(stack=1), later(batch, batch.state))[0].loss.item())


def log_probs_after_burn_in(network, batch):
    state = state_after_burn_in(network, batch)
    rest = later(batch, state)
    with torch.no_grad():
        inputs = network.prepare(rest.obs[:-1].flatten(0, 1))
        return network.unroll(inputs, rest.episode_step[:-1] == 0, state).pi_logits.log_softmax(-1)


def test_the_average_network_warms_up_a_state_of_its_own():
    batch, _ = random_segments(1, stack=1, lstm=LSTM)
    acer = build(1, stack=1, lstm=LSTM, burn_in=BURN_IN)
    log_pi, log_average = (log_probs_after_burn_in(net, batch) for net in (acer.network, acer.average_network))
    kl = (log_average.exp() * (log_average - log_pi)).sum(-1)[batch.mask[BURN_IN:]].mean()
    assert loss_of(acer, batch).metrics["average_policy_kl"].item() == pytest.approx(kl.item(), rel=1e-9)


@pytest.mark.parametrize("fresh", [[0, 2], range(5), []])
def test_burn_in_leaves_out_steps_of_replayed_segments_only(fresh):
    batch, _ = random_segments(2, lstm=LSTM)
    batch.fresh[list(fresh)] = True
    left = batch.mask & (batch.fresh | (torch.arange(SIZES.length) >= BURN_IN).unsqueeze(-1))
    acer, plain = (build(2, lstm=LSTM, burn_in=steps) for steps in (BURN_IN, 0))
    loss, expected = loss_of(acer, batch), loss_of(plain, dataclasses.replace(batch, mask=left))
    for name in expected.metrics:
        assert loss.metrics[name].item() == pytest.approx(expected.metrics[name].item(), rel=1e-9), name
    if len(fresh) < SIZES.columns:
        assert loss.metrics["q_loss"] != loss_of(plain, batch).metrics["q_loss"]


def test_fresh_sequences_are_learned_from_whole_whatever_the_burn_in():
    batch, _ = random_segments(8, lstm=LSTM)
    batch.fresh[:] = True
    (loss, gradients), (expected, expected_gradients) = (
        gradients_of(build(8, lstm=LSTM, burn_in=steps), batch) for steps in (BURN_IN, 0)
    )
    assert torch.equal(loss.loss, expected.loss)
    assert torch.equal(flat(gradients), flat(expected_gradients))


def test_a_segment_s_priority_is_the_mean_error_of_the_steps_it_learns():
    batch, _ = random_segments(9, stack=1, lstm=LSTM)
    batch.mask[:] = True
    acer = alike(9, stack=1, burn_in=BURN_IN)
    rest = later(batch, state_after_burn_in(acer.network, batch))
    expected = loss_of(alike(9, stack=1), rest).priorities
    torch.testing.assert_close(loss_of(acer, batch).priorities, expected, rtol=1e-9, atol=0)


def test_both_networks_begin_in_the_stored_state():
    batch, _ = random_segments(3, lstm=LSTM)
    acer = alike(3)
    loss = loss_of(acer, batch)
    assert loss.metrics["average_policy_kl"].item() == pytest.approx(0, abs=1e-12)
    other = random_state(torch.Generator().manual_seed(9), LSTM)
    for name in ("hidden", "cell"):
        changed = loss_of(acer, dataclasses.replace(batch, state=batch.state | {name: other[name]}))
        assert changed.metrics["average_policy_kl"].item() == pytest.approx(0, abs=1e-12)
        assert changed.metrics["value"].item() != pytest.approx(loss.metrics["value"].item(), rel=1e-3)


def test_a_state_before_an_episode_s_start_is_forgotten():
    batch, _ = random_segments(4, stack=1, lstm=LSTM)
    other = random_state(torch.Generator().manual_seed(9), LSTM)
    acer = build(4, stack=1, lstm=LSTM)

    def value(first_step, state):
        episode_step = torch.arange(SIZES.length + 1).unsqueeze(-1).expand(-1, SIZES.columns) + first_step
        return loss_of(acer, dataclasses.replace(batch, episode_step=episode_step, state=state)).metrics["value"].item()

    assert value(0, batch.state) == value(0, other)
    assert value(1, batch.state) != pytest.approx(value(1, other), rel=1e-3)


def test_memory_comes_back_from_a_file():
    saved, other = build(5, lstm=LSTM), build(6, lstm=LSTM)
    other.load(unpack(pack(saved.tensors(), {})))
    batch, _ = random_segments(5, lstm=LSTM)
    assert torch.equal(loss_of(other, batch).loss, loss_of(saved, batch).loss)


def test_acting_gives_the_state_after_the_observation():
    acer, generator = build(7, lstm=LSTM), torch.Generator().manual_seed(0)
    obs = torch.randn(SIZES.columns, 2 * PLANE, dtype=torch.float64, generator=generator)
    state = random_state(generator, LSTM)
    action = acer.agent.act(
        obs, state, greedy=True, exploration=torch.full((len(obs),), 2.0), generator=generator, updates=1
    )
    output, after = acer.network.step(obs, state)
    torch.testing.assert_close(action.extras["log_probs"], (output.pi_logits.float() / 2).log_softmax(-1))
    shapes = make_agent(RunConfig(network=NetworkConfig(lstm=LSTM)), CARTPOLE).state
    assert {name: tuple(value.shape[1:]) for name, value in action.state.items()} == shapes
    for name, value in after.items():
        assert torch.equal(action.state[name], value)
        assert not torch.equal(value, state[name])
