from __future__ import annotations

import resource
from pathlib import Path

import numpy as np
import pytest
import torch

from apex_acer.actor.rollout import Rollout
from apex_acer.config import EnvironmentConfig, NetworkConfig, RunConfig
from apex_acer.protocol.actions import Discrete
from apex_acer.protocol.specification import EnvironmentSpec
from apex_acer.protocol.unroll import ARRAY_FIELDS, Batch, Layout, Unroll, layout
from apex_acer.replay.sampler import Sampler
from apex_acer.replay.storage import Storage
from tests.conftest import COUNTDOWN, play
from tests.unrolls import Replay, copy_into, insert

K, COUNT, LSTM = 5, 3, 4
PIXELS = EnvironmentSpec((1, 84, 84), "uint8", Discrete(4, 0), 4, False, 4, (84, 84))


@pytest.fixture(scope="module")
def unrolls() -> tuple[Layout, list[Unroll]]:
    """Unrolls of three environments, whose episodes have different lengths, by a policy that remembers."""
    environment = EnvironmentConfig(id=COUNTDOWN, stack=2, kwargs='{"lengths": [3, 4, 9]}')
    environments, policy = play(RunConfig(environment=environment, network=NetworkConfig(lstm=LSTM)), COUNT)
    rollout = Rollout(environments, policy, seed=0)
    state = {"hidden": (LSTM,), "cell": (LSTM,)}
    fits = layout(environments.spec, K, {"log_probs": (environments.spec.num_actions,)}, state)
    return fits, [rollout.unroll(K) for _ in range(6)]


def uniform(fits: Layout, capacity: int, seed: int = 0) -> Replay:
    storage = Storage(fits, capacity)
    return storage, Sampler(storage, seed)


def assert_equal_columns(batch: Batch, columns: list[tuple[Unroll, int, int]]) -> None:
    """`batch` holds exactly these columns: unroll, column, weights version."""
    for name in ARRAY_FIELDS:
        expected = np.stack([getattr(unroll, name)[:, column] for unroll, column, _ in columns], 1)
        found = getattr(batch, name).numpy()
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected, err_msg=name)
    expected = np.stack([unroll.extras["log_probs"][:, column] for unroll, column, _ in columns], 1)
    np.testing.assert_array_equal(batch.extras["log_probs"].numpy(), expected)
    assert batch.state.keys() == {"hidden", "cell"}
    for name, state in batch.state.items():
        assert state.dtype == torch.float32
        np.testing.assert_array_equal(state.numpy(), np.stack([u.state[name][column] for u, column, _ in columns]))
    assert batch.weights_version.tolist() == [version for _, _, version in columns]


def one_column(unroll: Unroll, column: int) -> Unroll:
    arrays = {name: getattr(unroll, name)[:, column : column + 1] for name in ARRAY_FIELDS}
    extras = {name: array[:, column : column + 1] for name, array in unroll.extras.items()}
    return Unroll(**arrays, extras=extras, state={n: a[column : column + 1] for n, a in unroll.state.items()})


def test_the_oldest_segments_are_overwritten(unrolls: tuple[Layout, list[Unroll]]) -> None:
    fits, sent = unrolls
    capacity = 7
    storage = Storage(fits, capacity)
    held: dict[int, tuple[Unroll, int, int]] = {}
    for version, unroll in enumerate(sent):
        slots = storage.insert(unroll, version)
        assert slots.tolist() == [(version * COUNT + column) % capacity for column in range(COUNT)]
        held |= {int(slot): (unroll, column, version) for column, slot in enumerate(slots)}
        assert len(storage) == len(held) == min((version + 1) * COUNT, capacity)
        assert storage.num_steps == sum(int(u.mask[:, column].sum()) for u, column, _ in held.values())
        assert_equal_columns(storage.gather(slots), [held[int(slot)] for slot in slots])
        assert_equal_columns(storage.gather(torch.tensor(sorted(held))), [held[slot] for slot in sorted(held)])
    assert len({unroll.state["hidden"].tobytes() for unroll in sent}) == len(sent)
    ages = sorted(version for _, _, version in held.values())
    assert ages == [3, 4, 4, 4, 5, 5, 5]  # the newest seven columns of all sent


def test_an_actor_may_have_one_environment(unrolls: tuple[Layout, list[Unroll]]) -> None:
    fits, sent = unrolls
    storage = Storage(fits, 3)
    for version in range(4):
        slots = storage.insert(one_column(sent[version], 1), version)
        assert slots.tolist() == [version % 3]
    assert storage.num_steps == sum(int(unroll.mask[:, 1].sum()) for unroll in sent[1:4])
    assert_equal_columns(storage.gather(torch.tensor([0, 1, 2])), [(sent[v], 1, v) for v in (3, 1, 2)])


def test_samples_are_whole_segments_and_reproducible(unrolls: tuple[Layout, list[Unroll]]) -> None:
    fits, sent = unrolls
    batches = []
    for seed in (3, 3, 4):
        storage, sampler = uniform(fits, 30, seed)
        for version, unroll in enumerate(sent):
            storage.insert(unroll, version)
        batches.append(storage.gather(sampler.draw(64)))
    columns = {
        (version, unroll.episode_step[:, column].tobytes()): (unroll, column, version)
        for version, unroll in enumerate(sent)
        for column in range(COUNT)
    }
    assert len(columns) == len(sent) * COUNT
    versions, episode_step = batches[0].weights_version.tolist(), batches[0].episode_step.numpy()
    drawn = [columns[version, episode_step[:, i].tobytes()] for i, version in enumerate(versions)]
    assert_equal_columns(batches[0], drawn)
    assert torch.equal(batches[0].weights_version, batches[1].weights_version)
    assert not torch.equal(batches[0].weights_version, batches[2].weights_version)


