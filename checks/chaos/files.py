"""Files that are not what their names say, each with a way to do harm."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

from apex_acer.actor.policy import Policy
from apex_acer.config import RunConfig
from apex_acer.networks.metadata import FORMAT, describe
from apex_acer.networks.weights import METADATA, named_tensors, pack
from apex_acer.protocol.specification import EnvironmentSpec
from apex_acer.storage import checkpoint
from tests.runs import BOX, CARTPOLE, tiny_run

CONFIG, CONTINUOUS = tiny_run(), tiny_run(algorithm__name="sac", environment__id="Pendulum-v1")


class Opened:
    """Unpickling it leaves a mark."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self._mark,)


def good_weights(seed: int = 0, *, continuous: bool = False) -> bytes:
    """A weights file, of discrete or continuous actions."""
    torch.manual_seed(seed)
    policy = Policy(*_subject(continuous))
    tensors = named_tensors(policy.network, "network") | named_tensors(policy.network, "average")
    return pack({name: tensor.clone() for name, tensor in tensors.items()}, good_metadata(continuous=continuous))


def good_metadata(*, continuous: bool = False) -> dict[str, Any]:
    """What `good_weights` says of itself."""
    return describe(*_subject(continuous), env_steps=100, updates=5)


def _subject(continuous: bool) -> tuple[RunConfig, EnvironmentSpec]:
    return (CONTINUOUS, BOX) if continuous else (CONFIG, CARTPOLE)


def with_metadata(metadata: Any, *, continuous: bool = False) -> bytes:
    """`good_weights` that say something else of themselves; a text stands as it is."""
    header, data = split(good_weights(continuous=continuous))
    text = metadata if isinstance(metadata, str) else json.dumps(metadata)
    return safetensors(header | {"__metadata__": {METADATA: text}}, data)


def split(file: bytes) -> tuple[dict[str, Any], bytes]:
    """A safetensors file's header and data."""
    (length,) = struct.unpack("<Q", file[:8])
    return json.loads(file[8 : 8 + length]), file[8 + length :]


def safetensors(header: Any, data: bytes = b"") -> bytes:
    """A safetensors file of any header, which may be a text."""
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    return struct.pack("<Q", len(text)) + text + data


def tensor(dtype: str, shape: list[int], start: int, end: int) -> dict[str, Any]:
    """A header's entry."""
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def renamed_files(mark: Path) -> dict[str, bytes]:
    """Formats that run code when opened by their usual readers, which then makes `mark`."""
    zipped, array = io.BytesIO(), io.BytesIO()
    torch.save(Opened(mark), zipped)
    np.save(array, np.array([Opened(mark)], dtype=object), allow_pickle=True)
    return {"pickle": pickle.dumps(Opened(mark)), "torch": zipped.getvalue(), "numpy": array.getvalue()}


def lying_headers() -> dict[str, bytes]:
    """Safetensors files whose headers promise what is not there."""
    header, data = split(good_weights())
    name = next(key for key in header if key.startswith("network."))
    start, end = header[name]["data_offsets"]
    metadata, eight = {"__metadata__": header["__metadata__"]}, tensor("F32", [2], 0, 8)

    def instead(**changes: Any) -> bytes:
        return safetensors(header | {name: header[name] | changes}, data)

    return {
        "length beyond the file": struct.pack("<Q", 2**20) + b"{}",
        "length beyond memory": struct.pack("<Q", 2**63 - 1) + b"{}",
        "no length": b"\x01\x02",
        "empty header": safetensors(""),
        "header a list": safetensors([]),
        "header deeply nested": safetensors("[" * 100_000),
        "header nested in a name": safetensors('{"x":' * 100_000),
        "header not UTF-8": struct.pack("<Q", 4) + b'{"\xff"',
        "offsets overlap": safetensors(metadata | {"a": eight, "b": tensor("F32", [2], 4, 12)}, bytes(12)),
        "offsets negative": instead(data_offsets=[-8, end - start - 8]),
        "offsets beyond the file": instead(data_offsets=[start, end + 2**40]),
        "offsets beyond 64 bits": instead(data_offsets=[start, 2**70]),
        "hole": safetensors(metadata | {"a": tensor("F32", [2], 8, 16)}, bytes(16)),
        "shape negative": instead(shape=[-1, -4]),
        "shape beyond memory": safetensors(metadata | {"a": tensor("F32", [2**31, 2**31, 4], 0, 8)}, bytes(8)),
        "shape beyond memory but empty": safetensors(metadata | {"a": tensor("F32", [2**40, 0, 2**40], 0, 0)}),
        "type unknown": instead(dtype="OBJECT"),
        "type without a name in torch": safetensors(metadata | {"a": tensor("F8_E8M0", [8], 0, 8)}, bytes(8)),
        "complex type": safetensors(metadata | {"a": tensor("C64", [1], 0, 8)}, bytes(8)),
        "no metadata": safetensors({key: header[key] for key in header if key != "__metadata__"}, data),
        "metadata a list": safetensors(header | {"__metadata__": []}, data),
        "metadata nested": safetensors(header | {"__metadata__": {METADATA: {}}}, data),
        "no tensors": safetensors(metadata),
        "cut": good_weights()[:-1],
        "more": good_weights() + b"\0",
    }


