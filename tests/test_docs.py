"""Documentation that a program can check."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs.reference import pages
from docs.site.hooks import SourceLink, definitions, formula, source_links
from tests import ROOT

PAGES = sorted(ROOT.glob("docs/**/*.md"))
PACKAGE = "\n".join(path.read_text(encoding="utf-8") for path in sorted(ROOT.glob("apex_acer/**/*.py")))


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.name)
def test_generated_pages_are_up_to_date(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == pages()[path], "run `make docs`"


def test_links_between_pages_lead_somewhere() -> None:
    for page in (ROOT / "README.md", *PAGES):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.parametrize("page", [page for page in PAGES if source_links(page)], ids=lambda page: page.name)
def test_names_that_link_to_code_are_there(page: Path) -> None:
    missing = [link for link in source_links(page) if link.name and link.name not in definitions_of(link)]
    assert not missing


def definitions_of(link: SourceLink) -> dict[str, int]:
    return definitions(link.path.read_text(encoding="utf-8"))


def test_each_file_on_the_way_of_a_transition_is_linked_by_name() -> None:
    links = source_links(ROOT / "docs/life-of-a-transition.md")
    assert len({link.path for link in links}) > 15
    assert all(link.name for link in links)


def test_a_name_leads_to_its_line() -> None:
    source = "A = 1\nb: int = 2\nclass C:\n    x: int\n    def f(self): ...\ndef g():\n    def h(): ...\n"
    assert definitions(source) == {"A": 1, "b": 2, "C": 3, "C.x": 4, "C.f": 5, "g": 6}


def test_files_named_in_pages_exist() -> None:
    for page in PAGES:
        for name in re.findall(r"`((?:[\w.]+/)*\w+\.py)`", page.read_text(encoding="utf-8")):
            assert list(ROOT.glob(name)) or list((ROOT / "apex_acer").rglob(name)), f"{page.name}: {name}"


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.name)
def test_rows_of_a_table_have_as_many_cells_as_its_head(page: Path) -> None:
    """A `|` in a cell would begin another, of which nothing is shown."""
    for table in re.findall(r"(?:^\|.*\n)+", page.read_text(encoding="utf-8"), re.MULTILINE):
        rows = table.splitlines()
        assert not [row for row in rows if row.count("|") != rows[0].count("|")]


def test_messages_to_look_up_are_the_programs_own() -> None:
    rows = re.findall(r"^\| `(.*?)` \| ", (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8"), re.MULTILINE)
    messages = [row for row in rows if "…" in row]
    assert len(messages) > 30
    for message in messages:
        for part in message.split("…"):
            assert part.strip(" ;:,") in PACKAGE, f"{part!r} of {message!r}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_formulas_are_understood_whole(page: Path) -> None:
    for source in re.findall(r"^```math\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        assert not re.search(r"\\|&amp;", formula(source)), source


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
