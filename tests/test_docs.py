"""Documentation that a program can check."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.reference import pages

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.name)
def test_generated_pages_are_up_to_date(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == pages()[path], "run `make docs`"


def test_links_between_pages_lead_somewhere() -> None:
    for page in (ROOT / "README.md", *ROOT.glob("docs/**/*.md")):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_readme_example_is_ten_lines_or_so_and_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert example
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(example[1], names)
    assert getattr(names["result"], "reason", None) == "at_return"
