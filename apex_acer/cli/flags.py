"""How tyro sees the dataclasses of the command line and of the settings, and the flags that it makes of them."""

from __future__ import annotations

import dataclasses
import typing
from typing import Annotated, Any, Literal, NamedTuple

import tyro
from tyro.constructors import ConstructorRegistry, StructConstructorSpec, StructTypeInfo

from apex_acer.config import (
    ActorsConfig,
    AlgorithmConfig,
    EnvironmentConfig,
    LoggingConfig,
    LogLevel,
    RemoteConfig,
    StopConfig,
    settings_classes,
)
from apex_acer.config.checks import field_types

JSON = Annotated[str, tyro.conf.arg(constructor=str, metavar="JSON")]
SETTINGS_TYPES: dict[Any, dict[str, Any]] = {
    ActorsConfig: {"count": Annotated[int, tyro.conf.arg(aliases=["--actors"])]},
    EnvironmentConfig: {"kwargs": JSON},
    RemoteConfig: {"observations": JSON},
    LoggingConfig: {"level": Annotated[LogLevel, tyro.conf.arg(aliases=["--log-level"])]},
    StopConfig: {
        "env_steps": Annotated[int, tyro.conf.arg(aliases=["--steps"])],
        "minutes": Annotated[float | None, tyro.conf.arg(aliases=["--minutes"])],
        "at_return": Annotated[float | None, tyro.conf.arg(aliases=["--until"])],
    },
}
"""Types of fields of the settings as tyro sees them, by class and name; the settings know of no command line."""

SECTION = tyro.conf.arg(name="")  # its fields are flags without a prefix
Switch = tyro.conf.FlagCreatePairsOff[bool]

Weights = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="WEIGHTS", help="The .safetensors file of a run.")]
Acting = Annotated[
    Literal["greedy", "sampled"] | None,
    tyro.conf.arg(help="Greedy or sampled actions; by default as in the run's evaluations."),
]
_JOBS = "Runs at the same time; 0: one per core with the serial engine, one per two cores otherwise."
Jobs = Annotated[int, tyro.conf.arg(help=_JOBS)]
_IMPORTS = "Import the modules that the file names; this runs code from outside this program and gymnasium."
ImportModules = Annotated[Switch, tyro.conf.arg(help=_IMPORTS)]

REGISTRY = ConstructorRegistry()
_BARE = "bare"  # a marker: without `SETTINGS_TYPES`


@REGISTRY.struct_rule
def _with_types(info: StructTypeInfo) -> StructConstructorSpec | None:
    """What tyro itself says of a class in `SETTINGS_TYPES`, with the types from there."""
    if info.type not in SETTINGS_TYPES or _BARE in info.markers:
        return None
    types = SETTINGS_TYPES[info.type]
    spec = ConstructorRegistry.get_struct_spec(dataclasses.replace(info, markers=(*info.markers, _BARE)))
    assert isinstance(spec, StructConstructorSpec)
    fields = (dataclasses.replace(field, type=types.get(field.name, field.type)) for field in spec.fields)
    return dataclasses.replace(spec, fields=tuple(fields))


class FlagType(NamedTuple):
    """What a flag takes."""

    hint: Any
    """The type of each value; None: the flag takes no value."""
    several: bool = False
    """Whether it takes all values up to the next flag."""


Flags = dict[str, FlagType]


def flags_of(cls: type, default: Any = None, prefix: str = "--") -> Flags:
    """The flags that tyro makes of a dataclass and the dataclasses within it.

    The algorithm's flags are those of the algorithm in `default`; without a default, of all that come with this package.
    """
    flags: Flags = {}
    for name, hint, marks in annotated_fields(cls):
        if tyro.conf.Positional in marks:
            continue
        if dataclasses.is_dataclass(hint):
            value = getattr(default, name, None)
            inner = prefix if SECTION in marks else f"{prefix}{name}."
            kinds = settings_classes().values() if hint is AlgorithmConfig else [typing.cast("type", hint)]
            for kind in kinds if value is None else [type(value)]:
                flags |= flags_of(kind, value, inner)
            continue
        names = [f"{prefix}{name}".replace("_", "-")]
        if hint is bool and tyro.conf.FlagCreatePairsOff not in marks:
            names.append(f"{prefix}no-{name}".replace("_", "-"))
        names += [alias for mark in marks for alias in getattr(mark, "aliases", None) or ()]
        flags |= dict.fromkeys(names, _flag_type(hint, marks))
    return flags


def annotated_fields(cls: type) -> list[tuple[str, Any, list[Any]]]:
    """The name, the type and tyro's annotations of each field of a dataclass."""
    fields = []
    for name, hint in (field_types(cls, include_extras=True) | SETTINGS_TYPES.get(cls, {})).items():
        kind, *marks = typing.get_args(hint) if hasattr(hint, "__metadata__") else (hint,)
        fields.append((name, kind, marks))
    return fields


def _flag_type(hint: Any, marks: list[Any]) -> FlagType:
    if hint is bool:
        return FlagType(None)
    if typing.get_origin(hint) is not tuple:
        return FlagType(hint)
    return FlagType(typing.get_args(hint)[0], several=tyro.conf.UseAppendAction not in marks)
