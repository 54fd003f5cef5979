"""The single-file clients of docs/examples: what they say beside the page, and episodes with a real server."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from websockets.sync.server import ServerConnection
from websockets.sync.server import serve as serve_script

from tests import ROOT
from tests.remote.conftest import LOST, TOKEN, Acting, Serve, broken_server, serve, until
from tests.remote.test_messages import ROWS_2

EXAMPLES, HERE = ROOT / "docs/examples", Path(__file__).parent
COMPILER = shutil.which("g++") or shutil.which("clang++")
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-Wno-missing-field-initializers"]
LINUX = Path("/proc/self/fd").exists()
GODOT_PROJECT = 'config_version=5\n[application]\nconfig/name="clients"\n'
assert serve  # the fixture


class Language(NamedTuple):
    """A client's language: why its programs cannot be built here, or else how."""

    missing: str
    build: Callable[[Path, str], list[str]]
    """Builds a program from its source in a new folder; returns the command that runs it."""
    program: str


def build_cpp(folder: Path, source: str) -> list[str]:
    (folder / "program.cpp").write_text(source)
    command = [
        str(COMPILER),
        "-std=c++17",
        "-O1",
        *WARNINGS,
        "-pthread",
        f"-I{EXAMPLES}",
        "program.cpp",
        "-o",
        "program",
    ]
    subprocess.run(command, cwd=folder, check=True, timeout=200)
    return [str(folder / "program")]


def build_csharp(folder: Path, source: str) -> list[str]:
    (folder / "Program.cs").write_text(source)
    command = ["mcs", "-langversion:7", "-warn:4", "-warnaserror", "-out:program.exe"]
    subprocess.run([*command, "Program.cs", str(EXAMPLES / "ApexAcerClient.cs")], cwd=folder, check=True, timeout=200)
    return ["mono", str(folder / "program.exe")]


def build_godot(folder: Path, source: str) -> list[str]:
    (folder / "project.godot").write_text(GODOT_PROJECT)
    (folder / "program.gd").write_text(source)
    shutil.copy(EXAMPLES / "apex_acer_client.gd", folder)
    return ["godot", "--headless", "--no-header", "--path", str(folder), "--script", "program.gd", "--"]


def no_godot() -> str:
    """Why there is no Godot 4; empty if there is."""
    if not shutil.which("godot"):
        return "no Godot 4"
    version = subprocess.run(["godot", "--version"], capture_output=True, text=True, timeout=60).stdout
    return "" if version.startswith("4.") else "no Godot 4"


LANGUAGES = {
    "C++": Language("" if COMPILER and LINUX else "no C++ compiler, or not Linux", build_cpp, "program.cpp"),
    "C#": Language("" if shutil.which("mcs") and shutil.which("mono") else "no Mono", build_csharp, "Program.cs"),
    "GDScript": Language(no_godot(), build_godot, "program.gd"),
}


@pytest.fixture(scope="module", params=LANGUAGES)
def language(request: pytest.FixtureRequest) -> str:
    """A language whose programs can be built here."""
    if missing := LANGUAGES[request.param].missing:
        pytest.skip(missing)
    return str(request.param)


