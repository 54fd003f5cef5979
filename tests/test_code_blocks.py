"""Code in the README and in docs/: Python runs, commands parse with the real parser, run files load.

A comment before a block says what else is to be done with it: `<!-- run -->` has a shell run it, `<!-- not run: why -->`
leaves Python out. docs/contributing.md explains both to authors.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from apex_acer.cli import main, parsing
from apex_acer.cli.flags import flags_of
from apex_acer.cli.training import Train
from apex_acer.cli.verbs import VERBS, module_of
from apex_acer.config.runfile import parse_run
from tests import ROOT

EXAMPLES = ROOT / "docs/examples"
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
BLOCK = re.compile(r"^(?:<!-- (run|not run: [^>]+) -->\n+)?```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHELL, TEXT = ("sh", "console"), ("", "text")
LANGUAGES = {"python", "toml", "json", "math", *SHELL, *TEXT}
BETWEEN_COMMANDS = {"|", "&&", ";", ">", "2>", "&"}


class Block(NamedTuple):
    """A fenced block; `line` is that of its first line in `page`, `order` what the comment before it says."""

    page: Path
    line: int
    order: str
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


class Parsed(BaseException):
    """The arguments of a verb were parsed."""


def blocks_of(page: Path) -> list[Block]:
    """The blocks of a page in order."""
    text = page.read_text(encoding="utf-8")
    return [Block(page, text.count("\n", 0, m.start(3)) + 1, m[1] or "", m[2], m[3]) for m in BLOCK.finditer(text)]


def commands(block: Block) -> Iterator[list[str]]:
    """The words of each command in a shell block; of a `console` block those after `$`."""
    lines = block.text.replace("\\\n", " ").splitlines()
    if block.language == "console":
        lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    for line in lines:
        command: list[str] = []
        for word in [*shlex.split(line, comments=True), ";"]:
            if word not in BETWEEN_COMMANDS:
                command.append(word)
            elif command:
                yield command
                command = []


BLOCKS = [block for page in PAGES for block in blocks_of(page)]
COMMANDS = [(block, command) for block in BLOCKS if block.language in SHELL for command in commands(block)]


@pytest.fixture
def parse_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[list[str]], None]:
    """Hands arguments to the command line, which stops once a verb has parsed its own."""

    def parse(cls: type, arguments: list[str]) -> None:
        parsing.parse(cls, arguments)
        raise Parsed

    for verb in VERBS:
        monkeypatch.setattr(module_of(verb), "parse", parse)
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.chdir(tmp_path)

    def check(arguments: list[str]) -> None:
        for name in arguments:
            if name.endswith(".toml"):  # an empty run file has the defaults
                Path(name).parent.mkdir(parents=True, exist_ok=True)
                Path(name).touch()
        try:
            code = main(arguments)
        except Parsed:
            code = 0
        assert code == 0, f"apex-acer {shlex.join(arguments)}"

    return check


def test_each_block_is_of_a_known_language_and_data_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    for page in PAGES:
        fences = [line for line in page.read_text(encoding="utf-8").splitlines() if line.lstrip(" >").startswith("```")]
        assert len(fences) == 2 * len(blocks_of(page)), f"{page.name}: a fence is indented, or not closed"
    assert not {block.language for block in BLOCKS} - LANGUAGES
    for block in BLOCKS:
        if block.language == "toml":
            parse_run(block.text, str(block))
        elif block.language == "json":
            json.loads(block.text)


RUNNING = sorted({b.page for b in BLOCKS if b.order == "run" or (b.language == "python" and not b.order)})


@pytest.mark.slow
@pytest.mark.timeout(240)  # the machine may be busy
@pytest.mark.parametrize("page", RUNNING, ids=lambda page: page.name)
def test_a_page_runs(page: Path, tmp_path: Path) -> None:
    lines = [command for block in blocks_of(page) if block.order == "run" for command in commands(block)]
    run(["bash", "-e", "-c", "\n".join(map(shlex.join, lines))], tmp_path)
    script = tmp_path / f"{page.stem}.py"
    script.write_text(program(page), encoding="utf-8")
    run([sys.executable, str(script)], tmp_path)


def test_pages_are_programs() -> None:
    for page in RUNNING:
        compile(program(page), str(page), "exec")


def program(page: Path) -> str:
    """The page's Python; line numbers are the page's."""
    lines = [""] * len(page.read_text(encoding="utf-8").splitlines())
    for block in blocks_of(page):
        if block.language == "python" and not block.order:
            code = block.text.splitlines()
            lines[block.line - 1 : block.line - 1 + len(code)] = code
    return "\n".join(lines)


def run(command: list[str], folder: Path) -> None:
    """In `folder`, with this environment's programs and the checkout's modules."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    variables = {**os.environ, "PATH": path, "PYTHONPATH": f"{ROOT}:{EXAMPLES}"}
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def test_commands_are_real(parse_only: Callable[[list[str]], None]) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert sum(program == "apex-acer" for _, (program, *_) in COMMANDS) > 50
    with pytest.raises(AssertionError):
        parse_only(["train", "cartpole", "--algorithm.gama", "1"])
    for block, (program, *arguments) in COMMANDS:
        if program == "apex-acer":
            parse_only(arguments)
        elif program == "make":
            assert arguments[0] in targets, str(block)
        elif program == "python" and arguments[0] == "-m":
            assert importlib.util.find_spec(arguments[1]), str(block)


INLINE = re.compile(r"`((?:apex-acer |--\w+\.)[^`\n…|]*)`")
PLACES = {"RUN": "cartpole", "WEIGHTS": "weights.safetensors", "SEED": "1", "S": "1", "N": "1"}


def test_commands_and_flags_within_sentences_are_real(parse_only: Callable[[list[str]], None]) -> None:
    flags = flags_of(Train)
    found = [text for page in PAGES for text in INLINE.findall(BLOCK.sub("", page.read_text(encoding="utf-8")))]
    assert len(found) > 50
    for text in found:
        name, *values = [PLACES.get(word, word) for word in shlex.split(text)]
        if "KEY" in text:
            continue
        if name != "apex-acer":
            assert flags[name.replace("_", "-")].switch is None or not values, f"{name} takes no value"
        elif len(values) > 2 and not {"--help", "--help-all"} & set(values):
            parse_only(values)
