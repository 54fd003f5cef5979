"""What one check says."""

from __future__ import annotations

from typing import Literal, NamedTuple

Level = Literal["ok", "warning", "problem"]


class Finding(NamedTuple):
    """One line of the doctor's."""

    topic: str
    level: Level
    """`problem`: a run cannot work."""
    text: str
    """What is there."""
    advice: str = ""
    """What to do about it; empty where all is well."""
    figures: dict[str, float] | None = None
    """What was measured, by name."""


def judge(topic: str, text: str, advice: str, *, works: bool = True, well: bool = True) -> Finding:
    """A problem unless it `works`, a warning unless it is `well`, else ok and without advice."""
    if works and well:
        return Finding(topic, "ok", text)
    return Finding(topic, "warning" if works else "problem", text, advice)
