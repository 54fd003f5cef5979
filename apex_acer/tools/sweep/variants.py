"""The variants of a run that the `--vary` flags of a sweep ask for, checked before anything starts."""

from __future__ import annotations

import itertools
import re
import typing
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from apex_acer.config import ConfigError, RunConfig, require
from apex_acer.config.checks import from_text
from apex_acer.config.keys import nearest, types_of
from apex_acer.config.runfile import from_dict, over, short_keys, short_text, to_dict

Values = dict[str, Any]
"""Values by dotted key."""


class Variant(NamedTuple):
    """One combination of the varied keys."""

    name: str
    """Such as `learning_rate=0.001,gamma=0.9`; also the name of its folder."""
    overrides: Values
    config: RunConfig


def make_variants(base: RunConfig, vary: Sequence[str], plain: str) -> list[Variant]:
    """The cartesian product of the `--vary` flags; raises `ConfigError` for a wrong key or value.

    A flag is `KEY=V1,V2,...`; the elements of a tuple are joined by `+` (`network.hidden_sizes=64+64,128`). Keys that vary
    together are joined by `:`, and so are their values (`optimizer.name:optimizer.eps=rmsprop:1e-3,adam:1e-8`). `plain` is
    the name of the only variant if nothing is varied.
    """
    flags = parse_flags(base, vary)
    labels = short_keys([key for types, _ in flags for key in types])
    options = [[parse_values(types, text) for text in texts.split(",")] for types, texts in flags]
    variants = []
    for combination in itertools.product(*options):
        overrides = {key: value for values in combination for key, value in values.items()}
        variants.append(Variant(_name(overrides, labels) or plain, overrides, override(base, overrides)))
    for name, count in Counter(variant.name for variant in variants).items():
        require(count == 1, "vary", name, "give each value once")
    return variants


def parse_flags(base: RunConfig, vary: Sequence[str]) -> list[tuple[dict[str, Any], str]]:
    """For each `--vary` flag, the types of its keys and the text after the equals sign.

    Raises `ConfigError` for a key that the run `base` lacks, or that is given twice.
    """
    flags, known = [], types_of(base)
    for flag in vary:
        left, equals, texts = flag.partition("=")
        require(bool(left and equals), "vary", flag, "give KEY=VALUE,VALUE")
        keys = [key.replace("-", "_") for key in left.split(":")]
        for key in keys:
            require(key not in ("seed", "out"), "vary", key, "give --seed, --seeds and --out")
            if key not in known:
                near = nearest(key, known)
                advice = f"did you mean {near}?" if near else "see train --help-all"
                raise ConfigError(f"vary: unknown key {key}; {advice}")
        flags.append(({key: known[key] for key in keys}, texts))
    counts = Counter(key for types, _ in flags for key in types)
    twice = ", ".join(key for key, count in counts.items() if count > 1)
    require(not twice, "vary", twice, "give each key once")
    return flags


def parse_values(types: Mapping[str, Any], text: str) -> Values:
    """The values of a flag's keys in a `text` between two commas; raises `ConfigError`."""
    parts = text.split(":") if len(types) > 1 else [text]
    allowed = f"give {len(types)} values joined by ':', for {' and '.join(types)}"
    require(len(parts) == len(types), "vary", text, allowed)
    return {key: parse_value(key, types[key], part) for key, part in zip(types, parts, strict=True)}


def parse_value(key: str, hint: Any, text: str) -> Any:
    """`text` as a value of `key`, whose type is `hint`, by the rules of the command line; raises `ConfigError`."""
    try:
        if typing.get_origin(hint) is not tuple:
            return from_text(key, hint, text)
        (element, *_) = typing.get_args(hint)
        return tuple(from_text(key, element, part) for part in text.split("+") if part)
    except ConfigError as error:
        raise ConfigError(f"vary: {error}") from None


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


def _name(overrides: Values, labels: Mapping[str, str]) -> str:
    parts = (f"{labels[key]}={short_text(value) or 'none'}" for key, value in overrides.items())
    return re.sub(r"[^\w.+=,:-]", "_", ",".join(parts))  # only characters that are safe in a path
