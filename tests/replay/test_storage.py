"""The ring of sequences and uniform draws from it: whole sequences, and the windows that begin at each of their steps."""

from __future__ import annotations

import dataclasses
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from apex_acer.protocol.actions import Discrete
from apex_acer.protocol.specification import EnvironmentSpec
from apex_acer.protocol.unroll import ARRAY_FIELDS, Batch, Layout, Unroll, layout
from apex_acer.replay.sampler import Sampler
from apex_acer.replay.storage import Storage
from tests.unrolls import COUNT, PLANE, K, plain_unroll

CAPACITY, LSTM = 7, 4  # the ring holds two unrolls and a third of one
PIXELS = EnvironmentSpec((1, 84, 84), "uint8", Discrete(4, 0), 4, False, 4, (84, 84))
WINDOWS = pytest.mark.parametrize("window", [0, 1, 3, K])


def layout_of(stack: int = 1) -> Layout:
    spec = EnvironmentSpec((PLANE,), "float32", Discrete(4, 0), stack, False, 1, (PLANE,))
    return layout(spec, K, {"log_probs": (4,)}, {"hidden": (LSTM,)})


def numbered(number: int, stack: int = 1, columns: int = COUNT) -> Unroll:
    """A plain unroll with extras and a state."""
    unroll, rng = plain_unroll(number, stack), np.random.default_rng(100 + number)
    arrays: dict[str, Any] = {name: getattr(unroll, name)[:, :columns] for name in ARRAY_FIELDS}
    arrays["extras"] = {"log_probs": rng.normal(size=(K, columns, 4)).astype(np.float32)}
    arrays["state"] = {"hidden": rng.normal(size=(columns, LSTM)).astype(np.float32)}
    return dataclasses.replace(unroll, **arrays)


def assert_sample(batch: Batch, place: int, unroll: Unroll, column: int, first: int, stack: int) -> None:
    """Sample `place` is what begins at step `first` of that column; beyond its end all is masked."""
    last = min(first + len(batch.action), K)
    for name in ("action", "reward", "terminated", "truncated", "mask", "log_probs"):
        values = unroll.extras[name] if name == "log_probs" else getattr(unroll, name)
        tensor = batch.extras[name] if name == "log_probs" else getattr(batch, name)
        np.testing.assert_array_equal(tensor[: last - first, place], values[first:last, column], err_msg=name)
    assert not batch.mask[last - first :, place].any()
    for name in ("obs", "episode_step"):
        expected = getattr(unroll, name)[first : last + stack, column]  # the one after the last step with them
        np.testing.assert_array_equal(getattr(batch, name)[: last + stack - first, place], expected, err_msg=name)
    np.testing.assert_array_equal(batch.state["hidden"][place], unroll.state["hidden"][column])


@WINDOWS
@pytest.mark.parametrize("stack", [1, 3])
def test_samples_are_slices_of_the_newest_unrolls(window: int, stack: int) -> None:
    storage = Storage(layout_of(stack), CAPACITY, window)
    assert (len(storage), storage.num_steps, storage.num_samples) == (0, 0, 0)
    held: dict[int, tuple[Unroll, int, int]] = {}  # by slot: unroll, column, weights version
    num_inserted = 0
    for version, columns in enumerate((3, 3, 1, 3, 3)):
        unroll = numbered(version, stack, columns)
        slots = storage.insert(unroll, version).tolist()
        assert slots == [(num_inserted + column) % CAPACITY for column in range(columns)]
        num_inserted += columns
        held |= {slot: (unroll, column, version) for column, slot in enumerate(slots)}
        assert (len(storage), storage.num_inserted) == (min(num_inserted, CAPACITY), num_inserted)
        assert storage.num_steps == sum(int(unroll.mask[:, column].sum()) for unroll, column, _ in held.values())
    assert sorted(version for _, _, version in held.values()) == [2, 3, 3, 3, 4, 4, 4]
    starts, length = (K, window) if window else (1, K)
    samples = torch.randperm(CAPACITY * starts, generator=torch.Generator().manual_seed(0))
    batch = storage.gather(samples)
    assert batch.obs.shape == (length + stack, len(samples), PLANE)
    assert batch.mask.shape == (length, len(samples))
    for place, sample in enumerate(samples.tolist()):
        unroll, column, version = held[sample // starts]
        assert_sample(batch, place, unroll, column, sample % starts, stack)
        assert batch.weights_version[place] == version
    assert not batch.fresh.any()
    assert (batch.importance == 1).all()
    trained_on = batch.mask[:1] if window else batch.mask  # a window counts for the step that it begins with
    assert storage.count_steps(samples).tolist() == trained_on.sum(0).tolist()


@pytest.mark.parametrize("window", [0, 3])
def test_draws_are_uniform_over_what_was_inserted(window: int) -> None:
    storage = Storage(layout_of(), 1000, window)
    one, same, other = (Sampler(storage, seed) for seed in (1, 1, 2))
    with pytest.raises(ValueError, match="require a sequence in replay before sampling"):
        one.draw(1)
    for version in range(3):
        storage.insert(numbered(version), version)
    drawn, again = (torch.cat([sampler.draw(100) for _ in range(200)]) for sampler in (one, same))
    counts = drawn.bincount()
    assert len(counts) == storage.num_samples == 3 * COUNT * (K if window else 1)
    assert 1e-3 < stats.chisquare(counts.numpy()).pvalue < 1 - 1e-3
    assert torch.equal(drawn, again)
    assert not torch.equal(drawn[:100], other.draw(100))


def test_arrays_are_views_of_what_is_held() -> None:
    storage = Storage(layout_of(), 100)
    assert {len(array) for array in storage.arrays().values()} == {0}
    slots = storage.insert(numbered(0), 5)
    arrays = storage.arrays()
    assert arrays.keys() == {*ARRAY_FIELDS, "extras.log_probs", "state.hidden", "version", "steps"}
    assert {len(array) for array in arrays.values()} == {COUNT}
    arrays["version"][:] = 6
    assert storage.gather(slots).weights_version.tolist() == [6] * COUNT


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_memory_grows_while_it_fills_and_is_flat_afterwards() -> None:
    k, columns, capacity = 20, 16, 320
    fits = layout(PIXELS, k, {"log_probs": (4,)})
    arrays: dict[str, Any] = {}
    for name in ARRAY_FIELDS:
        (length, *shape), dtype = getattr(fits, name)
        arrays[name] = np.ones((length, columns, *shape), dtype)
    unroll = Unroll(**arrays, extras={"log_probs": np.zeros((k, columns, 4), np.float32)}, state={})
    before = resident()
    storage = Storage(fits, capacity)
    sampler = Sampler(storage, 0)
    assert storage.num_bytes / (capacity * k) <= 1.25 * 84 * 84  # a plane and a quarter for each step
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
