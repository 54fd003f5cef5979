"""The variants of a run that the `--vary` flags of a sweep ask for, checked before anything starts."""

from __future__ import annotations

import itertools
import re
import typing
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from apex_acer.config import ConfigError, RunConfig, require
from apex_acer.config.checks import from_text
from apex_acer.config.keys import nearest, types_of
from apex_acer.config.runfile import from_dict, over, short_keys, short_text, to_dict

OWN_KEYS = ("seed", "out")  # a sweep sets these itself

Values = dict[str, Any]  # keyed by dotted key


@dataclass(frozen=True)
class Variant:
    """One combination of the varied keys."""

    name: str
    """Such as `learning_rate=0.001,gamma=0.9`; also the name of its folder."""
    overrides: Values
    """Values by dotted key."""
    config: RunConfig


def make_variants(base: RunConfig, vary: Sequence[str], plain: str) -> list[Variant]:
    """The cartesian product of the `--vary` flags; raises `ConfigError` for a wrong key or value.

    A flag is `KEY=V1,V2,...`; the elements of a tuple are joined by `+` (`network.hidden_sizes=64+64,128`). Keys that vary
    together are joined by `:`, and so are their values (`optimizer.name:optimizer.eps=rmsprop:1e-3,adam:1e-8`). `plain` is
    the name of the only variant if nothing is varied.
    """
    axes = [parse_axis(base, text) for text in vary]
    keys = keys_once(axes)
    labels = short_keys(keys)
    choices = [[axis.choice(text) for text in axis.values.split(",")] for axis in axes]
    combinations = [{k: v for choice in chosen for k, v in choice.items()} for chosen in itertools.product(*choices)]
    variants = [Variant(_name(c, labels) or plain, c, override(base, c)) for c in combinations]
    for name, count in Counter(variant.name for variant in variants).items():
        require(count == 1, "vary", name, "give each value once")
    return variants


class Axis(NamedTuple):
    """One `--vary` flag, whose keys exist."""

    types: Mapping[str, Any]
    """The type of each key."""
    values: str
    """What the flag has after the equals sign."""

    def choice(self, text: str) -> Values:
        """The values of the keys in a `text` between two commas; raises `ConfigError`."""
        keys = list(self.types)
        parts = text.split(":") if len(keys) > 1 else [text]
        allowed = f"give {len(keys)} values joined by ':', for {' and '.join(keys)}"
        require(len(parts) == len(keys), "vary", text, allowed)
        return {key: self.value(key, part) for key, part in zip(keys, parts, strict=True)}

    def value(self, key: str, text: str) -> Any:
        """`text` as a value of `key`, by the rules of the command line; raises `ConfigError`."""
        hint = self.types[key]
        try:
            if typing.get_origin(hint) is not tuple:
                return from_text(key, hint, text)
            (kind, *_) = typing.get_args(hint)
            return tuple(from_text(key, kind, part) for part in text.split("+") if part)
        except ConfigError as error:
            raise ConfigError(f"vary: {error}") from None


def parse_axis(base: RunConfig, text: str) -> Axis:
    """A `--vary` flag; raises `ConfigError` for a key that the run `base` lacks."""
    left, equals, right = text.partition("=")
    require(bool(left and equals), "vary", text, "give KEY=VALUE,VALUE")
    types = types_of(base)
    keys = [key.replace("-", "_") for key in left.split(":")]
    for key in keys:
        require(key not in OWN_KEYS, "vary", key, "give --seed, --seeds and --out")
        if key not in types:
            near = nearest(key, types)
            raise ConfigError(f"vary: unknown key {key}; {f'did you mean {near}?' if near else 'see train --help-all'}")
    return Axis({key: types[key] for key in keys}, right)


def keys_once(axes: Sequence[Axis]) -> list[str]:
    """The keys of all axes; raises `ConfigError` if one is given twice."""
    keys = [key for axis in axes for key in axis.types]
    twice = [key for key, count in Counter(keys).items() if count > 1]
    require(not twice, "vary", ", ".join(twice), "give each key once")
    return keys


def _name(overrides: Values, labels: Mapping[str, str]) -> str:
    parts = (f"{labels[key]}={short_text(value)}" for key, value in overrides.items())
    return re.sub(r"[^\w.+=,:-]", "_", ",".join(parts))  # characters that are safe in a path


def override(base: RunConfig, overrides: Values) -> RunConfig:
    """`base` with all overrides at once, because some are only allowed together."""
    data: dict[str, Any] = {}
    for key, value in overrides.items():
        *path, name = key.split(".")
        section = data
        for part in path:
            section = section.setdefault(part, {})
        section[name] = value
    return from_dict(over(to_dict(base), data), "vary")
