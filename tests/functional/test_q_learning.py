import itertools

import numpy as np
import pytest
import torch

from apex_acer.functional import (
    bootstrap_value,
    dueling,
    n_step_return,
    n_step_returns,
    rescale,
    sequence_priority,
    sequence_targets,
    shape_rewards,
    unscale,
)
from tests.functional import reference_q

PRECISIONS = [(torch.float32, 1e-6), (torch.float64, 1e-12)]


def assert_near(actual, expected, tolerance):
    np.testing.assert_allclose(actual.numpy(), np.asarray(expected), rtol=tolerance, atol=tolerance)


def generator(seed):
    return torch.Generator().manual_seed(seed)


# dueling and the bootstrap


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
@pytest.mark.parametrize("actions", [1, 2, 18])
def test_dueling_is_a_value_plus_advantages_around_zero(actions, dtype, tolerance):
    value, advantage = (torch.randn(5, 7, size, generator=generator(actions), dtype=dtype) for size in (1, actions))
    result = dueling(value, advantage)
    expected = [[reference_q.dueling(value[i, j, 0], advantage[i, j]) for j in range(7)] for i in range(5)]
    assert result.dtype == dtype
    assert_near(result, expected, 10 * tolerance)
    assert_near(result.mean(-1, keepdim=True), value, 10 * tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_network_chooses_and_the_other_judges(dtype):
    q_values, judge = torch.randn(2, 6, 8, 4, generator=generator(0), dtype=dtype)
    result, plain = bootstrap_value(q_values, judge), bootstrap_value(judge, judge)
    places = list(np.ndindex(6, 8))
    assert result.dtype == dtype
    assert result.flatten().tolist() == [reference_q.bootstrap(q_values[at], judge[at]) for at in places]
    assert plain.flatten().tolist() == [max(judge[at].tolist()) for at in places]
    assert (result <= plain).all()
    assert (result < plain).any()


def test_of_equal_values_the_first_is_chosen():
    judge = torch.tensor([[3.0, 1.0, 2.0]])
    assert bootstrap_value(torch.tensor([[5.0, 7.0, 7.0]]), judge).tolist() == [1.0]


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


# sequences


@pytest.mark.parametrize("rescaled", [False, True])
@pytest.mark.parametrize(("n_steps", "gamma"), [(1, 0.9), (3, 1.0), (5, 0.99), (12, 0.9)])
def test_the_targets_along_a_sequence(n_steps, gamma, rescaled):
    """Deaths, time limits and dummy steps in any order; each step's window ends with the sequence."""
    length, columns = 12, 60
    reward, *chances = torch.randn(4, length, columns, generator=generator(n_steps), dtype=torch.float64)
    terminated, truncated, masked = (chance > 1.2 for chance in chances)
    value = 3 * torch.randn(length + 1, columns, generator=generator(9), dtype=torch.float64)
    flags = {"terminated": terminated, "truncated": truncated, "mask": ~masked}
    ahead = n_step_returns(reward=reward, **flags, gamma=gamma, n_steps=n_steps)
    found = sequence_targets(ahead, value, rescaled=rescaled)
    assert len(set(ahead.length.flatten().tolist())) == min(n_steps, length) + 1
    for b in range(columns):
        sequence = [array[:, b].tolist() for array in (reward, *flags.values())]
        expected = reference_q.sequence_target(sequence, value[:, b], n_steps, gamma, value_rescaling=rescaled)
        assert_near(found[:, b], expected, 1e-11)


def test_the_priority_of_a_sequence_is_mostly_its_largest_error():
    error = torch.randn(9, 50, generator=generator(3), dtype=torch.float64)
    mask = torch.rand(9, 50, generator=generator(4)) < 0.5
    mask[:, 0], mask[:, 1] = False, True
    expected = [reference_q.sequence_priority(error[:, b], mask[:, b].tolist()) for b in range(50)]
    assert_near(sequence_priority(error, mask), expected, 1e-12)
    assert sequence_priority(error, mask)[0] == 0
    one = torch.tensor([[4.0], [-2.0], [0.0], [9.0]])
    assert sequence_priority(one, torch.tensor([[True], [True], [True], [False]])).tolist() == pytest.approx([3.8])


# the scale of values


def magnitudes(dtype):
    positive = torch.logspace(-6, 6, 400, dtype=dtype)
    return torch.cat([-positive.flip(0), torch.zeros(1, dtype=dtype), positive])


@pytest.mark.parametrize(
    ("dtype", "relative", "absolute"), [(torch.float64, 1e-12, 1e-12), (torch.float32, 1e-5, 1e-6)]
)
def test_rescaling_and_its_inverse(dtype, relative, absolute):
    values = magnitudes(dtype)
    scaled = rescale(values)
    assert scaled.dtype == unscale(scaled).dtype == dtype
    expected = [reference_q.rescale(value) for value in values.tolist()]
    np.testing.assert_allclose(scaled.numpy(), expected, rtol=relative, atol=absolute)
    np.testing.assert_allclose(unscale(scaled).numpy(), values.numpy(), rtol=relative, atol=absolute)
    np.testing.assert_allclose(rescale(unscale(scaled)).numpy(), scaled.numpy(), rtol=relative, atol=absolute)


def test_unscale_finds_what_bisection_finds():
    values = magnitudes(torch.float64)[::25]
    found = [reference_q.unscale(value) for value in values.tolist()]
    np.testing.assert_allclose(unscale(values).numpy(), found, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("function", [rescale, unscale])
def test_both_are_odd_and_monotone(function, dtype):
    values = magnitudes(dtype)
    results = function(values)
    assert torch.equal(function(-values), -results)
    assert function(torch.zeros(1, dtype=dtype)) == 0
    assert (results.diff() >= 0).all()
    assert (function(values[values.abs() > 1e-2]).diff() > 0).all()


# rewards


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
