"""Imports point down, as each folder's `__init__` says, and what is foreign stays in its one place."""

from __future__ import annotations

import ast
import graphlib
import itertools
import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest

import apex_acer
from docs.rooms import imported_rooms, imports, rooms

ROOT = Path(apex_acer.__file__).parent
ROOMS = rooms()
AT_THE_TOP = {"__init__.py", "__main__.py", "client.py", "wrappers.py"}  # the front door, and nothing behind it
HOMES = {  # foreign package: where alone it is imported
    "zmq": "engines/local/",
    "msgpack": ("engines/local/", "remote/", "client.py"),
    "websockets": ("remote/", "client.py"),
    "ray": "engines/ray/",
    "lz4": ("engines/ray/", "replay/compressed.py"),
    "tensorboard": "cli/showing.py",
    "tensorboardX": "storage/writers.py",
    "matplotlib": "views/plots.py",
    "optuna": "tools/tune/study.py",
    "wandb": "manager/trackers.py",
    "mlflow": "manager/trackers.py",
    "scipy": "tools/sweep/report.py",
    "mujoco": "environments/registry.py",
    "av": "environments/display.py",
    "pygame": "environments/display.py",
    "onnxruntime": "tools/export.py",
    "onnxscript": "tools/export.py",
    "pickle": None,
    "cloudpickle": None,
    "dill": None,
}
ROLES = {"actor/actor.py", "learner/learner.py", "actor/evaluator.py"}
SOURCES = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in sorted(ROOT.rglob("*.py"))}


def faults(file: str, source: str) -> list[str]:
    """What `file` imports and must not, in words."""
    folder = file.rpartition("/")[0]
    if not folder:
        return [] if file in AT_THE_TOP else [f"{file} is in no room"]
    allowed = ROOMS[folder].may_import
    found = []
    for room, name in imported_rooms(file, source, ROOMS).items():
        if room not in allowed:
            found.append(
                f"{file} imports {name}; {folder}/__init__.py allows {', '.join(sorted(allowed)) or 'nothing'}"
            )
    for name in imports(source, ".".join(["apex_acer", *file.split("/")[:-1]])):
        home = HOMES.get(name.split(".")[0], "")
        if home is None or not file.startswith(home):
            allowed_in = " ".join(home) if isinstance(home, tuple) else home
            found.append(f"{file} imports {name}; allowed: {allowed_in or 'nowhere'}")
        if name.startswith("apex_acer.") and name.split(".")[1] in apex_acer._HOME:
            found.append(f"{file} imports {name} by the front door")
    return found


def test_imports_point_down() -> None:
    assert not [fault for file, source in SOURCES.items() for fault in faults(file, source)]


def test_what_rooms_may_import_has_an_order() -> None:
    """From the bottom to the top."""
    found = [*graphlib.TopologicalSorter({name: room.may_import for name, room in ROOMS.items()}).static_order()]
    assert set(found) == set(ROOMS), "a room that is listed does not exist"
    assert found.index("system") < found.index("learner") < found.index("engines") < found.index("cli")


def file_imports(sources: Mapping[str, str]) -> dict[str, set[str]]:
    """What each file imports of the others, also inside functions and for type checkers only."""
    modules = {file.removesuffix(".py").removesuffix("/__init__").replace("/", "."): file for file in sources}
    graph: dict[str, set[str]] = {file: set() for file in sources}
    for file, source in sources.items():
        for name in imports(source, ".".join(["apex_acer", *file.split("/")[:-1]])):
            parts = name.split(".")[1:] if name.startswith("apex_acer.") else []
            heads = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
            graph[file] |= {modules[head] for head in itertools.islice(filter(modules.get, heads), 1)} - {file}
    return graph


def circles(graph: Mapping[str, Collection[str]]) -> list[list[str]]:
    """Files that import each other by way of others, each with those that it is in a circle with."""
    reached = {file: set(others) for file, others in graph.items()}
    for middle, file in itertools.product(graph, repeat=2):
        if middle in reached[file]:
            reached[file] |= reached[middle]
    together = {file: sorted(other for other in reached[file] if file in reached[other]) for file in graph}
    return [list(circle) for circle in sorted({tuple(files) for files in together.values() if files})]


