"""Whatever a file holds, it is loaded whole or refused with one line, in little memory, and nothing in it is run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE
from typing import Any

import numpy as np
import pytest

from apex_acer.actor.policy import Policy, load_policy
from apex_acer.config import ConfigError
from apex_acer.config.runfile import dump_run, load_run
from apex_acer.protocol.actions import Box, Discrete
from apex_acer.storage import checkpoint
from checks.chaos.files import (
    CHECKPOINTS,
    CONFIG,
    good_checkpoint,
    good_metadata,
    good_weights,
    lying_headers,
    renamed_files,
    run_files,
    with_metadata,
    write_all,
    wrong_checkpoints,
    wrong_metadata,
    wrong_tensors,
)
from checks.chaos.fuzz import Mutator
from tests.programs import report

PROGRAM = """
import json, resource, sys
from pathlib import Path
from apex_acer.storage import checkpoint
from apex_acer.config import ConfigError
from apex_acer.actor.policy import load_policy
from apex_acer.config.runfile import load_run
from apex_acer.networks.weights import read

def whole(path):
    opened = checkpoint.load(Path(path))
    return [opened.read(name) for name in opened.names]

limit = 16 << 30  # of addresses, most of which torch only reserves
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
loaders = {"policy": load_policy, "weights": read, "run": load_run, "checkpoint": whole}
for loader, path in json.load(sys.stdin):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        raised = repr(loaders[loader](path))
    except BaseException as error:
        raised = f"{type(error).__name__}: {error}"
    taken = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    print(json.dumps([raised, taken]), flush=True)
