"""The rooms of the package: what each folder is for, what it may import, and what it does import.

`make docs` draws them into docs/images/rooms.svg.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator, Mapping
from graphlib import TopologicalSorter
from html import escape
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).parent.parent / "apex_acer"
NOTHING = "nothing of the package"
WIDTH, HEIGHT, GAP_X, GAP_Y = 210, 64, 24, 34  # of a room, and between rooms, in pixels


class Room(NamedTuple):
    """A folder."""

    purpose: str
    """The first sentence of its `__init__`."""
    may_import: frozenset[str]
    """Other folders, as its `__init__` lists them."""


def rooms() -> dict[str, Room]:
    """Every folder by its path within the package, which itself is none of them."""
    folders = sorted(path.parent for path in PACKAGE.rglob("*/__init__.py"))
    return {folder.relative_to(PACKAGE).as_posix(): _room(folder / "__init__.py") for folder in folders}


def imports(source: str, package: str) -> Iterator[str]:
    """Dotted names that `source`, a module in `package`, imports anywhere, also inside functions."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


def imported_rooms(file: str, source: str, known: Mapping[str, Room]) -> dict[str, str]:
    """Other rooms that `file` imports, each with a name that it imports from there."""
    package = ".".join(["apex_acer", *file.split("/")[:-1]])
    found = {}
    for name in imports(source, package):
        top, *rest = name.split(".")
        room = _longest("/".join(rest), known) if top == "apex_acer" else ""
        if room and room != file.rpartition("/")[0]:
            found[room] = name
    return found


def _longest(path: str, known: Mapping[str, Room]) -> str:
    return max((room for room in known if f"{path}/".startswith(f"{room}/")), key=len, default="")


def _room(init: Path) -> Room:
    text = " ".join((ast.get_docstring(ast.parse(init.read_text(encoding="utf-8"))) or "").split())
    listed = re.search(r"May import: (.*?)\.(?: |$)", text)
    if not listed:
        raise ValueError(f"{init} does not say what it may import")
    names = frozenset(listed[1].split(", ")) - {NOTHING}
    return Room(re.split(r"(?<=\.) ", text)[0], names)


# ── the picture ──


def picture() -> str:
    """The folders at the top of the package as boxes, with an arrow for each import that others do not imply already."""
    known, arrows = rooms(), _arrows()
    places = _places(arrows)
    lines = [_line(places[above], places[below]) for above in sorted(arrows) for below in sorted(arrows[above])]
    boxes = [_box(name, known[name].purpose, *place) for name, place in sorted(places.items())]
    width = max(x for x, _ in places.values()) + WIDTH + GAP_X
    height = max(y for _, y in places.values()) + HEIGHT + GAP_X
    return "\n".join([_HEAD.format(width=width, height=height), *lines, *boxes, "</svg>", ""])


def _arrows() -> dict[str, set[str]]:
    """What each folder at the top imports, without what that imports in its turn."""
    known = rooms()
    direct: dict[str, set[str]] = {name: set() for name in known if "/" not in name}
    for path in PACKAGE.rglob("*/*.py"):
        file = path.relative_to(PACKAGE).as_posix()
        own = file.partition("/")[0]
        found = imported_rooms(file, path.read_text(encoding="utf-8"), known)
        direct[own] |= {name.partition("/")[0] for name in found} - {own}
    whole = {name: _reached(name, direct) for name in direct}
    return {
        name: {to for to in direct[name] if not any(to in whole[other] for other in direct[name])} for name in direct
    }


def _reached(name: str, direct: Mapping[str, set[str]]) -> set[str]:
    return set().union(*({below} | _reached(below, direct) for below in direct[name]))


def _places(arrows: Mapping[str, set[str]]) -> dict[str, tuple[int, int]]:
    """The upper left corner of each room: in the row below all that import it, and there near them."""
    above = {name: [other for other in arrows if name in arrows[other]] for name in arrows}
    depths: dict[str, int] = {}
    for name in TopologicalSorter(above).static_order():
        depths[name] = 1 + max((depths[other] for other in above[name]), default=-1)
    rows = [sorted(name for name in depths if depths[name] == depth) for depth in range(max(depths.values()) + 1)]
    places: dict[str, tuple[int, int]] = {}
    for depth, row in enumerate(rows):
        row.sort(key=lambda name: sum(places[other][0] for other in above[name]) / max(1, len(above[name])))
        left = GAP_X + (max(map(len, rows)) - len(row)) * (WIDTH + GAP_X) // 2
        for column, name in enumerate(row):
            places[name] = left + column * (WIDTH + GAP_X), GAP_X + depth * (HEIGHT + GAP_Y)
    return places


def _line(above: tuple[int, int], below: tuple[int, int]) -> str:
    (x, y), (to_x, to_y) = above, below
    x, y, to_x = x + WIDTH // 2, y + HEIGHT, to_x + WIDTH // 2
    bend = (to_y - y) // 2
    return f'  <path class="arrow" d="M{x} {y}C{x} {y + bend} {to_x} {to_y - bend} {to_x} {to_y - 1}"/>'


def _box(name: str, purpose: str, x: int, y: int) -> str:
    lines = textwrap.wrap(re.split("[:.]", purpose)[0], 28)[:2]
    texts = [f'<text x="{x + WIDTH // 2}" y="{y + 40 + 16 * i}">{escape(line)}</text>' for i, line in enumerate(lines)]
    title = f'<text class="name" x="{x + WIDTH // 2}" y="{y + 21}">{name}/</text>'
    return f'  <rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="8"/>{title}{"".join(texts)}'


_HEAD = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-labelledby="title" \
font-family="system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif" font-size="12" text-anchor="middle">
  <title id="title">The folders of apex_acer, and which of them import which; all arrows point down</title>
  <defs>
    <marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" orient="auto">
      <path d="M0 0 10 5 0 10z" fill="#7b8794"/>
    </marker>
    <style>
      rect {{ fill: #d2f4ff; stroke: #7b8794; stroke-width: 1.5 }}
      text {{ fill: #1f2933 }}
      .name {{ font-weight: 700; font-size: 15px }}
      .arrow {{ fill: none; stroke: #7b8794; stroke-width: 1.5; marker-end: url(#tip) }}
    </style>
  </defs>"""
