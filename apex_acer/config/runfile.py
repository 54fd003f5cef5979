"""Run files: TOML with the keys of `RunConfig`, read from a path or from the presets in `launch/`.

A file may begin with `base = "<preset or file>"` and then holds only what differs from it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import tomllib
import typing
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import tomli_w

from apex_acer.config.algorithm import (
    ALGORITHMS,
    AlgorithmConfig,
    UnreadConfig,
    algorithm_settings,
    settings_classes,
)
from apex_acer.config.checks import field_types, none_by_name, of_type
from apex_acer.config.keys import nearest, types_of
from apex_acer.config.presets import preset_text as preset_text
from apex_acer.config.presets import presets as presets
from apex_acer.config.run import RunConfig
from apex_acer.system import files
from apex_acer.system.errors import ConfigError, reading, require

T = TypeVar("T")
MAX_BYTES = 1 << 20  # of a run file
KEYWORDS = "keywords"  # the source of what a caller in Python changes


def load_run(run: str | Path | RunConfig, **changes: Any) -> RunConfig:
    """The configuration of `run`, with `changes`.

    Args:
        run: a preset's name, the path of a run file or of a run's folder, or a configuration.
        **changes: keys as in a run file whose `base` is `run`: `seed=1, stop={"env_steps": 2000}`. A section is either a
            dict, whose missing keys keep their values, or a dataclass (`StopConfig(…)`). None removes a value.

    Raises `ConfigError` with one line that names the run and the key.
    """
    given = "give a preset's name, a path or a RunConfig; keys are keywords: seed=1, stop={'env_steps': 2000}"
    require(isinstance(run, str | Path | RunConfig), "run", run, given)
    if isinstance(run, RunConfig):
        run = rebuilt(run)
        if not changes:
            return run
    source = "configuration" if isinstance(run, RunConfig) else str(run)
    with reading(source):
        base = to_dict(run) if isinstance(run, RunConfig) else _load(source, ())
        try:
            return from_dict(over(base, changes), KEYWORDS if changes else source)
        except ConfigError:
            if changes:
                from_dict(base, source)  # it may be at fault
            raise


def look_at_run(path: Path) -> RunConfig:
    """The configuration in the run file `path`; nothing that it names is imported, as it may come from anywhere."""
    with reading(str(path)):
        return from_dict(_load(str(path), ()), str(path), import_modules=False)


def parse_run(text: str, source: str) -> RunConfig:
    """The configuration in TOML `text`; `source` names it in errors."""
    with reading(source):
        return from_dict(_resolve(text, source, ()), source)


def dump_run(config: RunConfig) -> str:
    """`config` as TOML; keys without a value are left out."""
    return tomli_w.dumps(to_dict(config))


def to_dict(config: Any) -> dict[str, Any]:
    """A configuration dataclass as nested dicts of plain values, without keys whose value is None."""
    values = _values(config)
    if isinstance(config, UnreadConfig):
        values |= values.pop("others")
    return {name: _plain(value) for name, value in values.items() if value is not None}


def flat(config: RunConfig) -> dict[str, Any]:
    """The values of a configuration by dotted key, the elements of a list joined by blanks; without those that are None."""
    plain = leaves(to_dict(config))
    return {key: " ".join(map(str, value)) if isinstance(value, list) else value for key, value in plain}


def leaves(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and values of nested dicts."""
    for name, value in data.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def from_dict(
    data: Mapping[str, Any], source: str = "", *, import_modules: bool = True, kind: type[RunConfig] = RunConfig
) -> RunConfig:
    """A `RunConfig`, or another `kind` of it, from nested dicts; raises `ConfigError` for unknown keys and wrong values.

    The settings of a user's own algorithm become an `UnreadConfig` unless `import_modules` allows to import its module.
    """
    where = f"{source}: " if source else ""
    section = data.get("algorithm")
    if isinstance(section, Mapping):
        data = {**data, "algorithm": _algorithm_settings(section, where, import_modules)}
    return _build(kind, data, "", where)


def rebuilt(config: RunConfig) -> RunConfig:
    """A checked `RunConfig` with the values of `config`, each converted to exactly its type; raises `ConfigError`."""
    return _build(RunConfig, _values(config), "", "")


def short_keys(keys: Collection[str]) -> dict[str, str]:
    """The last word of each dotted key, or the whole key if several keys have that word."""
    words = Counter(key.rpartition(".")[2] for key in keys)
    return {key: key if words[key.rpartition(".")[2]] > 1 else key.rpartition(".")[2] for key in keys}


def short_text(value: Any) -> str:
    """A short text for a value: the elements of a tuple joined by `+`; the name of an absolute path."""
    text = "+".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
    return Path(text).name if text.startswith("/") else text


