"""Presets: the run files in `launch/`, by their names without `.toml`."""

from __future__ import annotations

import difflib
import re
from importlib import resources
from pathlib import Path

from apex_acer.system.errors import ConfigError

MOST_NEAR = 3  # that a message names


def presets() -> dict[str, str]:
    """The presets' names, sorted, and the first comment line of each file."""
    files = [f for f in resources.files("apex_acer.launch").iterdir() if f.name.endswith(".toml")]
    heads = {f.name.removesuffix(".toml"): f.read_text(encoding="utf-8").partition("\n")[0] for f in files}
    return {name: heads[name].lstrip("# ") for name in sorted(heads)}


def preset_text(name: str) -> str:
    """The text of the preset `name`; raises `ConfigError` if there is none."""
    if name not in presets():
        raise ConfigError(f"run: {name!r} is neither a preset nor a file; {_near_presets(name)}")
    return resources.files("apex_acer.launch").joinpath(f"{name}.toml").read_text(encoding="utf-8")


def _near_presets(name: str) -> str:
    """What to give instead of `name`, which is not a preset."""
    listed = "`apex-acer presets` lists all"
    if re.search(r"-v\d+$", name):
        return f"an environment's id goes with a preset, as cartpole --environment.id {name}; {listed}"
    if Path(name).is_dir():
        return f"this folder has no config.toml; give the folder of a run, a .toml file or a preset; {listed}"
    word = name.lower().replace("_", "-")
    parts = [preset for preset in presets() if word in preset.split("-")]
    near = (difflib.get_close_matches(word, presets(), n=MOST_NEAR) or parts)[:MOST_NEAR]
    hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    return f"{hint}give a .toml file, the folder of a run or a preset; {listed}"
