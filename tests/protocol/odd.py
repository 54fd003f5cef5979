"""The specification of observations with parts of many types."""

from __future__ import annotations

from apex_acer.protocol.actions import Discrete
from apex_acer.protocol.specification import EnvironmentSpec, Part

ODD = (
    Part("door", (3,), "bool", False, (3,)),
    Part("camera", (3, 5, 7), "uint8", True, (5, 7, 3)),
    Part("arm.joints", (5,), "float64", False, (5,)),
    Part("arm.load", (1,), "float16", False, (1,)),
    Part("room", (4,), "int8", False, (), choices=(4,), first=(-1,)),
    Part("map", (2, 3, 3), "float32", False, (2, 3, 3)),
)


def odd_spec(stack: int = 1, parts: tuple[Part, ...] = ODD) -> EnvironmentSpec:
    return EnvironmentSpec.of_parts(parts, Discrete(2, 0), stack, 1)
