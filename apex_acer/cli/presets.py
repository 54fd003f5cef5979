"""`apex-acer presets [show NAME]`."""

from __future__ import annotations

from apex_acer.config import require
from apex_acer.config.runfile import preset_text, presets


def run(arguments: list[str]) -> int:
    """Prints the table of presets, or the run file of one."""
    if arguments in (["-h"], ["--help"], ["--help-all"]):
        print("usage: apex-acer presets [show NAME]\n\nLists the run files to start from, or prints one.")
        return 0
    if not arguments:
        for name, description in presets().items():
            print(f"{name:<22} {description}")
        return 0
    shows = len(arguments) == 2 and arguments[0] == "show"
    require(shows, "presets", " ".join(arguments), "give nothing, or: show NAME")
    print(preset_text(arguments[1]), end="")
    return 0
