"""What stands between a user's environment and gymnasium's vector, which merges what its copies return."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from apex_acer.protocol.specification import MASK


class Adapter:
    """A single environment of a vector: gives of `info` only the mask, and numbers for arrays of one element.

    gymnasium's vector keeps the values in `info` of all copies in arrays, and fails where their types or lengths differ.
    """

    def __init__(self, env: Any) -> None:
        self.env = env

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """The first observation, and the mask if there is one."""
        obs, info = self.env.reset(**options)
        return obs, _only_mask(info)

    def step(self, action: Any) -> tuple[Any, ...]:
        """The result of the step, with the mask if there is one."""
        obs, *numbers, info = self.env.step(action)
        return (obs, *(np.asarray(number).item() for number in numbers), _only_mask(info))


def _only_mask(info: Mapping[str, Any]) -> dict[str, Any]:
    """A mask is a tuple, of which the vector keeps the objects."""
    mask = info.get(MASK)
    return {} if mask is None else {MASK: mask if isinstance(mask, tuple) else (mask,)}
