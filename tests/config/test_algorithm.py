"""An algorithm of one's own that cannot be used is said in one line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from apex_acer.algorithms import algorithm_class
from apex_acer.algorithms.acer.acer import Acer
from apex_acer.algorithms.acer.settings import AcerConfig
from apex_acer.algorithms.algorithm import Algorithm
from apex_acer.config import ALGORITHMS, AlgorithmConfig, RunConfig, algorithm_settings, settings_classes
from apex_acer.config.runfile import dump_run, from_dict, parse_run, to_dict
from apex_acer.manager.preparation import prepare
from tests.conftest import config_error


class Unfinished(Algorithm):
    """Defines nothing."""


class WithPlainSettings(Acer):
    settings_class = dict  # type: ignore[assignment]


class WithoutDecorator(Acer):
    class settings_class(AcerConfig):
        more: int = 3


class WithNoDefault(Acer):
    @dataclass(frozen=True, kw_only=True)
    class settings_class(AcerConfig):
        more: int


class WithWrongDefault(Acer):
    @dataclass(frozen=True)
    class settings_class(AcerConfig):
        more: int = "3"  # type: ignore[assignment]


class ForNoActions(Acer):
    @dataclass(frozen=True)
    class settings_class(AcerConfig):
        actions = "box"


@dataclass(frozen=True)
class MoreSettings(AcerConfig):
    more: int = 3


class More(Acer):
    settings_class = MoreSettings


@dataclass(frozen=True)
class FactsSettings(AcerConfig):
    recurrent = False
    has_softmax = False
    shares_updates = False


class Facts(Acer):
    settings_class = FactsSettings


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("no_such_module:X", "cannot be imported (ModuleNotFoundError: No module named 'no_such_module')"),
        (f"{__name__}:Absent", "is not a class of the module; give module:class"),
        ("json:dumps", "give module:class of an apex_acer.algorithms.algorithm.Algorithm"),
        (f"{__name__}:Unfinished", "have it define agent_class, loss"),
        (f"{__name__}:WithPlainSettings", "a frozen dataclass that derives from AlgorithmConfig"),
        (f"{__name__}:WithoutDecorator", "a frozen dataclass that derives from AlgorithmConfig"),
        (f"{__name__}:WithNoDefault", "could not be made; TypeError: "),
        (f"{__name__}:ForNoActions", "have the actions of its settings_class be 'Discrete', 'Box' or '' for both"),
    ],
)
def test_an_algorithm_that_cannot_be_used_is_said_in_one_line(name: str, part: str) -> None:
    message = config_error(lambda: algorithm_settings(name))
    assert message.startswith(f"algorithm.name: '{name}' ")
    assert part in message


def test_a_default_of_another_type_is_named() -> None:
    message = config_error(lambda: algorithm_settings(f"{__name__}:WithWrongDefault"))
    assert message == "algorithm.more: '3' is not allowed; give int"


def test_each_algorithm_has_its_own_settings_and_one_may_derive_from_ours() -> None:
    assert {name: algorithm_class(name).settings_class for name in ALGORITHMS} == settings_classes()
    name = f"{__name__}:More"
    assert algorithm_settings(name) is MoreSettings
    assert algorithm_class(name) is More
    message = config_error(lambda: prepare(RunConfig(algorithm=AlgorithmConfig(name=name)), 0.0))
    assert message.endswith(f"'AlgorithmConfig' is not allowed; the settings of {name} are MoreSettings")


def test_a_run_file_has_the_settings_of_an_algorithm_of_one_s_own() -> None:
    text = f'base = "cartpole"\n[algorithm]\nname = "{__name__}:More"\n'
    config = parse_run(f"{text}more = 7", "mine")
    assert config.algorithm == MoreSettings(name=f"{__name__}:More", more=7)
    assert parse_run(dump_run(config), "x") == from_dict(to_dict(config)) == config
    said = config_error(lambda: parse_run(f"{text}mores = 7", "mine"))
    assert said == "mine: unknown key algorithm.mores; did you mean algorithm.more?"


@pytest.mark.parametrize(
    ("changes", "key", "problem"),
    [
        ({"network": {"lstm": 8}}, "network.lstm: 8", "has no memory; give 0"),
        ({"actors": {"temperature_low": 0.5}}, "actors.temperature_low: 0.5", "has no softmax; give 1"),
        ({"engine": "ray", "learner": {"count": 2}}, "learner.count: 2", "has one learner; give 1"),
    ],
)
def test_a_run_that_does_not_suit_the_facts_about_an_algorithm_is_refused(
    changes: dict[str, Any], key: str, problem: str
) -> None:
    name = f"{__name__}:Facts"
    assert from_dict({"algorithm": {"name": name}}).algorithm == FactsSettings(name=name)
    message = config_error(lambda: from_dict({"algorithm": {"name": name}, **changes}))
    assert message == f"{key} is not allowed; {name} {problem}"