def test_sampling_is_uniform(unrolls: tuple[Layout, list[Unroll]]) -> None:
    fits, sent = unrolls
    storage, sampler = uniform(fits, 40, seed=1)
    for version in range(55):  # wrapped around; versions tell the slots apart
        storage.insert(one_column(sent[version % len(sent)], version % COUNT), version)
    draws = torch.cat([storage.gather(sampler.draw(100)).weights_version for _ in range(100)])
    counts = torch.bincount(draws, minlength=55).double()
    assert not counts[:15].any()  # overwritten
    counts = counts[15:]
    chi_squared = float(((counts - 250) ** 2 / 250).sum())
    assert 16 < chi_squared < 73  # 0.1 % on either side, 39 degrees of freedom


def test_only_what_was_inserted_is_sampled(unrolls: tuple[Layout, list[Unroll]]) -> None:
    fits, sent = unrolls
    storage, sampler = uniform(fits, 1000)
    storage.insert(sent[0], 17)
    assert (storage.gather(sampler.draw(200)).weights_version == 17).all()


def test_the_first_are_marked_as_fresh(unrolls: tuple[Layout, list[Unroll]]) -> None:
    storage = Storage(unrolls[0], 10)
    slots = storage.insert(unrolls[1][0], 0)
    assert not storage.gather(slots).fresh.any()
    for num_fresh in range(COUNT + 1):
        fresh = storage.gather(slots, num_fresh).fresh
        assert fresh.tolist() == [True] * num_fresh + [False] * (COUNT - num_fresh)


def test_an_empty_replay_refuses_to_sample(unrolls: tuple[Layout, list[Unroll]]) -> None:
    storage, sampler = uniform(unrolls[0], 10)
    assert (len(storage), storage.num_steps) == (0, 0)
    with pytest.raises(ValueError, match="require a sequence in replay before sampling"):
        sampler.draw(1)


@pytest.mark.parametrize("unrolls_before", [0, 1, 2, 5])
def test_another_goes_on_with_its_arrays(unrolls: tuple[Layout, list[Unroll]], unrolls_before: int) -> None:
    """Before and after the ring is full, which holds two unrolls and a third of one."""
    fits, sent = unrolls
    capacity = 7
    (storage, sampler), (other, other_sampler) = replays = [uniform(fits, capacity, seed) for seed in (1, 2)]
    for version in range(unrolls_before):
        insert(replays[0], sent[version], version)
        sampler.draw(5)
    copy_into(*replays)
    assert (len(other), other.num_steps) == (len(storage), storage.num_steps)
    assert other.num_inserted == 3 * unrolls_before
    for version in range(unrolls_before, 6):
        slots = storage.insert(sent[version], version)
        assert torch.equal(other.insert(sent[version], version), slots)
        drawn = sampler.draw(16)
        assert torch.equal(other_sampler.draw(16), drawn)
        assert_equal_columns(other.gather(slots), [(sent[version], column, version) for column in range(COUNT)])
        for name, array in storage.arrays().items():
            np.testing.assert_array_equal(other.arrays()[name], array, err_msg=name)
        assert other.count_steps(drawn).tolist() == storage.count_steps(drawn).tolist()
        assert other.num_steps == storage.num_steps


def test_arrays_are_views_of_what_is_held(unrolls: tuple[Layout, list[Unroll]]) -> None:
    fits, sent = unrolls
    storage = Storage(fits, 100)
    assert {len(array) for array in storage.arrays().values()} == {0}
    slots = storage.insert(sent[0], 5)
    arrays = storage.arrays()
    state = {"extras.log_probs", "state.hidden", "state.cell"}
    assert arrays.keys() == {*ARRAY_FIELDS, *state, "version", "steps"}
    assert {len(array) for array in arrays.values()} == {COUNT}
    arrays["version"][:] = 6
    assert storage.gather(slots).weights_version.tolist() == [6] * COUNT


def test_a_step_costs_at_most_a_plane_and_a_quarter() -> None:
    storage = Storage(layout(PIXELS, 20, {"log_probs": (4,)}), 50)
    assert storage.num_bytes / (50 * 20) <= 1.25 * 84 * 84


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_memory_grows_while_it_fills_and_is_flat_afterwards() -> None:
    k, columns, capacity = 20, 16, 320
    fits = layout(PIXELS, k, {"log_probs": (4,)})
    zeros = {name: np.zeros(_columns(getattr(fits, name), columns), getattr(fits, name)[1]) for name in ARRAY_FIELDS}
    zeros["obs"] += 1
    unroll = Unroll(**zeros, extras={"log_probs": np.zeros((k, columns, 4), np.float32)}, state={})
    before = resident()
    storage, sampler = uniform(fits, capacity)
    storage.insert(unroll, 0)
    assert resident() - before < storage.num_bytes / 4
    for _ in range(capacity // columns):
        storage.insert(unroll, 0)
        storage.gather(sampler.draw(16))
    full = resident()
    assert full - before > 0.9 * storage.num_bytes
    for _ in range(2 * capacity // columns):
        storage.insert(unroll, 1)
        storage.gather(sampler.draw(16))
    assert resident() - full < 4e6


def _columns(field: tuple[tuple[int, ...], str], columns: int) -> tuple[int, ...]:
    (length, *rest), _ = field
    return (length, columns, *rest)
