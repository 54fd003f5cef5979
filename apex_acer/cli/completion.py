"""`apex-acer completion SHELL`: completion scripts that contain every verb and flag, so that completing runs no Python."""

from __future__ import annotations

import re
import typing
from dataclasses import dataclass
from typing import Literal, NamedTuple

from apex_acer.cli.flags import Flag, flags_of, place
from apex_acer.cli.notice import PROGRAM
from apex_acer.cli.parsing import parse
from apex_acer.cli.verbs import VERBS, module_of
from apex_acer.config.runfile import presets

FILES = {"RUN": "*.toml", "WEIGHTS": "*.safetensors", "DIR": "", "FOLDER": ""}
"""Pattern of the files, besides folders, that a verb takes for each of these words."""

CASES = """
    if [[ $index -eq 1 ]]; then
        offered="%(verbs)s"
    elif [[ $word == -* ]]; then
        case $verb in
            %(flags)s
        esac
    elif [[ $before == -* ]]; then
        case "$verb $before" in
            %(values)s
            *) files="*";;
        esac
    else
        case $verb in
            %(words)s
        esac
    fi"""
"""Sets `offered` and the pattern `files`; shared by bash and zsh."""

BASH = f"""_apex_acer() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} verb=${{COMP_WORDS[1]}}
    local index=$COMP_CWORD offered="" files=none{CASES}
    COMPREPLY=($(compgen -W "$offered" -- "$word"))
    local IFS=$'\\n'
    [[ $files == none ]] || COMPREPLY+=($(compgen -d -- "$word"))
    [[ $files == none || -z $files ]] || COMPREPLY+=($(compgen -f -X "!$files" -- "$word"))
}}
complete -o filenames -F _apex_acer {PROGRAM}"""

ZSH = f"""autoload -Uz compinit
whence compdef > /dev/null || compinit
_apex_acer() {{
    local word=$words[CURRENT] before=$words[CURRENT-1] verb=$words[2]
    local index=$((CURRENT-1)) offered="" files=none{CASES}
    compadd -- ${{=offered}}
    case $files in
        none) ;;
        "") _files -/;;
        *) _files -g "$files";;
    esac
}}
compdef _apex_acer {PROGRAM}"""


class Accepted(NamedTuple):
    """Words, files and flags that may follow a verb."""

    words: str
    files: str
    """Pattern of files, besides folders; `none`: no files and no folders."""
    flags: dict[str, str | None]
    """Values of each flag, separated by blanks; empty: any value; None: the flag takes no value."""


@dataclass(frozen=True)
class Completion:
    """Prints a script that completes verbs, flags and files. Each shell reads it from its own place:

    apex-acer completion bash > ~/.local/share/bash-completion/completions/apex-acer

    apex-acer completion zsh >> ~/.zshrc

    apex-acer completion fish > ~/.config/fish/completions/apex-acer.fish
    """

    shell: Literal["bash", "zsh", "fish"] = place("SHELL")
    """bash, zsh or fish."""


def completion(arguments: list[str]) -> int:
    """Prints the script of one shell."""
    script = SHELLS[parse(Completion, arguments).shell]
    print(script({verb: accepted(verb) for verb in VERBS}))
    return 0


def accepted(verb: str) -> Accepted:
    """Words, files and flags that may follow `verb`, from `VERBS` and from the dataclass of its arguments."""
    flags = {name: _choices(flag) for name, flag in flags_of(getattr(module_of(verb), verb.title())).items()}
    places = re.findall(r"[A-Z]+", VERBS[verb].arguments)
    words = {"RUN": " ".join(presets()), "NAME": f"show {' '.join(presets())}", "SHELL": " ".join(SHELLS)}
    return Accepted(
        words=next((words[place] for place in places if place in words), ""),
        files=next((FILES[place] for place in places if place in FILES), "none"),
        flags={"--help": None, "--help-all": None, **flags},
    )


def _choices(flag: Flag) -> str | None:
    if flag.switch is not None:
        return None
    kinds = (flag.item, *typing.get_args(flag.item))  # the members of an optional type, too
    return " ".join(
        word for kind in kinds if typing.get_origin(kind) is typing.Literal for word in typing.get_args(kind)
    )


def _shell(template: str, verbs: dict[str, Accepted]) -> str:
    flags = [f'{verb}) offered="{" ".join(take.flags)}";;' for verb, take in verbs.items()]
    choices = ((f"{verb} {flag}", values) for verb, take in verbs.items() for flag, values in take.flags.items())
    words = [f'{verb}) offered="{take.words}" files="{take.files}";;' for verb, take in verbs.items()]
    parts = {
        "flags": flags,
        "values": [f'"{case}") offered="{values}";;' for case, values in choices if values],
        "words": words,
    }
    joined = {name: "\n            ".join(lines) for name, lines in parts.items()}
    return template % {"verbs": " ".join([*verbs, "--help", "--version"]), **joined}


def _fish(verbs: dict[str, Accepted]) -> str:
    start = f"complete -c {PROGRAM}"
    lines = [f"{start} -f", f"{start} -n __fish_use_subcommand -l help", f"{start} -n __fish_use_subcommand -l version"]
    for verb, take in verbs.items():
        lines.append(f"{start} -n __fish_use_subcommand -a {verb} -d '{VERBS[verb].purpose}'")
        within = f"{start} -n '__fish_seen_subcommand_from {verb}'"
        if take.words:
            lines.append(f"{within} -a '{take.words}'")
        if take.files != "none":
            kinds = f"/|\\{take.files[1:]}" if take.files else "/"
            paths = f'__fish_complete_path (commandline -ct) | string match -r "^.*(?:{kinds})(?=\\t)"'
            lines.append(f"{within} -a '({paths})'")
        for flag, values in take.flags.items():
            value = "" if values is None else f" -x -a '{values}'" if values else " -r -F"
            lines.append(f"{within} -l {flag.removeprefix('--')}{value}")
    return "\n".join(lines)


SHELLS = {
    "bash": lambda verbs: _shell(BASH, verbs),
    "zsh": lambda verbs: _shell(ZSH, verbs),
    "fish": _fish,
}
