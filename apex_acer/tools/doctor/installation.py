"""Checks Python and the required packages by their metadata, without importing them."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from importlib import metadata
from typing import Literal, NamedTuple

from packaging.requirements import Requirement
from packaging.version import Version

DISTRIBUTION = "apex_acer"
SHOWN = "torch", "numpy", "gymnasium", "ale-py", "pyzmq"  # versions that a bug report needs
Level = Literal["ok", "warning", "problem"]


class Finding(NamedTuple):
    """One line of the output of `apex-acer doctor`."""

    topic: str
    level: Level
    """`problem`: a run cannot work."""
    text: str
    """What was found."""
    advice: str = ""
    """What to do; empty if all is well."""
    figures: dict[str, float] | None = None
    """Measured values by name."""


def judge(topic: str, text: str, advice: str, *, works: bool = True, well: bool = True) -> Finding:
    """A problem unless it `works`, a warning unless all is `well`, otherwise ok without advice."""
    if works and well:
        return Finding(topic, "ok", text)
    return Finding(topic, "warning" if works else "problem", text, advice)


def check_installation() -> Iterator[Finding]:
    """Python, the packages that every run needs, and the optional ones."""
    supported = sys.platform in ("linux", "darwin")
    system = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    yield judge("python", system, "run on Linux or macOS", works=supported)
    lacking = ", ".join(_lacking(DISTRIBUTION))
    versions = lacking or ", ".join(f"{name} {metadata.version(name)}" for name in SHOWN)
    yield judge("packages", versions, f"pip install {DISTRIBUTION}", works=not lacking)
    for extra in metadata.metadata(DISTRIBUTION).get_all("Provides-Extra", []):
        if extra != "dev":
            missing = ", ".join(_lacking(DISTRIBUTION, extra))
            text = f"{missing}: pip install 'apex-acer[{extra}]' adds it" if missing else "installed"
            yield Finding(f"extra {extra}", "ok", text)


def _lacking(name: str, extra: str = "") -> Iterator[str]:
    """Unmet requirements of the distribution `name` or of its `extra`."""
    for requirement in map(Requirement, metadata.requires(name) or ()):
        applies = not requirement.marker or requirement.marker.evaluate({"extra": extra})
        if not applies or (extra and not requirement.marker):
            continue
        try:
            version = Version(metadata.version(requirement.name))
        except metadata.PackageNotFoundError:
            yield f"{requirement.name} is not installed"
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            yield f"{requirement.name} is {version}, not {requirement.specifier}"
        for part in requirement.extras:
            yield from _lacking(requirement.name, part)