"""
MAX_BYTES = 100e6
PLACES = ("pipe", "sparse", "loop", "absent", "device", "folder")
WEIGHTS = [*renamed_files(Path()), *lying_headers(), *wrong_tensors(), *wrong_metadata(), *PLACES]
READ = (*renamed_files(Path()), *lying_headers(), *PLACES)
RUNS = (*run_files(), "pipe", "sparse", "a name beyond a path")
assert len(WEIGHTS) == len(set(WEIGHTS))

Outcome = tuple[str, int]


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    """What is to be loaded, by loader and name."""
    folder = tmp_path_factory.mktemp("files")
    weights, runs = weights_files(folder / "weights"), run_paths(folder / "runs")
    checkpoints = wrong_checkpoints(folder)
    return (
        {("policy", name): weights[name] for name in WEIGHTS}
        | {("weights", name): weights[name] for name in READ}
        | {("run", name): runs[name] for name in RUNS}
        | {("checkpoint", name): checkpoints[name] for name in CHECKPOINTS}
    )


@pytest.fixture(scope="module")
def outcomes(
    paths: dict[tuple[str, str], Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, str], Outcome]:
    """What loading each raised, and the bytes it took, all in one process."""
    folder = tmp_path_factory.mktemp("good")
    (folder / "weights").write_bytes(good_weights())
    (folder / "run.toml").write_text(dump_run(CONFIG))
    good = {"policy": folder / "weights", "run": folder / "run.toml", "checkpoint": good_checkpoint(folder)}
    listed = [*good.items(), *((loader, path) for (loader, _), path in paths.items())]
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True) as process:
        late = threading.Timer(90, process.kill)  # one that is never done loading
        late.start()
        output, errors = process.communicate(json.dumps([(loader, str(path)) for loader, path in listed]))
        late.cancel()
    told = [(raised, taken) for raised, taken in map(json.loads, output.splitlines())]
    assert not [raised for raised, _ in told[: len(good)] if "Error" in raised]
    told += [("the process ended: " + errors[-500:], 0)] * (len(listed) - len(told))
    return dict(zip(paths, told[len(good) :], strict=True))


def test_what_is_not_whole_is_refused_in_one_line_and_little_memory(
    outcomes: dict[tuple[str, str], Outcome], paths: dict[tuple[str, str], Path]
) -> None:
    assert len(outcomes) == len(paths)
    # though no policy's
    valid = {("weights", name) for name in ("no tensors", "complex type", "shape beyond memory but empty")}
    wrong = []
    for (loader, name), (raised, taken) in outcomes.items():
        named = str(paths[loader, name]) if loader != "run" else ""
        refused = raised.startswith("ConfigError: ") and raised.isprintable() and named in raised
        if (refused == ((loader, name) in valid)) or taken >= MAX_BYTES:
            wrong.append(f"{loader} {name}: {raised[:200]} ({taken} bytes)")
    assert not wrong, "\n".join(wrong)
    assert not (paths["policy", "pickle"].parent / "mark").exists(), "a file was run"


# ── weights ──


def weights_files(folder: Path) -> dict[str, Path]:
    """Files that are none, and what is there but no file, or larger than any."""
    paths: dict[str, Path] = {}
    for files in (renamed_files(folder / "mark"), lying_headers(), wrong_tensors(), wrong_metadata()):
        paths |= write_all(folder, files, ".safetensors")
    places = {name: folder / name for name in ("pipe", "sparse", "loop", "absent")}
    os.mkfifo(places["pipe"])
    places["loop"].symlink_to(places["loop"])
    places["sparse"].write_bytes(good_weights())
    os.truncate(places["sparse"], 10**12)
    return paths | places | {"device": Path("/dev/zero"), "folder": folder}


def weights_outcome(path: Path) -> str:
    """`refused` or `loaded`; anything else is an error."""
    policy, refusal = attempt(load_policy, path)
    if refusal:
        assert refusal.startswith(f"{path}: ")
        return "refused"
    assert_acts(policy)
    return "loaded"


def attempt(load: Callable[[str], Any], path: Path) -> tuple[Any, str]:
    """What was loaded, or why it was not."""
    try:
        return load(str(path)), ""
    except ConfigError as error:
        refusal = str(error)
    assert refusal.isprintable(), repr(refusal)
    return None, refusal


def assert_acts(policy: Policy) -> None:
    spec = policy.spec
    actions = policy.act(np.zeros((3, *spec.obs_shape), spec.dtype), greedy=False)
    if isinstance(spec.actions, Discrete):
        assert actions.shape == (3,)
        assert not spec.actions.refusal(actions - spec.actions.start)
    else:
        assert isinstance(spec.actions, Box)
        assert actions.shape == (3, *spec.actions.given_shape)
        numbers = actions.reshape(3, -1)
        assert ((spec.actions.low <= numbers) & (numbers <= spec.actions.high)).all()


def fuzz_weights(path: Path, seed: int, count: int, *, continuous: bool = False) -> Counter[str]:
    """Loads injured weights files: half in their bytes, half in what they say of themselves."""
    mutator, outcomes = Mutator(seed), Counter[str]()
    good = good_weights(continuous=continuous)
    header_bytes = 8 + int.from_bytes(good[:8], "little")
    for number in range(count):
        if number % 2:
            injured = with_metadata(mutator.value(good_metadata(continuous=continuous)), continuous=continuous)
        elif number % 4:
            injured = mutator.data(good)
        else:
            injured = mutator.data(good[:header_bytes]) + good[header_bytes:]
        path.write_bytes(injured)
        outcomes[weights_outcome(path)] += 1
    return outcomes


# ── run files ──


def run_paths(folder: Path) -> dict[str, Path]:
    """Run files that are none, and what is there but no file."""
    paths = write_all(folder, run_files(), ".toml")
    pipe, sparse = folder / "pipe.toml", folder / "sparse.toml"
    os.mkfifo(pipe)
    sparse.touch()
    os.truncate(sparse, 10**12)
    return paths | {"pipe": pipe, "sparse": sparse, "a name beyond a path": Path("x" * 5000)}


def fuzz_runs(path: Path, seed: int, count: int) -> Counter[str]:
    """Loads injured run files."""
    mutator, outcomes = Mutator(seed), Counter[str]()
    good = dump_run(CONFIG).encode()
    for _ in range(count):
        path.write_bytes(mutator.data(good))
        outcomes[run_outcome(path)] += 1
    return outcomes


def run_outcome(path: Path) -> str:
    """`refused` or `loaded`; anything else is an error."""
    config, refusal = attempt(load_run, path)
    if refusal:
        return "refused"
    path.write_text(dump_run(config), encoding="utf-8")
    assert load_run(str(path)) == config
    return "loaded"


# ── checkpoints ──


def whole_checkpoint(path: str) -> tuple[Any, dict[str, bytes]]:
    opened = checkpoint.load(Path(path))
    return opened.state, {name: opened.read(name) for name in opened.names}


def fuzz_checkpoints(folder: Path, seed: int, count: int) -> Counter[str]:
    """Opens a checkpoint with one of its files injured; what is opened must be what was written."""
    mutator, outcomes = Mutator(seed), Counter[str]()
    path = good_checkpoint(folder)
    written = whole_checkpoint(str(path))
    good = {file: file.read_bytes() for file in path.iterdir()}
    for number in range(count):
        file = path / checkpoint.MANIFEST if number % 2 else mutator.random.choice(sorted(good))
        file.write_bytes(mutator.data(good[file]))
        opened, refusal = attempt(whole_checkpoint, path)
        assert refusal or opened == written, file.read_bytes()
        outcomes["refused" if refusal else "loaded"] += 1
        file.write_bytes(good[file])
    return outcomes


@pytest.mark.parametrize("weights", [100, pytest.param(20_000, marks=pytest.mark.chaos)])
@pytest.mark.timeout(3600)
def test_injured_files_are_refused_or_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str], weights: int) -> None:
    others, path = 4 * weights if weights < 1000 else 50_000, tmp_path / "weights.safetensors"
    found = {
        "weights": fuzz_weights(path, seed=0, count=weights),
        "continuous": fuzz_weights(path, seed=1, count=weights, continuous=True),
        "run": fuzz_runs(tmp_path / "run.toml", seed=0, count=others),
        "checkpoints": fuzz_checkpoints(tmp_path / "run", seed=0, count=others),
    }
    report(capsys, "injured files", **found)
    assert min(*found["weights"].values(), *found["continuous"].values()) > weights / 30
    assert min(found["run"].values()) > others / 100
    assert found["checkpoints"]["refused"] > others / 2
