"""No door is open: nothing is unpickled, and nothing listens but a socket in a folder that is the user's alone."""

from __future__ import annotations

import ast
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import apex_acer
from apex_acer.actor.policy import load_policy
from apex_acer.manager.callbacks import Callbacks
from apex_acer.manager.manager import train
from tests.processes import processes, sockets_of
from tests.runs import tiny_run

ROOT = Path(apex_acer.__file__).parent
SOURCES = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in ROOT.rglob("*.py")}
UNPICKLING_MODULES = {
    *("pickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib", "yaml", "jsonpickle"),
    *("multiprocessing", "concurrent.futures.process", "xmlrpc", "torch.multiprocessing"),
}
UNPICKLING_CALLS = {"torch.load", "np.load", "numpy.load", "np.loadtxt", "eval", "exec", "compile"}
UNPICKLING_METHODS = {"recv_pyobj", "recv_serialized", "read_pickle", "load_pickle"}
UNPICKLING_ARGUMENTS = {"allow_pickle", "weights_only"}


# ── the source ──


def faults(source: str) -> Iterator[str]:
    """What in `source` could unpickle, run text, or listen to the network."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names if unpickles(alias.name))
            case ast.ImportFrom(module=str() as module, names=names):
                full = [module, *(f"{module}.{alias.name}" for alias in names)]
                yield from (name for name in full if unpickles(name))
            case ast.Call(func=function, keywords=keywords):
                name = ast.unparse(function)
                if name in UNPICKLING_CALLS or name.rpartition(".")[2] in UNPICKLING_METHODS:
                    yield name
                yield from (word.arg for word in keywords if word.arg in UNPICKLING_ARGUMENTS)
            case ast.Constant(value=str() as text) if "tcp://" in text or "0.0.0.0" in text:
                yield text


def unpickles(module: str) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in UNPICKLING_MODULES)


OPEN = (
    "import marshal as m",
    "def f():\n    from multiprocessing import Queue",
    "from torch import multiprocessing",
    "np.load(file=path)",
    "read(path, allow_pickle=True)",
    "socket.recv_pyobj()",
    'socket.bind("tcp://*:5555")',
)


def test_no_source_unpickles_or_listens() -> None:
    found = {file: list(faults(source)) for file, source in SOURCES.items()}
    assert not {file: names for file, names in found.items() if names}
    assert all(list(faults(source)) for source in OPEN)


# ── a run ──

pytestmark = pytest.mark.skipif(not Path("/proc/self/net/unix").exists(), reason="sockets are looked up in /proc")

HOOK = """
import os, sys, traceback

def hook(event, arguments):
    if event == "pickle.find_class" and "UNPICKLED" in os.environ:
        frames = [f"{frame.filename}:{frame.lineno}" for frame in traceback.extract_stack()[-6:-1]]
        with open(os.environ["UNPICKLED"], "a") as file:
            print(os.getpid(), ".".join(arguments), *frames, file=file)

sys.addaudithook(hook)
"""


@pytest.fixture(scope="module")
def hooked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file that is told of what is unpickled in this process, and in those that it starts."""
    folder = tmp_path_factory.mktemp("hooked")
    (folder / "sitecustomize.py").write_text(HOOK)
    (folder / "unpickled").touch()
    exec(HOOK, {})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNPICKLED", str(folder / "unpickled"))
        patch.setenv("PYTHONPATH", os.pathsep.join([str(folder), str(ROOT.parent)]))
        yield folder / "unpickled"


class Sockets(NamedTuple):
    """What processes hold open."""

    network: list[str]
    """TCP and UDP, listening or not."""
    paths: list[str]
    """Unix sockets that have a name."""


def sockets(*pids: int) -> Sockets:
    """The sockets of processes, as the kernel lists them."""
    inodes = sockets_of(pids)
    network: list[str] = []
    for protocol in ("tcp", "tcp6", "udp", "udp6", "raw", "raw6"):
        rows = (line.split() for line in Path(f"/proc/self/net/{protocol}").read_text().splitlines()[1:])
        network += [f"{protocol} {row[1]}" for row in rows if row[9] in inodes]
    unix = (line.split() for line in Path("/proc/self/net/unix").read_text().splitlines()[1:])
    return Sockets(network, [row[7] for row in unix if len(row) > 7 and row[6] in inodes])


class Run(NamedTuple):
    """What was seen of a run."""

    held: list[Sockets]
    """By its processes, again and again; by this one, afterwards."""
    folders: dict[str, os.stat_result]
    """Where the named sockets were."""
    unpickled: str


@pytest.fixture(scope="module")
def run(hooked: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of every role, under a mask that denies nobody anything."""
    held: list[Sockets] = []
    folders: dict[str, os.stat_result] = {}

    def look(status: dict[str, Any]) -> None:
        pids = processes(os.getpid())
        if "actor_1" in status["rows"] and {"launcher", "learner_0", "evaluator_0"} < pids.keys():
            held.append(sockets(*(pid for name, pid in pids.items() if name != "manager")))
            folders.update((path, Path(path).parent.stat()) for path in held[-1].paths)

    own = sockets(os.getpid()).network
    before = os.umask(0)
    try:
        config = tiny_run(tmp_path_factory.mktemp("run"), engine="local", evaluation__every=500, stop__env_steps=4000)
        result = train(config, Callbacks(on_status=look))
    finally:
        os.umask(before)
    assert result.eval_return is not None
    load_policy(result.weights).act([0.0, 0.0, 0.0, 0.0])
    own_later = [line for line in sockets(os.getpid()).network if line not in own]
    return Run([*held, Sockets(own_later, [])], folders, hooked.read_text())


def test_no_process_unpickles_and_all_that_listens_is_in_a_folder_of_the_user_s_alone(run: Run) -> None:
    assert run.unpickled == ""
    assert len(run.held) > 1
    assert [sockets.network for sockets in run.held] == [[]] * len(run.held)
    assert run.folders, "no inbox was found"
    for path, facts in run.folders.items():
        assert Path(path).parent.parent == Path("/tmp")
        assert facts.st_uid == os.getuid()
        assert stat.S_IMODE(facts.st_mode) == 0o700
        assert not Path(path).exists()


def test_unpickling_a_port_and_a_path_are_noticed(hooked: Path, tmp_path: Path) -> None:
    noted, before = hooked.read_text(), sockets(os.getpid())
    program = "import collections, pickle; pickle.loads(pickle.dumps(collections.OrderedDict()))"
    exec(program, {})
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    assert hooked.read_text().removeprefix(noted).count("OrderedDict") == 2
    hooked.write_text(noted)
    with socket.create_server(("127.0.0.1", 0)) as port, socket.socket(socket.AF_UNIX) as path:
        path.bind(str(tmp_path / "x"))
        found = sockets(os.getpid())
        opened = [line for line in found.network if line not in before.network]
        assert opened == [f"tcp 0100007F:{port.getsockname()[1]:04X}"]
        assert str(tmp_path / "x") in found.paths
