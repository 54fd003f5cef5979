import numpy as np
import pytest
import torch

from apex_acer.functional import retrace
from tests.functional import reference

GAMMA = 0.9


def given(seed, dtype):
    """Random arguments of `retrace`, and what the reference makes of them."""
    rng = np.random.default_rng(seed)
    batch = reference.random_batch(seed)
    shape = batch["action"].shape
    q_taken, trace = rng.normal(size=shape), rng.uniform(size=shape)
    value = rng.normal(size=(shape[0] + 1, shape[1]))
    expected = reference.retrace(q_taken, value, batch["reward"], batch["terminated"], batch["truncated"], trace, GAMMA)
    arguments = {
        "q_taken": q_taken,
        "value": value[:-1],
        "bootstrap_value": value[-1],
        "reward": batch["reward"],
        "discount": GAMMA * (1 - batch["terminated"]),
        "trace": np.where(batch["mask"], trace, 0),
    }
    return {name: torch.as_tensor(array, dtype=dtype) for name, array in arguments.items()}, expected, batch


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@pytest.mark.parametrize("seed", range(5))
def test_matches_the_sum_over_each_episode(seed, dtype, tolerance):
    arguments, expected, batch = given(seed, dtype)
    assert batch["terminated"].any()
    assert batch["truncated"].any()
    assert not batch["mask"].all()
    q_ret = retrace(**arguments)
    assert q_ret.dtype == dtype
    np.testing.assert_allclose(q_ret.numpy(), expected, rtol=tolerance, atol=tolerance * np.abs(expected).max())


def test_on_policy_with_whole_traces_is_the_n_step_return():
    rng = np.random.default_rng(0)
    length, columns = 6, 3
    reward, value, last = (
        rng.normal(size=(length, columns)),
        rng.normal(size=(length, columns)),
        rng.normal(size=columns),
    )
    expected = np.zeros_like(reward)
    for t in range(length):
        for s in range(t, length):
            expected[t] += GAMMA ** (s - t) * reward[s]
        expected[t] += GAMMA ** (length - t) * last
    q_ret = retrace(
        q_taken=torch.from_numpy(value),  # Q of every action is V
        value=torch.from_numpy(value),
        bootstrap_value=torch.from_numpy(last),
        reward=torch.from_numpy(reward),
        discount=torch.full((length, columns), GAMMA, dtype=torch.float64),
        trace=torch.ones(length, columns, dtype=torch.float64),
    )
    np.testing.assert_allclose(q_ret.numpy(), expected, rtol=1e-12)


def test_no_trace_is_one_step_targets():
    arguments, _, _ = given(1, torch.float64)
    arguments["trace"] = torch.zeros_like(arguments["trace"])
    after = torch.cat([arguments["value"][1:], arguments["bootstrap_value"][None]])
    assert torch.equal(retrace(**arguments), arguments["reward"] + arguments["discount"] * after)


def test_shares_no_storage_and_leaves_its_arguments_alone():
    arguments, _, _ = given(2, torch.float64)
    before = {name: tensor.clone() for name, tensor in arguments.items()}
    q_ret = retrace(**arguments)
    for name, tensor in arguments.items():
        assert torch.equal(tensor, before[name]), name
        assert tensor.untyped_storage().data_ptr() != q_ret.untyped_storage().data_ptr(), name
    q_ret.fill_(0)
    assert torch.equal(arguments["q_taken"], before["q_taken"])


def test_carries_no_gradient():
    arguments, _, _ = given(3, torch.float64)
    for name in ("q_taken", "value"):
        arguments[name].requires_grad_()
    assert not retrace(**arguments).requires_grad


def test_nan_on_a_dummy_step_stays_there():
    arguments, expected, batch = given(4, torch.float64)
    dummy = torch.from_numpy(~batch["mask"])
    for name in ("q_taken", "reward"):
        arguments[name][dummy] = torch.nan
    q_ret = retrace(**arguments).numpy()
    np.testing.assert_allclose(q_ret[batch["mask"]], expected[batch["mask"]], rtol=1e-10)


@pytest.mark.parametrize("name", ["value", "reward", "discount", "trace", "bootstrap_value"])
def test_wrong_shapes_are_named(name):
    arguments, _, _ = given(0, torch.float64)
    arguments[name] = arguments[name][..., :-1]
    with pytest.raises(ValueError, match=name):
        retrace(**arguments)
