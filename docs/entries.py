"""Writes the table in docs/results.md and the entries in docs/results/*.md from the JSON files beside them.

`docs/results/entries.toml` lists the entries: name of the JSON file, page, task, algorithm and published score, and
what old JSON files lack. A page marks the place of an entry with `<!--entry:NAME-->` and `<!--end-->`.
"""

from __future__ import annotations

import json
import math
import re
import statistics
import textwrap
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

DOCS = Path(__file__).parent
RESULTS = DOCS / "results"
TABLE = re.compile(r"(?<=<!--table-->\n).*?(?=<!--end-->)", re.DOTALL)
ENTRY = re.compile(r"(<!--entry:(\S+)-->\n).*?(<!--end-->)", re.DOTALL)
HEADING_OR_ENTRY = re.compile(r"^#+ (?P<heading>.+)$|^<!--entry:(?P<entry>\S+)-->$", re.MULTILINE)
HEAD = "|Task|Algorithm|Score @ env steps|Published|Minutes|\n|---|---|---:|---:|---:|\n"
GAMES = 100  # that the last weights of a run play
SHARED = "†"
NO_BREAK = "\u00a0"


class Entry(NamedTuple):
    """One row of the table and one section of a page."""

    name: str
    page: str
    task: str
    algorithm: str
    published: str
    command: str
    score: str
    """As it is in the table."""
    exact: str
    """The score with one more decimal."""
    reached: str
    """How many seeds reached which target; empty if there was no target."""
    env_steps: list[float]
    """Of each seed."""
    wall_s: list[float]
    shared: bool
    """Whether other programs used the machine at the same time."""
    note: str
    data: list[str]
    """JSON files, without their suffix."""

    def row(self, anchor: str, task: str) -> str:
        """The line of the entry in the table."""
        link = f"[{self.algorithm}](results/{self.page}.md#{anchor})"
        minutes = short(statistics.median(self.wall_s) / 60) + SHARED * self.shared
        steps = thousands(statistics.median(self.env_steps))
        cells = task, link, f"{self.score} @{steps}", self.published, minutes
        # nothing but the task and the algorithm is broken into lines
        return f"|{'|'.join([*cells[:2], *(cell.replace(' ', NO_BREAK) for cell in cells[2:])])}|\n"

    def section(self) -> str:
        """The part of a page about the entry: command, numbers, files and figure."""
        links = ", ".join(f"[data]({name}.json)" for name in self.data)
        steps = spread(self.env_steps) + " env steps"
        seconds = short(statistics.median(self.wall_s)) + " s" + SHARED * self.shared
        facts = [f"**{self.exact}**" + self.note, self.reached, steps, seconds, links]
        text = textwrap.fill("; ".join(filter(None, facts)), 100, break_long_words=False, break_on_hyphens=False)
        lines = ["", "```sh", *self.command.splitlines(), "```", "", text, ""]
        for name in self.data:
            if (RESULTS / f"{name}.png").exists():
                lines += [f"![{name}]({name}.png)", ""]
        return "\n".join([*lines, ""])


def read_entries() -> dict[str, Entry]:
    """All entries by name, in the order of the table."""
    listed = tomllib.loads((RESULTS / "entries.toml").read_text(encoding="utf-8"))["entry"]
    return {fields["name"]: make_entry(fields) for fields in listed}


