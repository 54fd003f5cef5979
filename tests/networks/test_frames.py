from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from apex_acer.networks.frames import shift_images, stack_planes, to_float
from tests.algorithms.continuous import slow_shift


def slow_stacks(planes: np.ndarray, episode_step: np.ndarray, stack: int) -> np.ndarray:
    """`stack_planes`, one plane after the other."""
    length, columns = len(planes) - stack + 1, planes.shape[1]
    stacks = np.zeros((length, columns, stack * planes.shape[2], *planes.shape[3:]), planes.dtype)
    for t in range(length):
        for column in range(columns):
            parts = []
            for age in reversed(range(stack)):
                newest = t + stack - 1
                plane = planes[newest - age, column]
                parts.append(plane if episode_step[newest, column] >= age else np.zeros_like(plane))
            stacks[t, column] = np.concatenate(parts)
    return stacks


@pytest.mark.parametrize(("shape", "dtype"), [((5,), np.float64), ((1, 4, 3), np.uint8), ((3, 4, 2), np.float32)])
@pytest.mark.parametrize("stack", [1, 2, 8])
def test_stacks_equal_a_slow_loop(shape: tuple[int, ...], dtype: type[Any], stack: int) -> None:
    """Stacks of images have their channels innermost in memory."""
    random = np.random.default_rng(0)
    planes = random.integers(1, 256, size=(stack + 9, 3, *shape)).astype(dtype)
    episode_step = np.zeros((stack + 9, 3), np.int32)
    for t in range(1, stack + 9):
        episode_step[t] = np.where(random.random(3) < 0.3, 0, episode_step[t - 1] + 1)
    stacks = stack_planes(torch.from_numpy(planes), torch.from_numpy(episode_step), stack)
    assert stacks.numpy().dtype == dtype
    np.testing.assert_array_equal(stacks.numpy(), slow_stacks(planes, episode_step, stack))
    if stack > 1:
        assert (stacks == 0).any()  # some stacks reach over an episode's start
        if len(shape) == 3:
            assert stacks.flatten(0, 1).is_contiguous(memory_format=torch.channels_last)
            floats = to_float(stacks.flatten(0, 1), torch.float32)
            assert floats.is_contiguous(memory_format=torch.channels_last)


def test_bytes_are_scaled_and_numbers_are_not() -> None:
    pixels = torch.tensor([0, 51, 255], dtype=torch.uint8)
    torch.testing.assert_close(to_float(pixels, torch.float64), torch.tensor([0.0, 0.2, 1.0], dtype=torch.float64))
    numbers = torch.tensor([-3.0, 255.0], dtype=torch.float64)
    torch.testing.assert_close(to_float(numbers, torch.float32), torch.tensor([-3.0, 255.0]))


def test_images_are_shifted_as_far_as_each_is_to_be_and_edges_repeat() -> None:
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (49, 5, 7, 3)).astype(np.uint8)).movedim(-1, 1)
    offset = torch.cartesian_prod(torch.arange(-3, 4), torch.arange(-3, 4))
    shifted = shift_images(images, offset)
    for image, (down, right), moved in zip(images, offset.tolist(), shifted, strict=True):
        assert torch.equal(moved, slow_shift(image, down, right))
    assert shifted.dtype == torch.uint8
    assert shifted.is_contiguous(memory_format=torch.channels_last)