def test_no_files_import_each_other_in_a_circle_also_not_for_type_checkers_only() -> None:
    assert not circles(file_imports(SOURCES))
    for_types = "if TYPE_CHECKING:\n    from apex_acer.a import one"
    sources = {
        "a/__init__.py": "from apex_acer.b import two",
        "b.py": "def two():\n    import apex_acer.c.d",
        "c/__init__.py": "from apex_acer import b",
        "c/d.py": for_types,
    }
    assert circles(file_imports(sources)) == [["a/__init__.py", "b.py", "c/d.py"]]


def test_what_acts_and_what_learns_do_not_know_each_other_nor_how_they_are_run() -> None:
    assert "learner" not in ROOMS["actor"].may_import
    assert "actor" not in ROOMS["learner"].may_import
    for file in [file for file in SOURCES if file in ROLES or file.startswith("algorithms/")]:
        names = {name.split(".")[0] for name in imports(SOURCES[file], "apex_acer")}
        assert not names & {"ray", "zmq", "multiprocessing"}, file


def test_a_room_imports_all_that_it_says_and_each_file_says_what_it_is_for() -> None:
    used: dict[str, set[str]] = {room: set() for room in ROOMS}
    for file, source in SOURCES.items():
        if (room := file.rpartition("/")[0]) in used:
            used[room] |= imported_rooms(file, source, ROOMS).keys()
        text = ast.get_docstring(ast.parse(source)) or ""
        assert text.partition("\n")[0].endswith((".", ":", ";")), file
    assert used == {name: room.may_import for name, room in ROOMS.items()}


FAULTS = {
    "replay/sampler.py: from apex_acer.learner.learner import Learner": "apex_acer.learner.learner.Learner; replay/",
    "networks/frames.py: def f(): import apex_acer.actor.policy": "apex_acer.actor.policy; networks/__init__",
    "replay/sampler.py: from apex_acer import train": "apex_acer.train by the front door",
    "engines/local/wire.py: from ... import cli": "apex_acer.cli; engines/local/__init__",
    "novelty.py: ": "novelty.py is in no room",
    "engines/serial.py: import zmq.asyncio": "zmq.asyncio; allowed: engines/local/",
    "engines/local/wire.py: import pickle": "pickle; allowed: nowhere",
}


def test_faults_are_found() -> None:
    for text, part in FAULTS.items():
        (fault,) = faults(*text.split(": ", 1))
        assert part in fault
    assert not faults("engines/local/wire.py", "import msgpack, zmq\nfrom . import transport")


def loaded_by(statement: str) -> set[str]:
    """Top-level packages in `sys.modules` of a fresh interpreter after `statement`."""
    program = f"{statement}\nimport sys\nprint(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stdout.split())


RUN = "apex_acer.cli.training, apex_acer.views.console, apex_acer.manager.manager, apex_acer.engines.local.launcher"


@pytest.mark.parametrize(
    ("statement", "needed", "foreign"),
    [
        ("import apex_acer\nassert set(apex_acer.__all__)", {"apex_acer"}, {"torch", "numpy", "gymnasium", "rich"}),
        (
            "import apex_acer, apex_acer.manager.manager\napex_acer.load_run('pong-apex-dqn')",
            {"apex_acer"},
            {"torch", "safetensors", "tensorboardX", "tensorboard", "ray"},
        ),
        (
            f"import {RUN}\nfor name in apex_acer.engines.local.launcher.IMPORTED: __import__(name)",
            {"torch", "tensorboardX"},
            {"av", "matplotlib", "onnx", "pygame", "ray", "scipy", "tensorboard"},
        ),
        ("import apex_acer.cli.showing, apex_acer.views.figures", {"apex_acer"}, {"matplotlib"}),
        ("import apex_acer.views.plots, apex_acer.tools.runs", {"matplotlib"}, {"torch", "scipy"}),
    ],
    ids=["the front door", "the manager", "a run", "figures", "plots"],
)
def test_nothing_is_loaded_that_is_not_needed(statement: str, needed: set[str], foreign: set[str]) -> None:
    loaded = loaded_by(statement)
    assert needed <= loaded
    assert not loaded & foreign


def test_the_front_door_shows_its_public_names_and_no_others() -> None:
    """As tab completion sees it, before and after the names were used."""
    look = "print(*dir(apex_acer)); assert dir(apex_acer) == sorted(apex_acer.__all__)"
    program = f"import apex_acer; {look}; apex_acer.train; {look}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert not done.returncode, done.stdout + done.stderr
    assert all(getattr(apex_acer, name) is not None for name in apex_acer.__all__)
    with pytest.raises(AttributeError, match="no attribute 'absent'"):
        apex_acer.absent  # noqa: B018
