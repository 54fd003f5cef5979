"""The result of one check."""

from __future__ import annotations

from typing import Literal, NamedTuple

Level = Literal["ok", "warning", "problem"]


class Finding(NamedTuple):
    """One line of the output of `apex-acer doctor`."""

    topic: str
    level: Level
    """`problem` means that a run cannot work."""
    text: str
    """What was found."""
    advice: str = ""
    """What to do about it; empty if all is well."""
    figures: dict[str, float] | None = None
    """Measured values by name."""


def judge(topic: str, text: str, advice: str, *, works: bool = True, well: bool = True) -> Finding:
    """A problem unless it `works`, a warning unless all is `well`, else ok and without advice."""
    if works and well:
        return Finding(topic, "ok", text)
    return Finding(topic, "warning" if works else "problem", text, advice)
