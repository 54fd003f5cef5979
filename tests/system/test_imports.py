"""Names of the form `module:name`, whose modules are not run to look for them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from apex_acer.system.imports import require_there, search_path
from tests.conftest import config_error


class Here:
    """A class of an imported module."""


UNRUN = """
import torch as heavy

if heavy:
    def conditional(): ...

class Torso: ...

raise RuntimeError("the module was run")
"""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("unrun:Torso", ""),
        ("unrun:conditional", ""),
        ("unrun:Torsos", "is not a class of the module; did you mean unrun:Torso?"),
        ("unrun:Absent", "is not a class of the module; give module:class (unrun is unrun.py)"),
        ("unrun_star:Anything", ""),
        ("no_such_module:X", "cannot be imported (ModuleNotFoundError: No module named 'no_such_module'); give an "),
        ("no_such_module.part:X", "cannot be imported (ModuleNotFoundError: No module named 'no_such_module'); give "),
        (f"{__name__}:Here", ""),
        (f"{__name__}:Absent", "is not a class of the module; give module:class (tests.system.test_imports is "),
    ],
)
def test_what_a_module_lacks_is_found_without_running_it(
    name: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "unrun.py").write_text(UNRUN)
    (tmp_path / "unrun_star.py").write_text(f"from torch.nn import *{UNRUN}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    if said:
        message = config_error(lambda: require_there("network.torso", name, "class"))
        assert message.startswith(f"network.torso: {name!r} {said}")
    else:
        require_there("network.torso", name, "class")
    assert "unrun" not in sys.modules


def test_what_is_no_text_in_the_search_path_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [Path("/a/path"), "/a/folder", ""])
    assert search_path() == ["/a/folder", ""]
