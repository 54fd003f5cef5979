from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from apex_acer.config import RunConfig
from apex_acer.learner.parts import make_batch_queue, make_storage
from apex_acer.learner.stored_replay import load_replay
from apex_acer.manager.manager import resume, train
from apex_acer.networks.weights import read
from apex_acer.protocol.actions import Discrete
from apex_acer.protocol.specification import EnvironmentSpec
from apex_acer.protocol.unroll import layout
from apex_acer.replay.compressed import CompressedStorage, unpack
from apex_acer.replay.storage import Storage
from tests.runs import CARTPOLE, made_up_unroll, tiny_layout, tiny_run

PIXELS = EnvironmentSpec((1, 84, 84), "uint8", Discrete(2, 0), 1, False, 4, (84, 84))
CAPACITY, INSERTED = 7, 5


def filled(config: RunConfig, spec: EnvironmentSpec, storage: Storage) -> Storage:
    """With unrolls of two environments, more than it has room for."""
    for number in range(INSERTED):
        storage.insert(made_up_unroll(config, number, spec), number)
    return storage


def of_both_kinds(spec: EnvironmentSpec, window: int = 0) -> tuple[Storage, Storage]:
    config = tiny_run()
    fits = tiny_layout(config, spec)
    return (
        filled(config, spec, Storage(fits, CAPACITY, window)),
        filled(config, spec, CompressedStorage(fits, CAPACITY, window)),
    )


@pytest.mark.parametrize("window", [0, 3])
@pytest.mark.parametrize("spec", [CARTPOLE, PIXELS], ids=["numbers", "frames"])
def test_what_is_sampled_is_what_was_inserted(spec: EnvironmentSpec, window: int) -> None:
    plain, compressed = of_both_kinds(spec, window)
    samples = torch.randperm(plain.num_samples, generator=torch.manual_seed(0))
    for one, other in zip(vars(plain.gather(samples)).values(), vars(compressed.gather(samples)).values(), strict=True):
        for name, tensor in one.items() if isinstance(one, dict) else [("", one)]:
            assert torch.equal(tensor, other[name] if name else other)


def test_frames_take_a_tenth_of_the_memory_or_less() -> None:
    fits = layout(PIXELS, 20, {})
    plain, compressed = Storage(fits, CAPACITY), CompressedStorage(fits, CAPACITY)
    assert compressed.num_bytes < plain.num_bytes / 9
    frame = np.zeros((84, 84), np.uint8)
    frame[40:50, 10:70] = 200
    compressed._obs[0] = np.broadcast_to(frame, (24, *frame.shape))
    assert compressed._obs.num_bytes < frame.size


@pytest.mark.parametrize(
    ("device", "ratio", "kind"), [("cpu", 4, CompressedStorage), ("meta", 4, Storage), ("cpu", 0, Storage)]
)
def test_only_a_replay_memory_in_main_memory_is_compressed(device: str, ratio: float, kind: type[Storage]) -> None:
    config = tiny_run(replay__compress=True, algorithm__replay_ratio=float(ratio))
    assert type(make_storage(config, tiny_layout(config), 100, torch.device(device))) is kind


def test_rows_that_were_not_compressed_so_are_refused() -> None:
    fits = tiny_layout(tiny_run())
    filled(tiny_run(), CARTPOLE, compressed := CompressedStorage(fits, CAPACITY))
    arrays = compressed.arrays()
    sizes, data = arrays["obs.sizes"], arrays["obs.lz4"]
    for wrong_sizes, wrong_data in [(sizes, np.roll(data, 1)), (-sizes, data), (np.full_like(sizes, 2**40), data)]:
        with pytest.raises(ValueError, match="row 0: "):
            unpack(*fits.obs, wrong_sizes, wrong_data)


@pytest.mark.parametrize("compresses", [False, True])
def test_a_storage_takes_what_one_of_the_other_kind_has_saved(compresses: bool) -> None:
    """A run goes on on another device: replay is compressed in main memory alone."""
    fits = tiny_layout(tiny_run())
    plain, compressed = Storage(fits, CAPACITY), CompressedStorage(fits, CAPACITY)
    after, before = (compressed, plain) if compresses else (plain, compressed)
    filled(tiny_run(), CARTPOLE, before)
    saved = before.arrays()
    if not compresses:
        saved["obs"] = unpack(*fits.obs, saved["obs.sizes"], saved["obs.lz4"])  # type: ignore[assignment]
    after.restore(before.num_inserted, lambda name, *_: saved[name])
    samples = torch.arange(len(before))
    assert torch.equal(after.gather(samples).obs, before.gather(samples).obs)
    assert (len(after), after.num_steps) == (len(before), before.num_steps)


def test_a_run_is_the_same_and_is_resumed_to_the_bit(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "replay__capacity": 250,
        "checkpoint__replay": True,
        "checkpoint__every": 200,
        "actors__count": 1,
        "actors__environments": 2,
    }
    plain, whole, parts = tmp_path / "plain", tmp_path / "whole", tmp_path / "parts"
    train(tiny_run(plain, stop__env_steps=600, **settings))
    train(tiny_run(whole, stop__env_steps=600, replay__compress=True, **settings))
    train(tiny_run(parts, stop__env_steps=400, replay__compress=True, **settings))
    resume(parts, {"env_steps": 600})
    expected = read(plain / "weights.safetensors")[0]
    for folder in (whole, parts):
        weights = read(folder / "weights.safetensors")[0]
        assert all(torch.equal(weights[name], tensor) for name, tensor in expected.items())


def test_another_run_starts_with_it(tmp_path: Path) -> None:
    train(tiny_run(tmp_path, replay__compress=True, replay__capacity=250, checkpoint__replay=True, stop__env_steps=400))
    storages = []
    for compress in (False, True):
        config = tiny_run(replay__compress=compress)
        queue = make_batch_queue(config, tiny_layout(config), torch.device("cpu"))
        load_replay(str(tmp_path), config, CARTPOLE, queue)
        storages.append(queue.storage)
    assert len(storages[0]) > 10
    samples = torch.arange(len(storages[0]))
    assert torch.equal(storages[0].gather(samples).obs, storages[1].gather(samples).obs)
