"""The flags of a verb: one for each field of its dataclass, and the help that lists them."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import itertools
import textwrap
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

from apex_acer.config import AlgorithmConfig
from apex_acer.config.algorithm import algorithm_settings, settings_classes
from apex_acer.config.checks import field_types

ALIASES = {
    "--actors.count": "--actors",
    "--logging.level": "--log-level",
    "--stop.env-steps": "--steps",
    "--stop.minutes": "--minutes",
    "--stop.at-return": "--until",
}
FORMS: dict[Any, str] = {int: "N", float: "X", str: "TEXT", bool: "True|False", types.NoneType: "None"}


class Flag(NamedTuple):
    """What a flag sets, and what it takes."""

    cls: type
    """The dataclass that has the field."""
    key: str
    """Dotted path of the field, from the verb's dataclass on."""
    hint: Any
    """Type of the field."""
    default: Any
    form: str = ""
    """Form of one value of a flag that may be given several times; empty: the last one counts."""
    switch: bool | None = None
    """The value that the flag itself stands for; None: values follow it."""

    @property
    def item(self) -> Any:
        """Type of each value."""
        return typing.get_args(self.hint)[0] if typing.get_origin(self.hint) is tuple else self.hint

    @property
    def takes_all(self) -> bool:
        """Whether it takes all values up to the next flag."""
        return self.item is not self.hint and not self.form


def place(name: str, default: Any = dataclasses.MISSING) -> Any:
    """A field for an argument without a flag; help calls it `name`."""
    return dataclasses.field(default=default, metadata={"place": name})


def repeated(form: str) -> Any:
    """A field whose flag may be given several times, each time with one value of this `form`."""
    return dataclasses.field(default=(), metadata={"form": form})


def places_of(cls: type) -> dict[str, dataclasses.Field[Any]]:
    """The fields for arguments without a flag, by their name in help."""
    return {each.metadata["place"]: each for each in dataclasses.fields(cls) if "place" in each.metadata}


def flags_of(
    cls: type, defaults: Mapping[str, Any] | None = None, prefix: str = "--", path: str = ""
) -> dict[str, Flag]:
    """The flags of a dataclass and of the dataclasses within it.

    Args:
        cls: the dataclass of a verb. A dataclass in it is a section without a prefix: its keys are flags of the verb.
        defaults: values by name, nested like the fields; without them the algorithm's flags are those of every algorithm.
        prefix: beginning of each flag's name.
        path: beginning of each flag's key.
    """
    flags: dict[str, Flag] = {}
    for field in dataclasses.fields(cls):
        hint, default = field_types(cls)[field.name], (defaults or {}).get(field.name, field.default)
        if dataclasses.is_dataclass(hint):
            values = default if isinstance(default, Mapping) else None
            inner = f"{prefix}{field.name}." if path else prefix
            for section in _classes(hint, values):
                flags |= flags_of(section, values, inner, f"{path}{field.name}.")
        elif "place" not in field.metadata:
            name = f"{prefix}{field.name}".replace("_", "-")
            form, switch = field.metadata.get("form", ""), True if hint is bool else None
            flag = Flag(cls, f"{path}{field.name}", hint, default, form, switch)
            flags |= {name: flag, ALIASES.get(name, name): flag}
            if switch and prefix != "--":  # the run file may have it on
                flags[f"{prefix}no-{field.name}".replace("_", "-")] = flag._replace(switch=False)
    return flags


def _classes(hint: Any, values: Mapping[str, Any] | None) -> Iterable[type]:
    if hint is not AlgorithmConfig:
        return [hint]
    return [algorithm_settings(values["name"])] if values else settings_classes().values()


def described(cls: type, flags: Mapping[str, Flag]) -> Iterator[tuple[str, str, Any]]:
    """Names and form, meaning, and default of each argument and of each of the `flags`."""
    for name, field in places_of(cls).items():
        yield name, field_docs(cls).get(field.name, ""), field.default
    for key, named in itertools.groupby(flags.items(), key=lambda item: item[1].key):
        names, (flag, *_) = zip(*named, strict=True)
        form = "" if flag.switch is not None else f" {flag.form or form_of(flag.hint)}"
        yield ", ".join(names) + form, field_docs(flag.cls).get(key.rpartition(".")[2], ""), flag.default


def form_of(hint: Any) -> str:
    """What a value of this type looks like: `N` for a whole number, `X` for any number, `a|b` for words."""
    kinds = typing.get_args(hint)
    if typing.get_origin(hint) is tuple:
        return f"{form_of(kinds[0])} ..."
    if typing.get_origin(hint) is Literal:
        return "|".join(kinds)
    if any(typing.get_origin(kind) is dict for kind in kinds):
        return "JSON"
    return "|".join(map(form_of, kinds)) or FORMS[hint]


@functools.cache
def field_docs(cls: type) -> dict[str, str]:
    """The texts below the fields of a class and of its bases in their source, by field; nothing where there is no source."""
    docs = {}
    for base in reversed(cls.__mro__):
        try:
            source = textwrap.dedent(inspect.getsource(base))
        except (OSError, TypeError):
            continue
        body = typing.cast("ast.ClassDef", ast.parse(source).body[0]).body
        for field, text in itertools.pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                docs[typing.cast("ast.Name", field.target).id] = " ".join(str(text.value.value).split())
    return docs
