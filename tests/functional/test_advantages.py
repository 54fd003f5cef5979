"""GAE and V-trace against their sums over each episode, and by their identities."""

import numpy as np
import pytest
import torch

from apex_acer.functional import gae, vtrace
from tests.functional import reference
from tests.functional import reference_on_policy as slow

GAMMA, LAMBDA = 0.9, 0.7
PRECISIONS = [(torch.float32, 1e-5), (torch.float64, 1e-12)]


def random_batch(seed, length=14, columns=9):
    rng = np.random.default_rng(seed)
    names = ("reward", "terminated", "truncated", "mask")
    episodes = reference.random_batch(seed, reference.Sizes(length, columns))
    batch = {name: episodes[name] for name in names}
    batch["value"] = rng.normal(size=(length + 1, columns))
    return batch | {"log_rho": 2 * rng.normal(size=(length, columns))}


def computed(function, batch, dtype=torch.float64, **settings):
    """What `function` makes of a batch, as arrays."""
    tensors = {
        name: torch.from_numpy(array) for name, array in batch.items() if name != "log_rho" or function is vtrace
    }
    tensors = {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
    found = function(**tensors, **{"gamma": GAMMA, "gae_lambda": LAMBDA} | settings)
    assert {tensor.dtype for tensor in found} == {dtype}
    return found.advantage.numpy(), found.value_target.numpy()


def assert_all_near(found, expected, tolerance=1e-12):
    for actual, desired in zip(found, expected, strict=True):
        np.testing.assert_allclose(actual, desired, rtol=tolerance, atol=tolerance * np.abs(desired).max())


EACH = pytest.mark.parametrize("function", [gae, vtrace])


def test_batches_have_every_kind_of_ending():
    batch = random_batch(0)
    lost = batch["terminated"][:-1] & batch["mask"][1:]
    timed_out = batch["truncated"][:-1] & ~batch["mask"][1:]
    assert lost.any()
    assert timed_out.any()
    assert not batch["mask"][0].all()
    assert any(not random_batch(seed)["mask"][-1].all() for seed in range(5))


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
@pytest.mark.parametrize("length", [1, 2, 14])
@pytest.mark.parametrize("seed", range(5))
def test_gae_is_the_sum_over_each_episode(seed, length, dtype, tolerance):
    batch = random_batch(seed, length)
    assert_all_near(computed(gae, batch, dtype), slow.gae(batch, GAMMA, LAMBDA), tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
@pytest.mark.parametrize(("rho_bar", "c_bar"), [(1.0, 1.0), (2.0, 0.8), (0.5, 1.5)])
@pytest.mark.parametrize(("length", "seed"), [(1, 0), (14, 1), (14, 2), (14, 3)])
def test_vtrace_is_the_sum_over_each_episode(seed, length, rho_bar, c_bar, dtype, tolerance):
    batch = random_batch(seed, length)
    found = computed(vtrace, batch, dtype, rho_bar=rho_bar, c_bar=c_bar)
    assert_all_near(found, slow.vtrace(batch, GAMMA, LAMBDA, rho_bar, c_bar), tolerance)


def test_an_end_without_a_dummy_step_after_it_ends_the_sum():
    batch = random_batch(4) | {"mask": np.ones((14, 9), bool)}
    assert_all_near(computed(gae, batch), slow.gae(batch, GAMMA, LAMBDA))
    assert_all_near(computed(vtrace, batch), slow.vtrace(batch, GAMMA, LAMBDA, 1.0, 1.0))


# what crosses an episode's end

EPISODE, DUMMY = 4, 4  # steps 0 to 3, the reset, then two steps of the next episode


def two_episodes(ending):
    batch = random_batch(5, length=7)
    for name in ("terminated", "truncated"):
        batch[name][:] = False
    batch["mask"][:] = True
    batch["mask"][DUMMY] = False
    batch[ending][EPISODE - 1] = True
    return batch


@EACH
@pytest.mark.parametrize("ending", ["terminated", "truncated"])
def test_each_episode_is_as_if_it_were_alone(function, ending):
    """A time limit is bootstrapped from the final observation, which is the dummy step's, and a death is not."""
    batch = two_episodes(ending)
    found = computed(function, batch)
    first = {name: array[: EPISODE + (name == "value")] for name, array in batch.items()}
    second = {name: array[DUMMY + 1 :] for name, array in batch.items()}
    assert_all_near([x[:EPISODE] for x in found], computed(function, first))
    assert_all_near([x[DUMMY + 1 :] for x in found], computed(function, second))
    final = batch["value"][DUMMY]
    np.testing.assert_array_equal(found[0][DUMMY], np.zeros_like(final))
    np.testing.assert_array_equal(found[1][DUMMY], final)
    last = batch["reward"][EPISODE - 1] + (GAMMA * final if ending == "truncated" else 0) - batch["value"][EPISODE - 1]
    weight = np.minimum(1, np.exp(batch["log_rho"][EPISODE - 1])) if function is vtrace else 1
    np.testing.assert_allclose(found[0][EPISODE - 1], weight * last)


@EACH
def test_nothing_is_passed_on_from_a_dummy_step(function):
    """Whatever its reward and its ratio are, also at both ends of a segment."""
    batch = random_batch(6)
    batch["mask"][0, 0] = batch["mask"][-1, 1] = False
    expected = computed(function, batch)
    for name in ("reward", "log_rho"):
        batch[name] = np.where(batch["mask"], batch[name], np.nan)
    for found, desired in zip(computed(function, batch), expected, strict=True):
        np.testing.assert_array_equal(found, desired)
    assert not expected[0][~batch["mask"]].any()


@EACH
def test_a_lost_life_ends_the_return_and_not_the_segment(function):
    batch = random_batch(7)
    for name in ("terminated", "truncated"):
        batch[name][:] = False
    batch["mask"][:], batch["terminated"][5] = True, True
    advantage, _ = computed(function, batch)
    later = batch | {"reward": batch["reward"].copy()}
    later["reward"][6:] += 1
    changed, _ = computed(function, later)
    np.testing.assert_array_equal(changed[:6], advantage[:6])
    assert (changed[6:] != advantage[6:]).all()


# identities


def test_whole_traces_are_returns_and_none_are_one_step_errors():
    batch = two_episodes("terminated")
    _, returns = computed(gae, batch, gae_lambda=1.0)
    powers = GAMMA ** np.arange(EPISODE)
    np.testing.assert_allclose(returns[0], powers @ batch["reward"][:EPISODE])
    one_step, _ = computed(gae, batch, gae_lambda=0.0)
    np.testing.assert_allclose(one_step[0], batch["reward"][0] + GAMMA * batch["value"][1] - batch["value"][0])


def test_on_policy_the_targets_of_vtrace_are_those_of_gae():
    batch = random_batch(8)
    batch["log_rho"][:] = 0
    _, expected = computed(gae, batch)
    np.testing.assert_allclose(computed(vtrace, batch)[1], expected, rtol=1e-12)
    whole = [computed(function, batch, gae_lambda=1.0) for function in (gae, vtrace)]
    assert_all_near(*whole)  # with lambda = 1 the advantages are the same, too


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bars", [{}, {"rho_bar": 2.0, "c_bar": 0.5}])
@pytest.mark.parametrize("size", [90.0, 1e4, np.inf])
def test_extreme_ratios_are_as_the_bounds(size, bars, dtype):
    batch = random_batch(9)
    impossible, certain = (
        computed(vtrace, batch | {"log_rho": x + 0 * batch["log_rho"]}, dtype, **bars) for x in (-size, size)
    )
    np.testing.assert_allclose(impossible[0], 0, atol=1e-30)
    np.testing.assert_allclose(impossible[1], batch["value"][:-1].astype(impossible[1].dtype))
    expected = slow.vtrace(
        batch | {"log_rho": 5 + 0 * batch["log_rho"]}, GAMMA, LAMBDA, *({"rho_bar": 1.0, "c_bar": 1.0} | bars).values()
    )
    assert_all_near(certain, expected, 1e-5)


# what both promise


@EACH
def test_carries_no_gradient_and_leaves_its_arguments_alone(function):
    batch = random_batch(10)
    before = {name: array.copy() for name, array in batch.items()}
    found = computed(function, batch)  # numpy() refuses what has a gradient
    for array in found:
        array[:] = 0
    for name, array in batch.items():
        np.testing.assert_array_equal(array, before[name], name)
    names = ("reward", "terminated", "truncated", "mask")
    tensors = {name: torch.from_numpy(batch[name]) for name in names}
    tensors["value"] = torch.from_numpy(batch["value"]).requires_grad_()
    if function is vtrace:
        tensors["log_rho"] = torch.from_numpy(batch["log_rho"]).requires_grad_()
    assert not any(tensor.requires_grad for tensor in function(**tensors, gamma=GAMMA, gae_lambda=LAMBDA))


@EACH
def test_reads_no_number_from_its_device(function):
    """Tensors on this device have no content to read."""
    rows = {name: torch.zeros(5, 3, dtype=torch.bool, device="meta") for name in ("terminated", "truncated", "mask")}
    floats = ("reward", "log_rho") if function is vtrace else ("reward",)
    rows |= {name: torch.zeros(5, 3, device="meta") for name in floats}
    found = function(**rows, value=torch.zeros(6, 3, device="meta"), gamma=GAMMA, gae_lambda=LAMBDA)
    assert [(tensor.device.type, tensor.shape) for tensor in found] == 2 * [("meta", (5, 3))]


@pytest.mark.parametrize("name", ["value", "reward", "terminated", "truncated", "mask", "log_rho"])
def test_wrong_shapes_are_named(name):
    batch = random_batch(0)
    batch[name] = batch[name][:-1]
    with pytest.raises(ValueError, match="one row less than value" if name == "value" else name):
        computed(vtrace, batch)
    if name != "log_rho":
        with pytest.raises(ValueError, match="one row less than value" if name == "value" else name):
            computed(gae, batch)
