"""The card of a weights file: its metadata, with the configuration, the environment's specification and the score.

It holds neither times nor folders, so that equal runs write equal bytes.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import platform
from collections.abc import Mapping
from typing import Any

from apex_acer import __version__
from apex_acer.config import ConfigError, EvaluationConfig, RunConfig
from apex_acer.config.runfile import dump_run, from_dict, to_dict
from apex_acer.protocol.specification import EnvironmentSpec

FORMAT = 3
PACKAGES = ("torch", "gymnasium", "ale-py")


def describe(
    config: RunConfig, spec: EnvironmentSpec, score: Mapping[str, Any] | None = None, **facts: Any
) -> dict[str, Any]:
    """The card: what is needed to rebuild the policy, the newest `score` of its run if there is one, and `facts`."""
    run = to_dict(dataclasses.replace(config, out="", load=""))
    found = {"format": FORMAT, "versions": dict(_versions()), "score": score}
    return found | {"config": run, "spec": dataclasses.asdict(spec), **facts}


def make_score(row: Mapping[str, float], settings: EvaluationConfig, env_steps: int) -> dict[str, Any]:
    """A card's score: an evaluation's metrics (`docs/metrics.md`), its settings, and the env steps of its weights."""
    metrics = {name: value for name, value in row.items() if name != "eval_seconds"}
    return {**metrics, "episodes": settings.episodes, "greedy": settings.greedy, "env_steps": env_steps}


def require_format(card: Mapping[str, Any]) -> None:
    """Raises `ConfigError` if this program cannot read the format of `card`."""
    if card.get("format") != FORMAT:
        raise ConfigError(f"format {card.get('format')!r}; this program reads format {FORMAT}")


def written_by(card: Mapping[str, Any]) -> str:
    """The end of an error message: the version that wrote the file, if it was not this one."""
    versions = card.get("versions")
    writer = versions.get("apex_acer") if isinstance(versions, dict) else None
    return "" if writer in (None, __version__) else f"; apex_acer {writer} wrote it, this is {__version__}"


def score_text(score: Mapping[str, Any] | None) -> str:
    """A card's score in words."""
    if score is None:
        return "none"
    how = "greedy" if score["greedy"] else "sampled"
    figures = f"mean {score['eval_return']:.2f}, std {score['eval_return_std']:.2f}"
    return f"{figures} of {score['episodes']} {how} episodes, at {score['env_steps']:,} env steps"


def card_text(card: Mapping[str, Any]) -> str:
    """A card as text: facts, then the run file."""
    config = from_dict(card["config"], import_modules=False)
    facts = {
        "environment": config.environment.id,
        "score": score_text(card["score"]),
        "trained": f"{card['env_steps']:,} env steps, {card['updates']:,} updates",
        "versions": ", ".join(f"{name} {number}" for name, number in card["versions"].items()),
    }
    return "\n".join([*(f"{name:<12} {fact}" for name, fact in facts.items()), "", dump_run(config).rstrip()])


@functools.cache
def _versions() -> Mapping[str, str]:
    packages = {name: importlib.metadata.version(name) for name in PACKAGES}
    return {"apex_acer": __version__, **packages, "python": platform.python_version()}