def wrong_tensors() -> dict[str, bytes]:
    """Weights files whose tensors are no network's."""
    header, data = split(good_weights())
    name = next(key for key in header if key.startswith("network."))
    entry = header[name]
    start, end = entry["data_offsets"]

    def named(other: str) -> bytes:
        return safetensors({(other if key == name else key): header[key] for key in header}, data)

    return {
        "not a number": safetensors(
            header, data[:start] + struct.pack("<f", float("nan")) * ((end - start) // 4) + data[end:]
        ),
        "integers": safetensors(header | {name: entry | {"dtype": "I32"}}, data),
        "a tensor renamed": named("x"),
        "a tensor on two lines": named("network.a\nb"),
    }


def wrong_metadata() -> dict[str, bytes]:
    """Weights files that say odd things of themselves."""
    good = good_metadata()

    def config(section: str, **changes: Any) -> dict[str, Any]:
        return good | {"config": good["config"] | {section: good["config"][section] | changes}}

    def spec(**changes: Any) -> dict[str, Any]:
        return good | {"spec": good["spec"] | changes}

    said: dict[str, Any] = {
        "a number": 5,
        "nested too deeply": "[" * 100_000,
        "a number too long": "9" * 10_000,
        "not a number": json.dumps(good)[:-1] + ', "x": NaN}',
        "no format": {key: good[key] for key in good if key != "format"},
        "format of tomorrow": good | {"format": FORMAT + 1},
        "no config": {key: good[key] for key in good if key != "config"},
        "config a list": good | {"config": [1]},
        "config with another key": good | {"config": good["config"] | {"surprise": 1}},
        "config with a key on two lines": good | {"config": good["config"] | {"two\nlines": 1}},
        "section a number": good | {"config": good["config"] | {"network": 1}},
        "algorithm unknown": config("algorithm", name="os:system"),
        "wrapper a list": config("environment", wrappers=[["os:system"]]),
        "kwargs nested too deeply": config("environment", kwargs="[" * 100_000),
        "torso of a module that prints": config("network", torso="this:d"),  # once it is imported
        "torso a function that ends the program": config("network", torso="os:abort"),
        "torso a class that is none": config("network", torso="subprocess:Popen"),
        "torso a module of torch's": config("network", torso="torch.nn:Linear"),
        "widths of text": config("network", hidden_sizes=["x"]),
        "widths beyond memory": config("network", hidden_sizes=[10**6, 10**6]),
        "width beyond anything": config("network", hidden_sizes=[10**30]),
        "a memory beyond memory": config("network", lstm=10**7),
        "rate beyond a float": config("optimizer", learning_rate=10**400),
        "no spec": {key: good[key] for key in good if key != "spec"},
        "spec empty": good | {"spec": {}},
        "spec with a key on two lines": spec(**{"two\nlines": 1}),
        "plane of text": spec(plane_shape=["4"]),
        "plane negative": spec(plane_shape=[-4]),
        "plane beyond memory": spec(plane_shape=[10**12]),
        "plane beyond 64 bits": spec(plane_shape=[2**63]),
        "actions none": spec(actions={"n": 0, "start": 0}),
        "actions beyond memory": spec(actions={"n": 10**12, "start": 0}),
        "actions a flag": spec(actions={"n": True, "start": 0}),
        "stack beyond memory": spec(stack=10**12),
        "observations of an unknown type": spec(dtype="object"),
        "channels a number": spec(channels_last=5),
    }
    return {f"says {name}": with_metadata(metadata) for name, metadata in said.items()} | wrong_boxes()


def wrong_boxes() -> dict[str, bytes]:
    """Weights files of a policy with continuous actions that say odd things of these."""
    good = good_metadata(continuous=True)
    actions = good["spec"]["actions"]
    said: dict[str, Any] = {
        "none": {},
        "choices": {"n": 2, "start": 0},
        "of another number": actions | {"low": [-1.0], "high": [1.0], "given_shape": [1]},
        "of no numbers": actions | {"low": [], "high": [], "given_shape": [0]},
        "without a bound": {name: actions[name] for name in ("low", "given_shape", "given_dtype")},
        "bounds of text": actions | {"low": ["-1", "0"]},
        "bounds crossed": actions | {"low": [4.0, 0.0]},
        "bounds beyond a float": actions | {"high": [3.0, 10**400]},
        "shape beyond memory": actions | {"given_shape": [10**9, 10**9]},
        "shape beyond 64 bits": actions | {"given_shape": [2**63, 2]},
        "type on two lines": actions | {"given_dtype": "float\n32"},
    }
    return {
        f"says actions {name}": with_metadata(good | {"spec": good["spec"] | {"actions": box}}, continuous=True)
        for name, box in said.items()
    }


def run_files() -> dict[str, bytes]:
    """Run files of which each is refused."""
    return {
        "not UTF-8": b"seed = 1 # \xff",
        "nested too deeply": b"seed = " + b"[" * 100_000,
        "tables nested too deeply": b"[" + b"a." * 5_000 + b"a]\n",
        "a number too long": b"seed = " + b"9" * 10_000,
        "a number beyond a float": b"[algorithm]\ngamma = 1" + b"0" * 400,
        "not a number": b"[algorithm]\ngamma = nan",
        "a date": b"seed = 2020-01-01",
        "a key on two lines": b'"two\\nlines" = 1',
        "a section a number": b"network = 1",
        "a base a number": b"base = 5",
        "a base that is not there": b'base = "absent.toml"',
        "a base with a null": b'base = "x\\u0000.toml"',
        "a base beyond a path": b'base = "' + b"x" * 5000 + b'.toml"',
        "a base that is a device": b'base = "/dev/zero"',
        "kwargs nested too deeply": b"[environment]\nkwargs = '" + b"[" * 100_000 + b"'",
        "a wrapper that is a command": b'[environment]\nwrappers = ["os; rm:x"]',
        "a key twice": b"seed = 1\nseed = 2",
    }


CONTENTS: dict[str, Any] = {"tensors.safetensors": good_weights(), "snapshot": b"", "replay.obs": np.arange(50.0)}
STATE = {"env_steps": 1234, "wall_s": 5.5, "feed": {"fresh": [3, 4], "pace": {"credit": 2.25}}}


def good_checkpoint(folder: Path) -> Path:
    """A checkpoint in the run's folder `folder`."""
    folder.mkdir(exist_ok=True)
    return checkpoint.write(folder, 5, STATE, CONTENTS)


def wrong_manifests() -> dict[str, Any]:
    """What each makes of a good checkpoint's manifest: other values, or a text that stands as it is."""

    def files(**facts: Any) -> Any:
        return lambda manifest: manifest | {"files": manifest["files"] | facts}

    return {
        "nested too deeply": lambda manifest: "[" * 100_000,
        "a number too long": lambda manifest: '{"format": ' + "9" * 10_000 + "}",
        "a file outside": lambda manifest: files(**{"../5/snapshot": manifest["files"]["snapshot"]})(manifest),
        "a file of the system": files(**{"/etc/hostname": [5, 5]}),
        "a file on two lines": files(**{"two\nlines": [5, 5]}),
        "a length beyond memory": files(**{"replay.obs": [10**15, 5]}),
        "a length negative": files(**{"replay.obs": [-1, 5]}),
    }


def wrong_checkpoints(folder: Path) -> dict[str, Path]:
    """Checkpoints of which each is refused, in folders within `folder`."""
    paths = {name: good_checkpoint(folder / name.replace(" ", "_")) for name in CHECKPOINTS}
    for name, change in wrong_manifests().items():
        manifest = paths[name] / checkpoint.MANIFEST
        manifest.write_bytes(signed(change(json.loads(manifest.read_text()))))
    for name, file in {"a manifest that is a pipe": checkpoint.MANIFEST, "a file that is a pipe": "snapshot"}.items():
        (paths[name] / file).unlink()
        os.mkfifo(paths[name] / file)
    holes = paths["a file beyond memory"]
    manifest = json.loads((holes / checkpoint.MANIFEST).read_text())
    manifest["files"]["replay.obs"] = [10**12, 0]
    (holes / checkpoint.MANIFEST).write_bytes(signed(manifest))
    os.truncate(holes / "replay.obs", 10**12)
    return paths


def signed(manifest: Any) -> bytes:
    """A manifest whose checksum is right; a text stands as it is."""
    if isinstance(manifest, str):
        return manifest.encode()
    manifest.pop("checksum")
    checksum = zlib.crc32(json.dumps(manifest, sort_keys=True).encode())
    return json.dumps(manifest | {"checksum": checksum}).encode()


CHECKPOINTS = (*wrong_manifests(), "a file beyond memory", "a manifest that is a pipe", "a file that is a pipe")


def write_all(folder: Path, files: dict[str, bytes], suffix: str) -> dict[str, Path]:
    """`files` by name, each in a file of its own."""
    folder.mkdir(exist_ok=True)
    paths = {name: folder / f"{name.replace(' ', '_')}{suffix}" for name in files}
    for name, path in paths.items():
        path.write_bytes(files[name])
    return paths
