"""Faults that the tests must see, and the tool that shows that they do.

`python -m checks.mutations [WORD]` puts each fault (of those with WORD in them) into a copy of the tree and runs the tests
that are named above it, as far as `make test` runs them; it ends with 1 if one fault is not noticed.

A paragraph of `faults.txt` is a file and the tests, in `tests` or `checks`, that ought to see its faults; then one fault a
line: what is wrong with it, the text that is replaced, which must be there just once, and what replaces it.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import multiprocessing
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests import ROOT

COPIED = ("apex_acer", "launch", "tests", "checks", "docs")
SLOW_IMPORTS = ("ale_py.vector_env", "safetensors.torch", "tensorboardX", "torch", "zmq")
FAULTS = ROOT / "checks/faults.txt"


class Fault(NamedTuple):
    """What is wrong, in which file, and which tests ought to see it."""

    file: str
    tests: list[str]
    what: str
    old: str
    new: str


def faults() -> Iterator[Fault]:
    """Those of `faults.txt`."""
    for paragraph in FAULTS.read_text(encoding="utf-8").strip().split("\n\n"):
        (head, *lines) = paragraph.splitlines()
        file, _, tests = head.partition(": ")
        for line in lines:
            what, _, change = line.strip().partition(": ")
            old, _, new = change.partition(" => ")
            yield Fault(file, tests.split(), what, old, new)


@contextlib.contextmanager
def copy_of_the_tree() -> Iterator[Path]:
    """A folder with what the tests need, on Python's path in place of this one; it is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        for name in COPIED:
            shutil.copytree(ROOT / name, Path(folder) / name)
        shutil.copy(ROOT / "setup.cfg", folder)
        os.chdir(folder)
        os.environ["PYTHONPATH"] = sys.path[0] = folder
        for name in [name for name in sys.modules if name.partition(".")[0] in ("tests", "checks")]:
            del sys.modules[name]
        yield Path(folder)


def first_failure(tests: list[str]) -> str:
    """The first of `tests` that fails in the copy one stands in, or else what pytest said; empty if all pass."""
    paths = [str(path) for name in tests for path in sorted(Path().glob(f"[tc]*s/{name}"))]
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        code = pytest.main(["-x", "-q", "--timeout=100", "-p", "no:cacheprovider", *paths])
    failed = [line.split(" ")[1] for line in said.getvalue().splitlines() if line.startswith("FAILED ")]
    return failed[0] if failed else said.getvalue()[-300:] if code else ""


def without_a_fault(tests: list[str]) -> str:
    """What fails where nothing is wrong."""
    with copy_of_the_tree():
        return first_failure(tests)


def verdict(fault: Fault) -> str:
    """The test that noticed `fault`, or `NOT caught`."""
    with copy_of_the_tree() as folder:
        text = (folder / fault.file).read_text()
        if text.count(fault.old) != 1:
            return f"NOT caught: its text is there {text.count(fault.old)} times"
        (folder / fault.file).write_text(text.replace(fault.old, fault.new))
        failure = first_failure(fault.tests)
    return failure if failure.startswith(("tests/", "checks/")) else f"NOT caught: {failure or 'all tests pass'}"


def main() -> int:
    """Prints what noticed each fault; 1 if one was not noticed, or a test fails without any."""
    asked = [fault for fault in faults() if all(word in f"{fault.file}: {fault.what}" for word in sys.argv[1:])]
    if not asked:
        sys.exit(f"{FAULTS.name}: no fault has {' and '.join(map(repr, sys.argv[1:]))} in it")
    for name in SLOW_IMPORTS:
        importlib.import_module(name)
    missed = 0
    # each in a fork of its own, which has imported what takes time
    with multiprocessing.get_context("fork").Pool(os.cpu_count(), maxtasksperchild=1) as pool:
        broken = pool.apply_async(without_a_fault, [sorted({name for fault in asked for name in fault.tests})])
        for fault, said in zip(asked, pool.imap(verdict, asked), strict=True):
            missed += said.startswith("NOT")
            print(f"{fault.file}: {fault.what}: {said}", flush=True)
        print(f"{len(asked) - missed} of {len(asked)} faults are caught")
        if broken.get():
            print(f"fails without a fault, too: {broken.get()}")
    return int(missed > 0 or bool(broken.get()))


if __name__ == "__main__":
    sys.exit(main())
