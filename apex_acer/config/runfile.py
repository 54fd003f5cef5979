"""Run files: TOML with the keys of `RunConfig`, read from a path or from the presets in `launch/`.

A file may begin with `base = "<preset or file>"` and then holds only what differs from it.
"""

from __future__ import annotations

import copy
import dataclasses
import difflib
import re
import tomllib
import typing
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import tomli_w

from apex_acer.config import (
    SETTINGS,
    AlgorithmConfig,
    ConfigError,
    OnPolicyConfig,
    ReplayConfig,
    RunConfig,
    UnreadConfig,
    imports,
    reading,
    require,
)
from apex_acer.config.checks import field_types
from apex_acer.system import files

T = TypeVar("T")
MAX_BYTES = 1 << 20  # of a run file


def presets() -> dict[str, str]:
    """The names of the presets, in order, and the first comment line of each file."""
    files = [f for f in resources.files("apex_acer.launch").iterdir() if f.name.endswith(".toml")]
    heads = {f.name.removesuffix(".toml"): f.read_text(encoding="utf-8").partition("\n")[0] for f in files}
    return {name: heads[name].lstrip("# ") for name in sorted(heads)}


def preset_text(name: str) -> str:
    """The text of the preset `name`; raises `ConfigError` if there is none."""
    if name not in presets():
        near = difflib.get_close_matches(name, presets(), n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        if re.search(r"-v\d+$", name):
            hint = f"an environment's id goes with one of them, as --environment.id {name}; "
        allowed = f"give a .toml file, the folder of a run or one of {', '.join(presets())}"
        raise ConfigError(f"run: {name!r} is neither a preset nor a file; {hint}{allowed}")
    return resources.files("apex_acer.launch").joinpath(f"{name}.toml").read_text(encoding="utf-8")


def load_run(run: str | Path | RunConfig, **changes: Any) -> RunConfig:
    """The configuration of `run`, with `changes`.

    Args:
        run: a preset's name, the path of a run file or of a run's folder, or a configuration.
        **changes: keys as in a run file whose `base` is `run`: `seed=1, stop={"env_steps": 2000}`. A section is either a
            dict, whose missing keys keep their values, or a dataclass (`StopConfig(…)`). None removes a value.

    Raises `ConfigError` with one line that names the run and the key.
    """
    if isinstance(run, RunConfig) and not changes:
        return run
    source = "configuration" if isinstance(run, RunConfig) else str(run)
    with reading(source):
        base = to_dict(run) if isinstance(run, RunConfig) else _load(source, ())
        return from_dict(over(base, changes), source)


def with_algorithm(config: RunConfig, name: str) -> RunConfig:
    """`config` with the algorithm `name`, not checked against the other sections: flags may still change these."""
    data = over(to_dict(config), {"algorithm": {"name": name}})
    made = copy.copy(config)
    object.__setattr__(made, "algorithm", _algorithm_settings(data["algorithm"], "", import_modules=True))
    object.__setattr__(made, "replay", _build(ReplayConfig, data.get("replay", {}), "replay.", ""))
    return made


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
    values = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    if isinstance(config, UnreadConfig):
        values |= values.pop("others")
    return {name: _plain(value) for name, value in values.items() if value is not None}


def flat(config: RunConfig) -> dict[str, Any]:
    """The values of a configuration by dotted key, the elements of a list joined by blanks; without those that are None."""
    return dict(_leaves(to_dict(config), ""))


def from_dict(data: Mapping[str, Any], source: str = "", *, import_modules: bool = True) -> RunConfig:
    """A `RunConfig` from nested dicts; raises `ConfigError` for unknown keys and values of another type.

    The settings of a user's own algorithm become an `UnreadConfig` unless `import_modules` allows to import its module.
    """
    where = f"{source}: " if source else ""
    section = data.get("algorithm")
    if isinstance(section, Mapping):
        data = {**data, "algorithm": _algorithm_settings(section, where, import_modules)}
    return _build(RunConfig, data, "", where)


def short_keys(keys: Collection[str]) -> dict[str, str]:
    """The last word of each dotted key, or the whole key if several keys have that word."""
    words = Counter(key.rpartition(".")[2] for key in keys)
    return {key: key if words[key.rpartition(".")[2]] > 1 else key.rpartition(".")[2] for key in keys}


def short_text(value: Any) -> str:
    """A short text for a value: the elements of a tuple joined by `+`; the name of an absolute path."""
    text = "+".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
    return Path(text).name if text.startswith("/") else text


def _leaves(data: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in data.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, " ".join(map(str, value)) if isinstance(value, list) else value


def _load(run: str, above: tuple[str, ...]) -> dict[str, Any]:
    """The keys of a preset, file or run's folder and of its bases; `above` are the runs that it is a base of."""
    require(run not in above, "base", run, f"{' and '.join(above)} cannot be built on each other")
    path = Path(run)
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
    without_replay = isinstance(name, str) and issubclass(SETTINGS.get(name, AlgorithmConfig), OnPolicyConfig)
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
        return files.read(path, MAX_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigError(f"{path}: {reason}; give a run file or a preset") from None


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return to_dict(value)
    return list(value) if isinstance(value, tuple) else value


def _algorithm_settings(section: Mapping[str, Any], where: str, import_modules: bool) -> AlgorithmConfig:
    name = section.get("name", RunConfig().algorithm.name)
    if not (import_modules or name in list(SETTINGS)):
        common = {field.name for field in dataclasses.fields(AlgorithmConfig)}
        others = {key: value for key, value in section.items() if key not in common}
        section = {key: value for key, value in section.items() if key in common} | {"others": others}
        return _build(UnreadConfig, section, "algorithm.", where)
    try:
        cls = imports.algorithm_settings(name)
    except ConfigError as error:
        raise ConfigError(f"{where}{error}") from error
    return _build(cls, {**section, "name": name}, "algorithm.", where)


def _build(cls: type[T], data: Mapping[str, Any], prefix: str, where: str) -> T:
    hints = field_types(cls)
    for key in data:
        if key not in hints:
            near = difflib.get_close_matches(key, hints, n=1)
            hint = f"did you mean {prefix}{near[0]}?" if near else f"allowed: {', '.join(hints)}"
            raise ConfigError(f"{where}unknown key {prefix}{key}; {hint}")
    values = {key: _convert(hints[key], value, prefix + key, where) for key, value in data.items()}
    try:
        return cls(**values)
    except ConfigError as error:
        raise ConfigError(f"{where}{error}") from None


def _convert(hint: Any, value: Any, key: str, where: str) -> Any:
    if not dataclasses.is_dataclass(hint) or isinstance(value, typing.cast("type[Any]", hint)):
        return value
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where}{key}: {value!r} is not a table; write [{key}]")
    return _build(typing.cast("type[Any]", hint), value, f"{key}.", where)
