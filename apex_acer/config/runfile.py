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

from apex_acer.config.algorithm import AlgorithmConfig, UnreadConfig, algorithm_settings, settings_classes
from apex_acer.config.checks import field_types, none_by_name, of_type
from apex_acer.config.keys import nearest, types_of
from apex_acer.config.presets import preset_text as preset_text
from apex_acer.config.presets import presets as presets
from apex_acer.config.run import RunConfig
from apex_acer.system import files
from apex_acer.system.errors import ConfigError, reading, require

T = TypeVar("T")
MAX_BYTES = 1 << 20  # of a run file
RENAMED = {"critics": "num_critics"}  # keys of `[algorithm]` in files written before December 2026
REMOVED = ("evaluation.stall_steps",)  # keys of such files that have no effect any more
KEYWORDS = "keywords"  # the source of a Python caller's changes, in errors


def load_run(run: str | Path | RunConfig, **changes: Any) -> RunConfig:
    """The configuration of `run`, with `changes`.

    Args:
        run: a preset's name, the path of a run file or of a run's folder, or a configuration.
        **changes: keys as in a run file whose `base` is `run`: `seed=1, stop={"env_steps": 2000}`. A section is either a
            dict, whose missing keys keep their values, or a dataclass (`StopConfig(…)`). None removes a value.

    Raises:
        ConfigError: with one line that names the run and the key.
    """
    allowed = "give a preset's name, a path or a RunConfig; keys are keywords: seed=1, stop={'env_steps': 2000}"
    require(isinstance(run, str | Path | RunConfig), "run", run, allowed)
    if isinstance(run, RunConfig) and not changes:
        return rebuilt(run)
    source = "configuration" if isinstance(run, RunConfig) else str(run)
    with reading(source):
        base = to_dict(rebuilt(run)) if isinstance(run, RunConfig) else _load(source, ())
        if not changes:
            return from_dict(base, source)
        try:
            return from_dict(over(base, changes), KEYWORDS)
        except ConfigError:
            from_dict(base, source)  # raises instead if the run itself is wrong
            raise


def look_at_run(path: Path) -> RunConfig:
    """The configuration in the run file `path`, of any origin: no module that it names is imported."""
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


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return to_dict(value)
    return list(value) if isinstance(value, tuple) else value


def _values(settings: Any) -> dict[str, Any]:
    return {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}


def flat(config: RunConfig) -> dict[str, Any]:
    """The values of a configuration by dotted key, without None; the elements of a list are joined by blanks."""
    values = leaves(to_dict(config))
    return {key: " ".join(map(str, value)) if isinstance(value, list) else value for key, value in values}


def leaves(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and values of nested dicts."""
    for name, value in data.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def from_dict(data: Mapping[str, Any], source: str = "", *, import_modules: bool = True) -> RunConfig:
    """A `RunConfig` from nested dicts.

    Without `import_modules` the settings of a user's own algorithm become an `UnreadConfig`. Raises `ConfigError`, which
    names the `source`, for unknown keys and wrong values.
    """
    section = data.get("algorithm")
    try:
        if isinstance(section, Mapping):
            data = {**data, "algorithm": _algorithm_settings(section, import_modules)}
        return _build(RunConfig, data, "")
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}" if source else str(error)) from error


def rebuilt(config: RunConfig) -> RunConfig:
    """A checked copy of `config`, with each value converted to exactly its type; raises `ConfigError`."""
    return _build(RunConfig, _values(config), "")


def short_keys(keys: Collection[str]) -> dict[str, str]:
    """The last word of each dotted key, or the whole key if several keys have that word."""
    words = Counter(key.rpartition(".")[2] for key in keys)
    return {key: key if words[key.rpartition(".")[2]] > 1 else key.rpartition(".")[2] for key in keys}


def short_text(value: Any) -> str:
    """A value as text for a label: the elements of a tuple are joined by `+`, an absolute path is its last part."""
    text = "+".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
    return Path(text).name if text.startswith("/") else text


def _load(run: str, above: tuple[str, ...]) -> dict[str, Any]:
    """The keys of a preset, file or run's folder and of its bases; `above` lists the runs whose base it is."""
    require(run not in above, "base", run, f"{' and '.join(above)} cannot be built on each other; give another base")
    path = Path(run)
    allowed = f"give a preset, and the environment of a module as --environment.id {path.stem}:Id"
    require(path.suffix != ".py", "run", run, allowed)
    if path.suffix == ".toml" or path.is_file():
        return _resolve(_read(path), run, above)
    if run not in presets() and (inside := path / "config.toml").is_file():
        return _resolve(_read(inside), str(inside), above)
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
    """The keys of `base`, replaced by the keys of `data`.

    If `data` has another algorithm, the keys of the old algorithm are dropped, and those of replay and the optimizer if the
    new one has none.
    """
    default = _algorithm(base, RunConfig().algorithm.name)
    name = _algorithm(data, default)
    if name == default:
        return _merge(base, data)
    settings = settings_classes().get(name, AlgorithmConfig) if isinstance(name, str) else AlgorithmConfig
    kept = {"algorithm": False, "replay": settings.has_replay, "optimizer": settings.has_optimizer}
    return _merge({key: base[key] for key in base if kept.get(key, True)}, data)


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


def _algorithm_settings(section: Mapping[str, Any], import_modules: bool) -> AlgorithmConfig:
    name = section.get("name", RunConfig().algorithm.name)
    is_ours = name in list(settings_classes())
    if is_ours:
        section = {RENAMED.get(key, key): value for key, value in section.items()}
    if is_ours or import_modules:
        return _build(algorithm_settings(name), {**section, "name": name}, "algorithm.")
    common = {field.name for field in dataclasses.fields(AlgorithmConfig)}
    others = {key: value for key, value in section.items() if key not in common}
    section = {key: value for key, value in section.items() if key in common}
    return _build(UnreadConfig, {**section, "others": others}, "algorithm.")


def _build(cls: type[T], data: Mapping[str, Any], prefix: str) -> T:
    hints = field_types(cls)
    for key in data:
        if key not in hints and f"{prefix}{key}" not in REMOVED:
            raise ConfigError(f"unknown key {prefix}{key}; {_hint(str(key), hints, prefix)}")
    return cls(**{key: _convert(hints[key], value, prefix + key) for key, value in data.items() if key in hints})


def _hint(key: str, names: Collection[str], prefix: str) -> str:
    """What to give instead of the unknown `key` of the section `prefix`, whose keys are `names`."""
    algorithms = (types_of(cls, "algorithm.") for cls in settings_classes().values())
    every = itertools.chain(types_of(RunConfig), *algorithms)
    others = (name for name in every if not prefix or not name.startswith(prefix))
    near = nearest(f"{prefix}{key}", [*(prefix + name for name in names), *others])
    section, _, last = near.rpartition(".")
    if section and not prefix:
        near = f"{last} in the section {section}"
    return f"did you mean {near}?" if near else f"allowed: {', '.join(names)}"


def _convert(hint: Any, value: Any, key: str) -> Any:
    if not dataclasses.is_dataclass(hint):
        with contextlib.suppress(ConfigError):  # the dataclass refuses it, as it does in Python
            return of_type(key, hint, none_by_name(hint, value))
        return value
    cls = typing.cast("type[Any]", hint)
    if isinstance(value, cls):
        return _build(type(value), _values(value), f"{key}.")
    if isinstance(value, Mapping):
        return _build(cls, value, f"{key}.")
    first = next(iter(field_types(cls)))
    how = f"in a file write [{key}], then {first} = …; in Python give a dict"
    raise ConfigError(f"{key}: {value!r} is not a table; {how}")
