"""The verbs of the program. Each is the module of its name in this folder, imported when the verb is used."""

from __future__ import annotations

import difflib
import importlib
from typing import NamedTuple

from apex_acer import __version__
from apex_acer.cli import PROGRAM
from apex_acer.config import ConfigError
from apex_acer.tools.sweep.commands import end_with_the_starter


class Verb(NamedTuple):
    """A verb's arguments and its purpose, for `--help`; the function `run(arguments)` of its module carries it out."""

    arguments: str
    purpose: str


VERBS = {
    "train": Verb("RUN [flags]", "Trains an agent"),
    "resume": Verb("DIR [flags]", "Continues a run from its newest checkpoint"),
    "evaluate": Verb("WEIGHTS [flags]", "Plays whole games and prints the returns"),
    "play": Verb("WEIGHTS [flags]", "Shows whole games in a window or as a video"),
    "serve": Verb("WEIGHTS [flags]", "Acts for environments that are remote clients"),
    "export": Verb("WEIGHTS --onnx [flags]", "Writes the policy for programs without torch"),
    "sweep": Verb("RUN [flags]", "Trains several seeds of variants of a run and compares them"),
    "tune": Verb("RUN --vary KEY=LOW:HIGH [flags]", "Looks for a better setting of a run"),
    "runs": Verb("[FOLDER] [flags]", "Lists the runs in a folder, newest first"),
    "plot": Verb("DIR... [flags]", "Draws what runs have logged, and compares them"),
    "dashboard": Verb("DIR [--port N]", "Shows runs in TensorBoard"),
    "presets": Verb("[show NAME]", "Lists the run files to start from, or prints one"),
    "doctor": Verb("[RUN] [--json]", "Checks whether this machine can train a run, and how fast"),
    "plan": Verb("[RUN] [flags]", "Predicts the speed of a run on other machines, and what limits it"),
    "completion": Verb("SHELL", "Prints a script that completes these commands in bash, zsh or fish"),
}


def run(given: list[str]) -> int:
    """Runs a verb with its arguments; returns the exit code. Raises `ConfigError` for an unknown verb."""
    end_with_the_starter()
    verb = given[0] if given else "--help"
    if verb in ("-h", "--help"):
        print(usage())
        return 0
    if verb == "--version":
        print(f"{PROGRAM} {__version__}")
        return 0
    if verb not in VERBS:
        near = difflib.get_close_matches(verb, [*VERBS, "--help", "--version"], n=1)
        hint = f"did you mean {near[0]}?" if near else f"give one of {', '.join(VERBS)}"
        raise ConfigError(f"verb: {verb!r} is unknown; {hint}")
    return int(importlib.import_module(f"apex_acer.cli.{verb}").run(given[1:]))


def usage() -> str:
    """The text of `apex-acer --help`."""
    from apex_acer.config.runfile import presets

    lines = [f"usage: {PROGRAM} VERB ...  ({PROGRAM} VERB --help says more)", ""]
    calls = {f"{PROGRAM} {name} {verb.arguments}": verb.purpose for name, verb in VERBS.items()}
    lines += [f"  {call:<41} {purpose}" for call, purpose in calls.items()]
    return "\n".join([*lines, "", f"presets: {', '.join(presets())}"])
