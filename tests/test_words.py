"""How docstrings are written: the first line of each says by itself what the name is."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests import ROOT

# an opening that points at the line above, which somebody who hovers over a name does not see
POINTS_ELSEWHERE = re.compile(
    r"(Those|That|These|Likewise|Also|Ditto|The same|Like `|As above|See above|Its|Their|It|They)\b"
)
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
ALL = [path for folder in ("apex_acer", "docs") for path in sorted(ROOT.glob(f"{folder}/**/*.py"))]


def docstrings(path: Path) -> Iterator[str]:
    """The docstrings of a file, those of fields and constants included."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        for statement in getattr(node, "body", []) if isinstance(node, DOCUMENTED) else []:
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                yield str(statement.value.value)


def test_a_docstring_stands_alone() -> None:
    openings = [f"{path.relative_to(ROOT)}: {text[:60]}" for path in ALL for text in docstrings(path)]
    assert not [line for line in openings if POINTS_ELSEWHERE.match(line.partition(": ")[2])]