def make_entry(fields: dict[str, Any]) -> Entry:
    """An entry from its fields in the list and its JSON files; the fields take precedence."""
    data = [fields["name"], *fields.get("more", [])]
    records = [json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8")) for name in data]
    numbers = of_sweep(records[0]) if "variants" in records[0] else of_runs(records, fields)
    return Entry(
        name=fields["name"],
        page=fields["page"],
        task=fields["task"],
        algorithm=fields["algorithm"],
        published=fields.get("published", "–"),
        shared=fields.get("shared", False),
        note=fields.get("note", ""),
        data=data,
        **(numbers | {key: fields[key] for key in ("command", "env_steps", "wall_s", "reached") if key in fields}),
    )


def of_sweep(record: dict[str, Any]) -> dict[str, Any]:
    """Command, score and times of a sweep with one variant."""
    (variant,) = record["variants"].values()
    results = [run["result"] for run in variant["runs"].values()]
    estimate = variant["summary"]["final_return"]
    target = record["run"]["stop"].get("at_return")
    goal = "" if target is None else f"{target:g}".replace("-", "−")
    count = sum(result["reason"] == "at_return" for result in results)

    def score(digits: int) -> str:
        iqm, low, high = (number(value, digits) for value in (estimate["iqm"], *estimate["interval"]))
        return f"{iqm} [{low}, {high}]"

    digits = digits_of(estimate["iqm"])
    return {
        "command": re.sub(r" --out \S+", "", record["command"]),
        "score": score(digits),
        "exact": score(digits + 1),
        "reached": f"{count}/{len(results)} seeds reached {goal}" if goal else "",
        "env_steps": [result["env_steps"] for result in results],
        "wall_s": [result["wall_s"] for result in results],
    }


def of_runs(records: list[dict[str, Any]], fields: dict[str, Any]) -> dict[str, Any]:
    """Score and times of single runs; the score of one run has the 95 % interval of its games."""
    games = [record["fresh_games"][0] for record in records if record.get("fresh_games")]
    scores = fields.get("scores") or [game["mean"] for game in games]
    std = fields.get("std", games[0]["std"] if games and "scores" not in fields else 0.0)
    ends = [record["result"] for record in records if "result" in record]

    def score(digits: int) -> str:
        text = ", ".join(number(value, digits) for value in scores)
        if std and len(scores) == 1:
            text += f" ± {number(1.96 * std / math.sqrt(GAMES), digits)}"
        return text

    digits = digits_of(scores[0])
    are_whole = all(isinstance(value, int) for value in scores)
    return {
        "score": score(digits),
        "exact": score(digits if are_whole else min(digits + 1, 2)),
        "reached": "",
        "env_steps": [end["env_steps"] for end in ends],
        "wall_s": [end["wall_s"] for end in ends],
    }


def digits_of(score: float) -> int:
    """How many decimals a score has in the table."""
    return 0 if abs(score) >= 100 else 1 if abs(score) >= 10 else 2


def number(value: float, digits: int) -> str:
    """Rounded half away from zero, with separators and a true minus sign."""
    return f"{value + math.copysign(1e-9, value):,.{digits}f}".replace("-", "−")


def spread(values: list[float]) -> str:
    """The median, and the range if there are several values."""
    digits = 0 if max(values) >= 100 else 1
    median = number(statistics.median(values), digits)
    if len(values) == 1:
        return median
    return f"{median} ({number(min(values), digits)}–{number(max(values), digits)})"


def thousands(value: float) -> str:
    """Three digits and a unit: `7.1k`, `10M`."""
    return f"{value / 1e6:.3g}M" if value >= 999_500 else f"{value / 1e3:.3g}k"


def short(value: float) -> str:
    """Two decimals of a number below 1, one below 10, otherwise none."""
    return number(value, 2 if value < 1 else 1 if value < 10 else 0)


def slug(heading: str) -> str:
    """The anchor of a heading, on GitHub as on the site."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def anchors() -> dict[str, str]:
    """For each entry the anchor of the heading above it."""
    found = {}
    for page in sorted(RESULTS.glob("*.md")):
        heading = ""
        for match in HEADING_OR_ENTRY.finditer(page.read_text(encoding="utf-8")):
            heading = match["heading"] or heading
            if match["entry"]:
                found[match["entry"]] = slug(heading)
    return found


def table(entries: dict[str, Entry]) -> str:
    """The table; a task is named in the first of its rows."""
    places = anchors()
    text, task = HEAD, ""
    for entry in entries.values():
        text += entry.row(places[entry.name], "" if entry.task == task else entry.task)
        task = entry.task
    return text


def pages() -> dict[Path, str]:
    """The pages with entries or the table, and their text as it should be."""
    entries = read_entries()
    made = {
        page: ENTRY.sub(
            lambda match: match[1] + entries[match[2]].section() + match[3], page.read_text(encoding="utf-8")
        )
        for page in sorted(RESULTS.glob("*.md"))
    }
    summary = DOCS / "results.md"
    made[summary] = TABLE.sub(lambda _: "\n" + table(entries) + "\n", summary.read_text(encoding="utf-8"))
    return made


def write_pages() -> None:
    """Brings the pages up to date."""
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
