"""The variants of a run that the `--vary` flags of a sweep ask for, checked before anything starts."""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import re
import typing
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from apex_acer.config import ConfigError, RunConfig, require
from apex_acer.config.checks import from_text
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

    Args:
        base: the run that is varied.
        vary: `KEY=V1,V2,...`; the elements of a tuple are joined by `+` (`network.hidden_sizes=64+64,128`). Keys that vary
            together are joined by `:`, and so are their values (`optimizer.name:optimizer.eps=rmsprop:1e-3,adam:1e-8`).
        plain: the name of the only variant if nothing is varied.
    """
    axes = [_choices(base, given) for given in vary]
    keys = [key for choices in axes for key in choices[0]]
    twice = [key for key, count in Counter(keys).items() if count > 1]
    require(not twice, "vary", ", ".join(twice), "give each key once")
    labels = short_keys(keys)
    combinations = [{k: v for choice in chosen for k, v in choice.items()} for chosen in itertools.product(*axes)]
    variants = [Variant(_name(c, labels) or plain, c, _override(base, c)) for c in combinations]
    for name, count in Counter(variant.name for variant in variants).items():
        require(count == 1, "vary", name, "give each value once")
    return variants


def _choices(base: RunConfig, given: str) -> list[Values]:
    left, equals, right = given.partition("=")
    require(bool(left and equals), "vary", given, "give KEY=VALUE,VALUE")
    hints = _hints(base)
    keys = [key.replace("-", "_") for key in left.split(":")]
    for key in keys:
        require(key not in OWN_KEYS, "vary", key, "give --seed, --seeds and --out")
        if key not in hints:
            near = difflib.get_close_matches(key, hints, n=1)
            raise ConfigError(f"vary: unknown key {key}; {f'did you mean {near[0]}?' if near else 'see train --help'}")
    return [_choice(keys, hints, texts) for texts in right.split(",")]


def _choice(keys: list[str], hints: Mapping[str, Any], texts: str) -> Values:
    parts = texts.split(":") if len(keys) > 1 else [texts]
    require(len(parts) == len(keys), "vary", texts, f"give {len(keys)} values joined by ':', for {' and '.join(keys)}")
    return {key: _convert(key, hints[key], part) for key, part in zip(keys, parts, strict=True)}


def _hints(section: Any, prefix: str = "") -> dict[str, Any]:
    hints, found = typing.get_type_hints(type(section)), {}
    for field in dataclasses.fields(section):
        value, key = getattr(section, field.name), prefix + field.name
        found.update(_hints(value, f"{key}.") if dataclasses.is_dataclass(value) else {key: hints[field.name]})
    return found


def _convert(key: str, hint: Any, text: str) -> Any:
    """`text` as a value of type `hint`, by the rules of the command line."""
    try:
        if typing.get_origin(hint) is not tuple:
            return from_text(key, hint, text)
        (kind, *_) = typing.get_args(hint)
        return tuple(from_text(key, kind, part) for part in text.split("+") if part)
    except ConfigError as error:
        raise ConfigError(f"vary: {error}") from None


def _name(overrides: Values, labels: Mapping[str, str]) -> str:
    parts = (f"{labels[key]}={short_text(value)}" for key, value in overrides.items())
    return re.sub(r"[^\w.+=,:-]", "_", ",".join(parts))  # characters that are safe in a path


def _override(base: RunConfig, overrides: Values) -> RunConfig:
    """`base` with all overrides at once, because some are only allowed together."""
    data: dict[str, Any] = {}
    for key, value in overrides.items():
        *path, name = key.split(".")
        section = data
        for part in path:
            section = section.setdefault(part, {})
        section[name] = value
    return from_dict(over(to_dict(base), data), "vary")
