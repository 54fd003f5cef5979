"""What a program can check of the pages and the docstrings."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from docs.reference import pages
from docs.site.hooks import definitions, formula, source_links
from tests import ROOT

PAGES = (ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")))
TEXTS = {page: page.read_text(encoding="utf-8") for page in PAGES}


def test_generated_pages_are_up_to_date() -> None:
    stale = [path.name for path, text in pages().items() if path.read_text(encoding="utf-8") != text]
    assert not stale, "run `make docs`"


def test_links_between_pages_and_names_of_files_and_code_lead_somewhere() -> None:
    broken = []
    for page, text in TEXTS.items():
        for target in re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", text):
            if not (page.parent / target).exists():
                broken.append(f"{page.name}: {target}")
        for name in re.findall(r"`((?:[\w.]+/)*\w+\.py)`", text):
            if page.name != "README.md" and not (list(ROOT.glob(name)) or list((ROOT / "apex_acer").rglob(name))):
                broken.append(f"{page.name}: {name}")
        for link in source_links(page):
            if link.name and link.name not in definitions(link.path.read_text(encoding="utf-8")):
                broken.append(f"{page.name}: {link}")
    assert not broken
    links = source_links(ROOT / "docs/life-of-a-transition.md")
    assert len({link.path for link in links}) > 15
    assert all(link.name for link in links)


def test_rows_of_a_table_have_as_many_cells_as_its_head_and_formulas_are_understood_whole() -> None:
    """A `|` in a cell would begin another, of which nothing is shown."""
    wrong = []
    for page, text in TEXTS.items():
        for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
            head, *rows = table.splitlines()
            wrong += [f"{page.name}: {row}" for row in rows if row.count("|") != head.count("|")]
        for source in re.findall(r"^```math\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            wrong += [f"{page.name}: {source}"] * bool(re.search(r"\\|&amp;", formula(source)))
    assert not wrong


def test_messages_to_look_up_are_the_programs_own() -> None:
    package = "\n".join(path.read_text(encoding="utf-8") for path in sorted(ROOT.glob("apex_acer/**/*.py")))
    rows = re.findall(r"^\| `(.*?)` \| ", TEXTS[ROOT / "docs/troubleshooting.md"], re.MULTILINE)
    messages = [row for row in rows if "…" in row]
    assert len(messages) > 30
    assert not [row for row in messages if not all(part.strip(" ;:,") in package for part in row.split("…"))]


# an opening that points at the line above, which somebody who hovers over a name does not see
POINTS_ELSEWHERE = re.compile(
    r"(Those|That|These|Likewise|Also|Ditto|The same|Like `|As above|See above|Its|Their|It|They)\b"
)
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def docstrings(path: Path) -> Iterator[str]:
    """The docstrings of a file, those of fields and constants included."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        for statement in getattr(node, "body", []) if isinstance(node, DOCUMENTED) else []:
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                yield str(statement.value.value)


def test_a_docstring_stands_alone() -> None:
    files = [path for folder in ("apex_acer", "docs") for path in sorted(ROOT.glob(f"{folder}/**/*.py"))]
    openings = [(path, text[:60]) for path in files for text in docstrings(path)]
    assert not [f"{path.relative_to(ROOT)}: {text}" for path, text in openings if POINTS_ELSEWHERE.match(text)]


def test_the_site_is_whole_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(
        [*command, "--config-file", "docs/site/mkdocs.yml"], cwd=ROOT, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr[-3000:]
    html = {
        path.relative_to(tmp_path).as_posix(): path.read_text(encoding="utf-8") for path in tmp_path.rglob("*.html")
    }
    for text in html.values():
        assert not re.findall(r"<(?:script|img|link)[^>]+(?:src|href)=\"?https?:[^>]*", text)
    assert "<math" in html["algorithms/acer.html"]
    assert "Unreleased" in html["changelog.html"]
    (line,) = re.findall(r"rollout\.py\.html#(\S+?)\"", html["life-of-a-transition.html"])
    assert f'id="{line}"' in html["source/apex_acer/actor/rollout.py.html"]
