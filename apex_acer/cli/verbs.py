"""The verbs of the program. Each is a function of its name in a module of this folder, imported when the verb is used."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple

from apex_acer import __version__
from apex_acer.cli.notice import PROGRAM
from apex_acer.cli.parsing import help_text
from apex_acer.config import ConfigError
from apex_acer.tools.sweep.commands import end_with_the_starter


class Verb(NamedTuple):
    """A verb: its arguments and its purpose, for `--help`, and the module in this folder that has its function."""

    arguments: str
    purpose: str
    module: str


VERBS = {
    "train": Verb("RUN [flags]", "Trains an agent", "training"),
    "resume": Verb("DIR [flags]", "Continues a run from its newest checkpoint", "training"),
    "evaluate": Verb("WEIGHTS [flags]", "Plays whole games and prints the returns", "policies"),
    "play": Verb("WEIGHTS [flags]", "Shows whole games in a window or as a video", "policies"),
    "serve": Verb("WEIGHTS [flags]", "Acts for environments that are remote clients", "serve"),
    "export": Verb("WEIGHTS --onnx [flags]", "Writes the policy for programs without torch", "policies"),
    "sweep": Verb("RUN [flags]", "Trains several seeds of variants of a run and compares them", "training"),
    "tune": Verb("RUN --vary KEY=LOW:HIGH [flags]", "Looks for a better setting of a run", "training"),
    "runs": Verb("[FOLDER] [flags]", "Lists the runs in a folder, newest first", "showing"),
    "plot": Verb("DIR... [flags]", "Draws what runs have logged, and compares them", "showing"),
    "dashboard": Verb("DIR [--port N]", "Shows runs in TensorBoard", "showing"),
    "presets": Verb("[show NAME]", "Lists the run files to start from, or prints one", "showing"),
    "doctor": Verb("[RUN] [--json]", "Checks whether this machine can train a run, and how fast", "machines"),
    "plan": Verb("[RUN] [flags]", "Predicts the speed of a run on other machines, and what limits it", "machines"),
    "completion": Verb("SHELL", "Prints a script that completes these commands in bash, zsh or fish", "completion"),
}


def run(arguments: list[str]) -> int:
    """Runs a verb with its arguments; returns the exit code. Raises `ConfigError` for an unknown verb."""
    end_with_the_starter()
    verb = arguments[0] if arguments else "--help"
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
    module = module_of(verb)
    if {"-h", "--help", "--help-all"} & set(arguments):
        print(help_text(getattr(module, verb.title()), arguments[1:], f"{verb} {VERBS[verb].arguments}"))
        return 0
    carry_out: Callable[[list[str]], int] = getattr(module, verb)
    return carry_out(arguments[1:])


def module_of(verb: str) -> ModuleType:
    """The module that has a verb's function and the dataclass of its arguments (`Train` for `train`)."""
    return importlib.import_module(f"apex_acer.cli.{VERBS[verb].module}")


def usage() -> str:
    """The text of `apex-acer --help`."""
    from apex_acer.config.runfile import presets

    lines = [f"usage: {PROGRAM} VERB ...  ({PROGRAM} VERB --help says more)", ""]
    calls = {f"{PROGRAM} {name} {verb.arguments}": verb.purpose for name, verb in VERBS.items()}
    lines += [f"  {call:<41} {purpose}" for call, purpose in calls.items()]
    return "\n".join([*lines, "", f"presets: {', '.join(presets())}"])
