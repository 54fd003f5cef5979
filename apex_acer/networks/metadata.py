"""The metadata of a weights file: configuration, environment specification, versions and score. Torch-free.

It has neither times nor folders, so that equal runs write equal bytes.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from apex_acer import __version__
from apex_acer.config import ConfigError, EvaluationConfig, NetworkConfig, RunConfig, reading
from apex_acer.config.runfile import dump_run, from_dict, to_dict
from apex_acer.protocol.specification import EnvironmentSpec

METADATA = "apex_acer"  # the key of the metadata
FORMAT = 3
SIZES = "hidden_sizes", "lstm", "normalise", "layer_norm"  # keys of `[network]` that shape its tensors
PACKAGES = ("torch", "gymnasium", "ale-py")


def describe(
    config: RunConfig, spec: EnvironmentSpec, score: Mapping[str, Any] | None = None, **facts: Any
) -> dict[str, Any]:
    """The metadata of a run's weights, with its newest `score`, if it has one, and other `facts`."""
    run = to_dict(dataclasses.replace(config, out="", load=""))
    written = {"format": FORMAT, "versions": dict(_versions()), "score": score}
    return written | {"config": run, "spec": dataclasses.asdict(spec), **facts}


def make_score(row: Mapping[str, float], settings: EvaluationConfig, env_steps: int) -> dict[str, Any]:
    """The metadata's score: an evaluation's metrics (docs/metrics.md), its settings, and the env steps of its weights."""
    metrics = {name: value for name, value in row.items() if name != "eval_seconds"}
    return {**metrics, "episodes": settings.episodes, "greedy": settings.greedy, "env_steps": env_steps}


def unpack_metadata(data: bytes) -> dict[str, Any]:
    """The metadata in the bytes of a weights file; raises `ConfigError` if this program did not write it."""
    length = int.from_bytes(data[:8], "little")
    try:
        header = json.loads(data[8 : 8 + length])
        metadata = json.loads(header["__metadata__"][METADATA], parse_constant=_refuse)
    except (KeyError, TypeError, ValueError, RecursionError):
        metadata = None
    if not isinstance(metadata, dict):
        raise ConfigError("weights: no apex_acer metadata")
    return metadata


def weights_hint(path: Path) -> str:
    """The end of an error message for a `path` that is no weights file."""
    weights = path / "weights.safetensors"  # if `path` is a run's folder
    return f"give {weights}" if weights.is_file() else "give a weights file"


def read_metadata(path: Path) -> dict[str, Any]:
    """The metadata of the weights file `path`, without reading its tensors; raises `ConfigError`."""
    with reading(str(path)), path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        header = file.read(length) if length <= size else b""
        try:
            ends = [tensor["data_offsets"][1] for name, tensor in json.loads(header).items() if name != "__metadata__"]
            whole = 8 + length + max(ends, default=0) == size
        except (AttributeError, LookupError, TypeError, ValueError, RecursionError):
            whole = False
        if not whole:
            raise ConfigError(f"{path}: not a whole safetensors file; give a file this program wrote")
        try:
            return unpack_metadata(length.to_bytes(8, "little") + header)
        except ConfigError as error:
            raise ConfigError(
                f"{path}: {str(error).removeprefix('weights: ')}; give a file this program wrote"
            ) from None


def require_format(metadata: Mapping[str, Any]) -> None:
    """Raises `ConfigError` if this program cannot read the format of `metadata`."""
    if metadata.get("format") != FORMAT:
        raise ConfigError(f"format {metadata.get('format')!r}; this program reads format {FORMAT}")


def require_match(metadata: Mapping[str, Any], config: RunConfig, spec: EnvironmentSpec) -> None:
    """Raises `ConfigError` if `metadata` shows that its weights do not fit a run's networks."""
    require_format(metadata)
    with reading("its metadata"):
        before, shapes = metadata["config"], [EnvironmentSpec.from_dict(metadata["spec"]).input_shape, spec.input_shape]
        keys: dict[str, tuple[Any, Any]] = {"algorithm.name": (before["algorithm"]["name"], config.algorithm.name)}
        if ":" not in config.network.torso:  # a user's own torso may ignore the sizes
            network, written = to_dict(config.network), to_dict(NetworkConfig()) | before["network"]
            keys |= {f"network.{key}": (written[key], network[key]) for key in SIZES}
            if max(map(len, shapes)) == 1:
                keys["the shape of observations"] = list(shapes[0]), list(shapes[1])
    for key, (value, wanted) in keys.items():
        if value != wanted:
            raise ConfigError(f"{key} is {value!r}, this run's is {wanted!r}")


def written_by(metadata: Mapping[str, Any]) -> str:
    """The end of an error message: the version that wrote the file, if it is not this one."""
    versions = metadata.get("versions")
    writer = versions.get("apex_acer") if isinstance(versions, dict) else None
    return "" if writer in (None, __version__) else f"; apex_acer {writer} wrote it, this is {__version__}"


def score_text(score: Mapping[str, Any] | None) -> str:
    """A score as one line of text."""
    if score is None:
        return "none"
    how = "greedy" if score["greedy"] else "sampled"
    figures = f"mean {score['eval_return']:.2f}, std {score['eval_return_std']:.2f}"
    return f"{figures} of {score['episodes']} {how} episodes, at {score['env_steps']:,} env steps"


def metadata_text(metadata: Mapping[str, Any]) -> str:
    """Metadata as text: facts and the run file."""
    config = from_dict(metadata["config"], import_modules=False)
    facts = {
        "environment": config.environment.id,
        "score": score_text(metadata["score"]),
        "trained": f"{metadata['env_steps']:,} env steps, {metadata['updates']:,} updates",
        "versions": ", ".join(f"{name} {number}" for name, number in metadata["versions"].items()),
    }
    return "\n".join([*(f"{name:<12} {fact}" for name, fact in facts.items()), "", dump_run(config).rstrip()])


@functools.cache
def _versions() -> Mapping[str, str]:
    packages = {name: importlib.metadata.version(name) for name in PACKAGES}
    return {"apex_acer": __version__, **packages, "python": platform.python_version()}


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")
