"""Imports point down, and what is foreign stays in its one place."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import apex_acer

ROOT = Path(apex_acer.__file__).parent
LAYERS = (  # top to bottom; a package stands for all of its modules
    ("__main__",),
    ("cli",),
    ("sweep", "report", "runs", "variants", "doctor", "plan", "work", "pieces", "exchange"),
    ("manager", "supervisor"),
    ("preparation",),
    ("console",),
    ("screen", "terminal"),
    ("progress",),
    ("engines",),
    ("actor", "evaluator", "learner", "inbox", "evaluations", "saving", "play", "export"),
    ("feed",),
    (
        "rollout",
        "policy",
        "pictures",
        "environments",
        "environment_check",
        "spaces",
        "replay",
        "sum_tree",
        "pace",
        "ranks",
        "checkpoint",
        "weights",
        "optimizer",
        "gradient",
        "transfer",
        "board",
        "writers",
        "journal",
        "wrappers",
        "result",
        "callbacks",
    ),
    ("algorithms",),
    (
        "device",
        "networks",
        "normalisation",
        "frames",
        "functional",
        "trajectory",
        "messages",
        "metrics",
        "seeds",
        "signals",
        "placement",
        "machine",
        "config",
        "card",
        "runfile",
        "commands",
        "imports",
        "runlog",
        "files",
        "output",
        "path",
        "curves",
        "history",
        "figures",
        "plots",
        "display",
        "statistics",
    ),
)
HEIGHT = {name: -depth for depth, names in enumerate(LAYERS) for name in names}
UPWARD_ALLOWED = {("algorithms", "weights")}  # an algorithm names and loads its own tensors
HOMES = {  # foreign package: where alone it is imported
    "zmq": "engines/local/",
    "msgpack": "engines/local/",
    "ray": "engines/ray/",
    "lz4": "engines/ray/",
    "tensorboard": "cli/dashboard.py",
    "tensorboardX": "board.py",
    "matplotlib": "plots.py",
    "scipy": "statistics.py",
    "av": "display.py",
    "pygame": "display.py",
    "onnxruntime": "export.py",
    "onnxscript": "export.py",
    "pickle": None,
    "cloudpickle": None,
    "dill": None,
}
PLAIN = {"__version__", "IMPORTED_AT"}  # numbers of the package itself
ROLES = {"actor.py", "learner.py", "evaluator.py"}
FILES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py"))


def imports(source: str, package: str) -> Iterator[str]:
    """Dotted names that `source`, a module in `package`, imports anywhere, also inside functions."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


def faults(file: str, source: str) -> list[str]:
    """What `file` imports and must not, in words."""
    own = file.removesuffix(".py").split("/")[0]
    if own == "__init__":
        return []  # the lazy front door names everything
    if own not in HEIGHT:
        return [f"{file} has no place; add {own!r} to a layer of LAYERS in tests/test_layering.py"]
    found = []
    for name in imports(source, ".".join(["apex_acer", *file.split("/")[:-1]])):
        top, *rest = name.split(".")
        if top in HOMES:
            home = HOMES[top]
            if home is None or not file.startswith(home):
                found.append(f"{file} imports {top}; allowed: {home or 'nowhere'}")
        if top != "apex_acer" or not rest or rest[0] in PLAIN:
            continue
        other = apex_acer._HOME.get(rest[0], name).split(".")[1]
        if other not in HEIGHT:
            found.append(f"{file} imports {name}, which has no place in LAYERS")
        elif HEIGHT[other] > HEIGHT[own] and (own, other) not in UPWARD_ALLOWED:
            found.append(f"{file} imports {name}, which lies above it")
    return found


