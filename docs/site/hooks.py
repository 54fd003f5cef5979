"""What the site adds to MkDocs: the changelog, formulas as MathML, and a page for each source file that a page links to."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any, NamedTuple

import latex2mathml.converter
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url

DOCS = Path(__file__).parent.parent
ROOT = DOCS.parent
LINK = re.compile(r"\[([^\]]+)\]\(([^)\s#:]+)\)")
LANGUAGES = {".py": "python", ".toml": "toml", ".cfg": "ini", ".yaml": "yaml", ".sh": "bash"}


class SourceLink(NamedTuple):
    """A link from a page to a file of the repository that is no page; `name`, where there is one, is defined in it."""

    text: str
    path: Path
    name: str

    @property
    def line(self) -> int:
        """Line of `name`'s definition; raises KeyError where the file has none."""
        return definitions(self.path.read_text(encoding="utf-8"))[self.name] if self.name else 1

    @property
    def page(self) -> str:
        """Of the site, with the source."""
        return f"source/{self.path.relative_to(ROOT)}.md"


def source_link(match: re.Match[str], folder: Path) -> SourceLink | None:
    """What a `LINK` in a page in `folder` leads to; None for a page, a picture or a missing file."""
    path = (folder / match[2]).resolve()
    if not path.is_file() or (path.is_relative_to(DOCS) and path.suffix != ".py"):
        return None
    name = match[1].strip("`")
    is_name = match[1].startswith("`") and path.suffix == ".py" and re.fullmatch(r"[A-Za-z_][\w.]*", name)
    return SourceLink(match[1], path, "" if not is_name or name.endswith(".py") else name)


def source_links(page: Path) -> list[SourceLink]:
    """All links of a page to sources."""
    matches = LINK.finditer(page.read_text(encoding="utf-8"))
    return [link for match in matches if (link := source_link(match, page.parent))]


def definitions(source: str) -> dict[str, int]:
    """Dotted names of a module's classes, functions, methods and constants, and their lines."""
    found: dict[str, int] = {}

    def collect(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                found[prefix + node.name] = node.lineno
            if isinstance(node, ast.ClassDef):
                collect(node.body, f"{prefix}{node.name}.")
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            found.update({prefix + target.id: node.lineno for target in targets if isinstance(target, ast.Name)})

    collect(ast.parse(source).body, "")
    return found


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Formulas are blocks in the language `math`, as on GitHub."""
    fence = {"name": "math", "class": "math", "format": formula}
    config.mdx_configs["pymdownx.superfences"] = {"custom_fences": [fence]}
    return config


def formula(source: str, *_: Any, **__: Any) -> str:
    """LaTeX as MathML, which browsers draw without a script."""
    drawn = latex2mathml.converter.convert(source, display="block")
    return f'<div style="overflow: auto hidden">{drawn}</div>'


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the changelog, and sources that pages link to."""
    changelog = str(ROOT / "CHANGELOG.md")
    files.append(File.generated(config, "changelog.md", abs_src_path=changelog))
    links = {link.page: link for page in DOCS.rglob("*.md") for link in source_links(page)}
    for name, link in links.items():
        head = f"---\nhide: [navigation, toc]\nsearch:\n  exclude: true\n---\n# {link.path.relative_to(ROOT)}\n"
        code = f"````{LANGUAGES.get(link.path.suffix, 'text')}\n{link.path.read_text(encoding='utf-8')}\n````\n"
        page = File.generated(config, name, content=head + code, inclusion=InclusionLevel.NOT_IN_NAV)
        files.append(page)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Has links to sources lead to their pages, and there to the line of the name that the link is on."""

    def rewrite(match: re.Match[str]) -> str:
        link = source_link(match, (DOCS / page.file.src_uri).parent)
        if link is None:
            return match[0]
        file = files.get_file_from_path(link.page)
        assert file is not None
        url = get_relative_url(file.url, page.url)
        text = re.sub("`(.+)`", r"<code>\1</code>", link.text)
        return f'<a href="{url}#__codelineno-0-{link.line}">{text}</a>'

    return LINK.sub(rewrite, markdown)
