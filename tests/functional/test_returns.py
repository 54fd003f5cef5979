"""Returns and advantages against their sums over each episode, and by their identities."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from apex_acer.functional import (
    gae,
    n_step_return,
    shape_rewards,
    vtrace,
)
from apex_acer.functional.returns import backward_recursion
from tests.functional import reference, reference_q
from tests.functional import reference_on_policy as slow

# rewards


PRECISIONS = [(torch.float32, 1e-6), (torch.float64, 1e-12)]


def assert_near(actual, expected, tolerance):
    np.testing.assert_allclose(actual.numpy(), np.asarray(expected), rtol=tolerance, atol=tolerance)


def generator(seed):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("clip", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("penalty", [0.0, 0.25])
def test_rewards_are_clipped_and_then_less_the_penalty(penalty, clip, dtype):
    reward = 2 * torch.randn(6, 9, generator=generator(1), dtype=dtype)
    terminated = torch.rand(6, 9, generator=generator(2)) < 0.4
    before = reward.clone()
    shaped = shape_rewards(reward, terminated, clip=clip, penalty=penalty)
    expected = [reference_q.shape_reward(reward[at], terminated[at], clip, penalty) for at in np.ndindex(*reward.shape)]
    assert shaped.dtype == dtype
    assert_near(shaped.flatten(), expected, 1e-6 if dtype == torch.float32 else 1e-12)
    assert torch.equal(reward, before)


# n-step returns


def every_window(length):
    """All combinations of endings and masks of so many steps, `[length, B]` each, and rewards."""
    flags = itertools.product(itertools.product([False, True], repeat=3), repeat=length)
    terminated, truncated, mask = torch.tensor(list(flags)).permute(2, 1, 0).clone()
    reward = torch.randn(mask.shape, generator=generator(length), dtype=torch.float64)
    return {"reward": reward, "terminated": terminated, "truncated": truncated, "mask": mask}


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
@pytest.mark.parametrize("gamma", [0.0, 0.7, 0.99, 1.0])
@pytest.mark.parametrize("length", [1, 2, 3])
def test_n_step_returns_of_every_window_there_is(length, gamma, dtype, tolerance):
    """Any steps of it terminated, truncated, both or masked."""
    windows = every_window(length)
    windows["reward"] = windows["reward"].to(dtype)
    found = n_step_return(**windows, gamma=gamma)
    columns = [[array[:, b].tolist() for array in windows.values()] for b in range(8**length)]
    expected = [reference_q.n_step(*column, gamma) for column in columns]
    assert (found.reward.dtype, found.discount.dtype, found.length.dtype) == (dtype, dtype, torch.int64)
    assert_near(found.reward, [each.reward for each in expected], tolerance)
    assert_near(found.discount, [each.discount for each in expected], tolerance)
    assert found.length.tolist() == [each.length for each in expected]


@pytest.mark.parametrize(("seed", "gamma"), [(0, 0.9), (1, 1.0), (2, 0.0)])
def test_n_step_returns_of_long_windows_in_any_number_of_dimensions(seed, gamma):
    reward, *chances = torch.randn(4, 20, 5, 40, generator=generator(seed), dtype=torch.float64)
    terminated, truncated, masked = (chance > 1.8 for chance in chances)
    flags = {"terminated": terminated, "truncated": truncated, "mask": ~masked}
    found = n_step_return(reward=reward, **flags, gamma=gamma)
    assert len(set(found.length.flatten().tolist())) > 15
    for at in np.ndindex(5, 40):
        column = [array[:, at[0], at[1]].tolist() for array in (reward, *flags.values())]
        expected = reference_q.n_step(*column, gamma)
        assert found.reward[at].item() == pytest.approx(expected.reward, rel=1e-12, abs=1e-12)
        assert found.discount[at].item() == pytest.approx(expected.discount, rel=1e-12)
        assert found.length[at].item() == expected.length


ENDINGS = {  # terminated, truncated, masked steps; length, whether it bootstraps
    "none": ([], [], [], 4, True),
    "terminated": ([1], [], [2], 2, False),
    "truncated": ([], [1], [2], 2, True),
    "both": ([1], [1], [2], 2, False),
    "lost life": ([1], [], [], 2, False),
    "terminated at the last step": ([3], [], [], 4, False),
    "truncated at the last step": ([], [3], [], 4, True),
    "terminated beyond the end": ([2], [], [2, 3], 2, True),
    "dummy first": ([], [], [0], 0, True),
    "dummy in the middle": ([], [], [2], 2, True),
    "cut": ([], [], [1, 2, 3], 1, True),
    "two endings": ([1, 2], [3], [], 2, False),
    "truncated, then terminated": ([2], [0], [1], 1, True),
}


@pytest.mark.parametrize(("terminated", "truncated", "masked", "length", "bootstraps"), ENDINGS.values(), ids=ENDINGS)
def test_every_ending_says_where_the_value_goes_on(terminated, truncated, masked, length, bootstraps):
    flags = {name: torch.zeros(4, 1, dtype=torch.bool) for name in ("terminated", "truncated", "mask")}
    flags["terminated"][terminated], flags["truncated"][truncated] = True, True
    flags["mask"][[step for step in range(4) if step not in masked]] = True
    reward = torch.tensor([[1.0], [10.0], [100.0], [1000.0]], dtype=torch.float64)
    found = n_step_return(reward=reward, **flags, gamma=0.5)
    assert found.length.tolist() == [length]
    assert found.reward.item() == sum(10.0**i * 0.5**i for i in range(length))
    assert found.discount.item() == (0.5**length if bootstraps else 0.0)


def test_what_lies_beyond_the_end_changes_nothing():
    windows = every_window(3)
    found = n_step_return(**windows, gamma=0.9)
    beyond = torch.arange(3).unsqueeze(-1) >= found.length
    other = windows | {"reward": torch.where(beyond, torch.nan, windows["reward"])}
    for one, two in zip(found, n_step_return(**other, gamma=0.9), strict=True):
        assert torch.equal(one, two)


# GAE and V-trace


GAMMA, LAMBDA = 0.9, 0.7
LOOSE = [(torch.float32, 1e-5), (torch.float64, 1e-12)]


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


@pytest.mark.parametrize(("dtype", "tolerance"), LOOSE)
@pytest.mark.parametrize("length", [1, 2, 14])
@pytest.mark.parametrize("seed", range(5))
def test_gae_is_the_sum_over_each_episode(seed, length, dtype, tolerance):
    batch = random_batch(seed, length)
    assert_all_near(computed(gae, batch, dtype), slow.gae(batch, GAMMA, LAMBDA), tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), LOOSE)
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
def test_advantages_carry_no_gradient_and_leave_the_arguments_alone(function):
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
def test_wrong_shapes_of_advantages_are_named(name):
    batch = random_batch(0)
    batch[name] = batch[name][:-1]
    with pytest.raises(ValueError, match="one row less than value" if name == "value" else name):
        computed(vtrace, batch)
    if name != "log_rho":
        with pytest.raises(ValueError, match="one row less than value" if name == "value" else name):
            computed(gae, batch)


# the recursion


def recursion(length):
    rng = np.random.default_rng(length)
    offset, slope = rng.normal(size=(2, length - 1, 3))
    return offset, slope, rng.normal(size=3)


@pytest.mark.parametrize("length", [1, 2, 3, 8, 21])
def test_the_recursion_is_the_loop_over_the_steps(length):
    offset, slope, last = recursion(length)
    expected = [last]
    for t in reversed(range(length - 1)):
        expected.insert(0, offset[t] + slope[t] * expected[0])
    found = backward_recursion(*map(torch.from_numpy, (offset, slope, last)))
    np.testing.assert_allclose(found, np.stack(expected), rtol=1e-12)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_slope_of_zero_passes_on_nothing_that_is_not_finite(value):
    offset, slope, last = recursion(8)
    slope[3] = 0
    clean = backward_recursion(*map(torch.from_numpy, (offset, slope, last)))
    offset[5] = value
    found = backward_recursion(*map(torch.from_numpy, (offset, slope, last)))
    assert torch.equal(found[:4], clean[:4])
    assert not found[4].isfinite().any()