@pytest.mark.parametrize("file", FILES)
def test_imports_point_down(file: str) -> None:
    assert not faults(file, (ROOT / file).read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("file", "source", "part"),
    [
        ("pace.py", "from apex_acer.learner import Learner", "apex_acer.learner.Learner, which lies above"),
        ("frames.py", "def f():\n    import apex_acer.policy", "apex_acer.policy, which lies above"),
        ("pace.py", "from apex_acer import train", "apex_acer.train, which lies above"),
        ("actor.py", "from apex_acer import manager", "apex_acer.manager, which lies above"),
        ("engines/local/wire.py", "from ... import cli", "apex_acer.cli, which lies above"),
        ("algorithms/acer.py", "from ..rollout import Rollout", "apex_acer.rollout.Rollout, which lies above"),
        ("learner.py", "import apex_acer.novelty", "apex_acer.novelty, which has no place"),
        ("novelty.py", "", "novelty.py has no place; add 'novelty' to a layer"),
        ("engines/serial.py", "import zmq.asyncio", "zmq; allowed: engines/local/"),
        ("learner.py", "from msgpack import packb", "msgpack; allowed: engines/local/"),
        ("learner.py", "from tensorboardX import SummaryWriter", "tensorboardX; allowed: board.py"),
        ("sweep.py", "from tensorboard import program", "tensorboard; allowed: cli/dashboard.py"),
        ("manager.py", "import ray", "ray; allowed: engines/ray/"),
        ("engines/local/wire.py", "import lz4.frame", "lz4; allowed: engines/ray/"),
        ("sweep.py", "from matplotlib.figure import Figure", "matplotlib; allowed: plots.py"),
        ("report.py", "from scipy import stats", "scipy; allowed: statistics.py"),
        ("manager.py", "from apex_acer.sweep import sweep", "apex_acer.sweep.sweep, which lies above"),
        ("engines/local/wire.py", "import pickle", "pickle; allowed: nowhere"),
    ],
)
def test_faults_are_found(file: str, source: str, part: str) -> None:
    (fault,) = faults(file, source)
    assert part in fault


def test_what_is_allowed_is_not_a_fault() -> None:
    assert not faults("algorithms/acer.py", "from apex_acer.weights import load_tensors")
    assert not faults("manager.py", "from apex_acer import __version__, weights\nfrom apex_acer.engines import serial")
    assert not faults("engines/ray/link.py", "import ray, lz4.frame")
    assert not faults("engines/local/wire.py", "import msgpack, zmq\nfrom . import transport")


@pytest.mark.parametrize("file", [f for f in FILES if f in ROLES or f.startswith("algorithms/")])
def test_roles_do_not_know_how_they_are_run(file: str) -> None:
    names = {name.split(".")[0] for name in imports((ROOT / file).read_text(encoding="utf-8"), "apex_acer")}
    assert not names & {"ray", "zmq", "multiprocessing"}


def loaded_by(statement: str) -> set[str]:
    """Top-level packages in `sys.modules` of a fresh interpreter after `statement`."""
    program = f"{statement}\nimport sys\nprint(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stdout.split())


def test_the_manager_loads_no_torch() -> None:
    loaded = loaded_by("import apex_acer, apex_acer.config, apex_acer.manager")
    assert "apex_acer" in loaded
    assert not loaded & {"torch", "safetensors", "tensorboardX", "tensorboard", "ray"}


def test_only_a_sweep_loads_its_extra() -> None:
    loaded = loaded_by("import apex_acer.cli.train, apex_acer.console, apex_acer.manager")
    assert "tyro" in loaded
    assert not loaded & {"matplotlib", "scipy"}


def test_figures_need_neither_torch_nor_scipy() -> None:
    assert not loaded_by("import apex_acer.cli.plot, apex_acer.cli.runs, apex_acer.figures") & {"matplotlib"}
    loaded = loaded_by("import apex_acer.plots, apex_acer.runs")
    assert "matplotlib" in loaded
    assert not loaded & {"torch", "scipy"}


def test_the_front_door_is_lazy() -> None:
    loaded = loaded_by("import apex_acer\nassert set(apex_acer.__all__)")
    assert not loaded & {"torch", "numpy", "gymnasium", "tyro"}


def test_the_front_door_shows_its_public_names_and_no_others() -> None:
    """As tab completion sees it, before and after the names were used."""
    look = "print(*dir(apex_acer)); assert dir(apex_acer) == sorted(apex_acer.__all__)"
    program = f"import apex_acer; {look}; apex_acer.train; {look}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert not done.returncode, done.stdout + done.stderr


def test_every_public_name_resolves() -> None:
    for name in apex_acer.__all__:
        assert getattr(apex_acer, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'absent'"):
        apex_acer.absent  # noqa: B018