def _load(run: str, above: tuple[str, ...]) -> dict[str, Any]:
    """The keys of a preset, file or run's folder and of its bases; `above` are the runs that it is a base of."""
    require(run not in above, "base", run, f"{' and '.join(above)} cannot be built on each other; give another base")
    path = Path(run)
    how = f"give a preset, and the environment of a module as --environment.id {path.stem}:Id"
    require(path.suffix != ".py", "run", run, how)
    if path.suffix == ".toml" or path.is_file():
        return _resolve(_read(path), run, above)
    if run not in presets() and (own := path / "config.toml").is_file():
        return _resolve(_read(own), str(own), above)
    return _resolve(preset_text(run), run, above)


def _resolve(text: str, source: str, above: tuple[str, ...]) -> dict[str, Any]:
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source}: not TOML: {error}") from None
    base = data.pop("base", None)
    if base is None:
        return data
    require(isinstance(base, str), "base", base, "give a preset or a TOML file")
    return over(_load(base, (*above, source)), data)


def over(base: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of `base` with those of `data` in their place.

    If `data` has another algorithm, those of the old one are dropped, and those of replay if the new one has none.
    """
    default = _algorithm(base, RunConfig().algorithm.name)
    name = _algorithm(data, default)
    if name == default:
        return _merge(base, data)
    without_replay = isinstance(name, str) and not settings_classes().get(name, AlgorithmConfig).has_replay
    dropped = ("algorithm", "replay") if without_replay else ("algorithm",)
    return _merge({key: base[key] for key in base if key not in dropped}, data)


def _algorithm(data: Mapping[str, Any], default: Any) -> Any:
    section = data.get("algorithm")
    return section.get("name", default) if isinstance(section, Mapping) else default


def _merge(base: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in data.items():
        both_tables = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _merge(merged[key], value) if both_tables else value
    return merged


def _read(path: Path) -> str:
    try:
        return files.read(path, MAX_BYTES).decode("utf-8-sig")  # Windows' editors begin files with a mark
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigError(f"{path}: {reason}; give a run file or a preset") from None


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return to_dict(value)
    return list(value) if isinstance(value, tuple) else value


def _algorithm_settings(section: Mapping[str, Any], where: str, import_modules: bool) -> AlgorithmConfig:
    name = section.get("name", RunConfig().algorithm.name)
    if not (import_modules or name in list(ALGORITHMS)):
        common = {field.name for field in dataclasses.fields(AlgorithmConfig)}
        others = {key: value for key, value in section.items() if key not in common}
        section = {key: value for key, value in section.items() if key in common} | {"others": others}
        return _build(UnreadConfig, section, "algorithm.", where)
    try:
        cls = algorithm_settings(name)
    except ConfigError as error:
        raise ConfigError(f"{where}{error}") from error
    return _build(cls, {**section, "name": name}, "algorithm.", where)


def _build(cls: type[T], data: Mapping[str, Any], prefix: str, where: str) -> T:
    hints = field_types(cls)
    for key in data:
        if key not in hints:
            raise ConfigError(f"{where}unknown key {prefix}{key}; {_instead(str(key), hints, prefix, where)}")
    values = {key: _convert(hints[key], value, prefix + key, where) for key, value in data.items()}
    try:
        return cls(**values)
    except ConfigError as error:
        raise ConfigError(f"{where}{error}") from None


def _instead(key: str, hints: Collection[str], prefix: str, where: str) -> str:
    """What to give in place of a `key` that a section of keys `hints` lacks."""
    near = nearest(f"{prefix}{key}", [*(prefix + name for name in hints), *_keys_outside(prefix)])
    section, _, last = near.rpartition(".")
    if section and not prefix and where == f"{KEYWORDS}: ":
        near = f"{section}={{{last!r}: …}}"
    return f"did you mean {near}?" if near else f"allowed: {', '.join(hints)}"


def _keys_outside(prefix: str) -> Iterator[str]:
    """The dotted keys that do not begin with `prefix`, of all algorithms."""
    every = itertools.chain(
        types_of(RunConfig), *(types_of(kind, "algorithm.") for kind in settings_classes().values())
    )
    return (key for key in every if not (prefix and key.startswith(prefix)))


def _convert(hint: Any, value: Any, key: str, where: str) -> Any:
    if not dataclasses.is_dataclass(hint):
        with contextlib.suppress(ConfigError):  # the dataclass refuses it, as it does in Python
            return of_type(key, hint, none_by_name(hint, value))
        return value
    if isinstance(value, typing.cast("type[Any]", hint)):
        return _build(type(value), _values(value), f"{key}.", where)
    if not isinstance(value, Mapping):
        first = next(iter(field_types(hint)))
        is_keyword = where == f"{KEYWORDS}: "
        how = f"give a dict: {{{first!r}: …}}" if is_keyword else f"write [{key}], then {first} = …"
        raise ConfigError(f"{where}{key}: {value!r} is not a table; {how}")
    return _build(typing.cast("type[Any]", hint), value, f"{key}.", where)


def _values(settings: Any) -> dict[str, Any]:
    return {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}