@pytest.fixture(scope="module")
def command(language: str, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Runs the language's program."""
    source = (HERE / LANGUAGES[language].program).read_text(encoding="utf-8")
    return LANGUAGES[language].build(tmp_path_factory.mktemp("program"), source)


class Program:
    """The program while it runs, and the lines that it has printed."""

    def __init__(self, command: list[str], *words: Any, **variables: str) -> None:
        words = tuple(str(word) for word in words)
        self._process = subprocess.Popen(
            [*command, *words], env=os.environ | variables, stdout=subprocess.PIPE, text=True
        )
        self.lines: list[str] = []
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def ended(self) -> list[str]:
        """All lines."""
        assert self._process.wait(60) == 0
        self._thread.join(5)
        return self.lines

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout
        with self._process.stdout as lines:
            for line in lines:
                self.lines.append(line.strip())


@pytest.fixture
def run(command: list[str], tmp_path: Path) -> Iterator[Any]:
    """Starts the program with a mode, an address and more words."""
    programs: list[Program] = []

    def start(mode: str, port: Any, *words: Any) -> Program:
        programs.append(Program(command, mode, port, *words, HOME=str(tmp_path)))
        return programs[-1]

    yield start
    for each in programs:
        each.close()


def port_of(acting: Acting) -> str:
    return acting.server.url.rpartition(":")[2]


def cut(acting: Acting) -> None:
    """Breaks all connections of a server."""
    for session in acting.server._sessions.connected():
        acting.server._loop.call_soon_threadsafe(session.connection.transport.abort)


def test_a_page_s_code_in_cpp_compiles(tmp_path: Path) -> None:
    if missing := LANGUAGES["C++"].missing:
        pytest.skip(missing)
    head, _, body = page("C++").partition("\n\n")
    given = "std::string token; float observations[3][4];"
    source = f"{head}\nint main() {{ {given}\n{body}\nreturn int(first); }}"
    (tmp_path / "page.cpp").write_text(source)
    command = [str(COMPILER), "-std=c++17", "-fsyntax-only", f"-I{EXAMPLES}", "page.cpp"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=200)


def test_a_page_s_code_in_csharp_compiles(tmp_path: Path) -> None:
    if missing := LANGUAGES["C#"].missing:
        pytest.skip(missing)
    head, _, body = page("C# (Unity)").partition("\n\n")
    given = "string token = null; float[,] observations = null;"
    build_csharp(
        tmp_path, f"{head}\nstatic class Page {{ static int Main() {{ {given}\n{body}\nreturn (int)first; }} }}"
    )


def test_a_page_s_code_in_gdscript_compiles(tmp_path: Path) -> None:
    if missing := LANGUAGES["GDScript"].missing:
        pytest.skip(missing)
    code = page("Godot").replace("\n", "\n\t").replace("ApexAcerClient", 'preload("apex_acer_client.gd")')
    command = build_godot(tmp_path, f"extends Node\nfunc play(token, kinds, observations, rewards):\n\t{code}")
    done = subprocess.run([*command[:-1], "--check-only"], env=os.environ | {"HOME": str(tmp_path)}, timeout=60)
    assert done.returncode == 0


def page(title: str) -> str:
    """The code below a title of docs/remote.md."""
    section = (ROOT / "docs/remote.md").read_text(encoding="utf-8").partition(f"\n## In {title}\n")[2]
    return section.partition("```text\n")[2].partition("```")[0]


def test_it_says_what_the_page_says(run: Any, language: str) -> None:
    said: list[bytes | str] = []
    sent: list[bytes | str] = []

    def answer(connection: ServerConnection) -> None:
        for direction, message, data in ROWS_2:
            if direction == ">":
                said.append(connection.recv(timeout=10))
                continue
            for old in sent[-1:]:  # as after a connection that broke; the client must ignore it
                connection.send(old)
            sent.append(message if isinstance(said[0], str) else bytes.fromhex(data))
            connection.send(sent[-1])

    with serve_script(answer, "127.0.0.1", 0, compression=None) as server:
        threading.Thread(target=server.serve_forever).start()
        lines = run("page", server.socket.getsockname()[1], TOKEN).ended()
        until(lambda: len(said) == 4)
        server.shutdown()
    assert lines == ["[2,][]", "[][0,]"]
    expected = [bytes.fromhex(data) for direction, _, data in ROWS_2 if direction == ">"]
    if language == "GDScript":
        messages = [json.loads(message) for direction, message, _ in ROWS_2 if direction == ">"]
        messages[1]["observations"] = [0.5, -1, 0, 0]  # a bin on the page
        assert [json.loads(each) for each in said] == messages
    else:  # the third message has a list on the page
        assert [said[at] for at in (0, 1, 3)] == [expected[at] for at in (0, 1, 3)]


def test_episodes_through_connections_that_break(serve: Serve, run: Any) -> None:
    acting = serve(grace_s=60.0)
    acting.hold_at = [180, 330]
    playing = run("play", port_of(acting), TOKEN, 200)
    until(lambda: len(acting.events) > 30, 30)
    cut(acting)
    while acting.hold_at or acting.holds:
        until(lambda: acting._held and acting.holds, 30)  # the server has a message, and its answer is missed
        cut(acting)
        acting.holds = False
    lines = playing.ended()
    rounds = ["[0,][1,][0,]", "[1,][0,][1,]"]
    assert lines == ["[][][]" if number % 10 == 9 else rounds[number % 2] for number in range(200)]
    until(lambda: len(acting.events) >= 600)
    assert [event.kind for event in acting.events] == [*["reset"] * 3, *["step"] * 24, *["truncated"] * 3] * 20
    assert [event.reward for event in acting.events[3:6]] == [1, 2, 3]
    until(lambda: acting.server.num == 0)


def test_pauses_grow_as_long_as_no_message_is_answered(run: Any) -> None:
    with broken_server() as (port, welcomes):
        run("play", port, TOKEN, 1)
        until(lambda: len(welcomes) >= 5, 30)
    assert welcomes[4] - welcomes[0] > 0.5 * (0.1 + 0.2 + 0.4 + 0.8)


def test_lost_episodes_refusals_and_the_end_are_told(serve: Serve, run: Any) -> None:
    acting = serve(grace_s=0.0)
    assert run("play", port_of(acting), "open", 1).ended() == ["refused: wrong token"]
    playing = run("play", port_of(acting), TOKEN, 10**6)
    until(lambda: len(acting.events) > 30, 30)
    acting.holds = True
    until(lambda: acting._held)
    cut(acting)
    until(lambda: LOST in acting.kinds(), 30)
    acting.holds = False
    num = len(acting.events)
    until(lambda: len(acting.events) > num + 60, 30)
    acting.server.close()
    lines = playing.ended()
    assert lines[-1] == "ended: the run has ended"
    lost = "lost: the connection was broken for too long; begin new episodes"
    assert lines.count(lost) <= 1, "one that was lost before its reset was answered is not told"
    assert set(lines[:-1]) <= {lost, "[][][]", "[0,][1,][0,]", "[1,][0,][1,]"}
