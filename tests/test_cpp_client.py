"""The C++ client of docs/examples: its bytes beside the page's, and episodes with a real server."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.server import ServerConnection
from websockets.sync.server import serve as serve_script

from tests import ROOT
from tests.remote.conftest import LOST, TOKEN, Acting, Serve, serve, until
from tests.remote.test_messages import ROWS_2

COMPILER = shutil.which("g++") or shutil.which("clang++")
LINUX = Path("/proc/self/fd").exists()

pytestmark = pytest.mark.skipif(not (COMPILER and LINUX), reason="no C++ compiler, or not Linux")
assert serve  # the fixture

# `page` says what the page does; `play` has an observation [number, agent, 0, 0] of each of three agents, and prints actions
PROGRAM = r"""
#include <iostream>
#include "apex_acer_client.hpp"
using namespace apex_acer;

void print(const std::vector<std::vector<double>>& actions) {
    for (const auto& action : actions) {
        std::cout << "[";
        for (double number : action) std::cout << number << ",";
        std::cout << "]";
    }
    std::cout << std::endl;
}

void page(const std::string& port, const std::string& token) {
    Client client({"127.0.0.1", port, token, {{"", {2}, "float32"}}, {3}, 2});
    const float first[] = {0.5, -1, 0, 0}, second[] = {0, 0.5, 0.5, -1};
    print(client.steps({Kind::reset, Kind::wait}, {first}, {0, 0}));
    print(client.steps({Kind::terminated, Kind::reset}, {second}, {1.5, 0}));
}

void play(const std::string& port, const std::string& token, int rounds) {
    Client client({"127.0.0.1", port, token, {{"", {4}, "float32"}}, {2}, 3});
    for (int round = 0; round < rounds; ++round) try {
        float obs[3][4] = {};
        for (int agent = 0; agent < 3; ++agent) obs[agent][0] = float(round + agent), obs[agent][1] = float(agent);
        const Kind kind = round % 10 == 0 ? Kind::reset : round % 10 < 9 ? Kind::step : Kind::truncated;
        print(client.steps({kind, kind, kind}, {obs}, {1, 2, 3}));
    } catch (const EpisodeLost& error) {
        std::cout << "lost: " << error.what() << std::endl;
        round -= round % 10 + 1;
    }
}

int main(int, char** words) {
    try {
        std::string(words[1]) == "page" ? page(words[2], words[3]) : play(words[2], words[3], std::stoi(words[4]));
    } catch (const Ended& error) {
        std::cout << "ended: " << error.what() << std::endl;
    } catch (const RemoteError& error) {
        std::cout << "refused: " << error.what() << std::endl;
    }
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The compiled program."""
    folder = tmp_path_factory.mktemp("cpp")
    (folder / "program.cpp").write_text(PROGRAM)
    flags = [
        "-std=c++17",
        "-O1",
        "-Wall",
        "-Wextra",
        "-Wpedantic",
        "-Werror",
        "-Wno-missing-field-initializers",
        "-pthread",
    ]
    command = [str(COMPILER), *flags, f"-I{ROOT / 'docs/examples'}", "program.cpp", "-o", "program"]
    subprocess.run(command, cwd=folder, check=True, timeout=200)
    return str(folder / "program")


def test_the_code_on_the_page_compiles(tmp_path: Path) -> None:
    page = (ROOT / "docs/remote.md").read_text()
    head, _, body = page.partition('#include "apex_acer_client.hpp"')[2].partition("```")[0].partition("\n\n")
    given = "std::string token; float observations[3][4];"
    (tmp_path / "page.cpp").write_text(
        f'#include "apex_acer_client.hpp"{head}\nint main() {{ {given}\n{body}\nreturn int(first); }}'
    )
    command = [str(COMPILER), "-std=c++17", "-fsyntax-only", f"-I{ROOT / 'docs/examples'}", "page.cpp"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=200)


class Program:
    """The program while it runs, and the lines that it has printed."""

    def __init__(self, *words: Any) -> None:
        self._process = subprocess.Popen([str(word) for word in words], stdout=subprocess.PIPE, text=True)
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
            self.lines += []
            for line in lines:
                self.lines.append(line.strip())


@pytest.fixture
def run(program: str) -> Iterator[Any]:
    """Starts the program with a mode, an address and more words."""
    programs: list[Program] = []

    def start(mode: str, port: Any, *words: Any) -> Program:
        programs.append(Program(program, mode, port, *words))
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


def test_its_bytes_are_those_of_the_page(run: Any) -> None:
    said: list[bytes] = []

    def answer(connection: ServerConnection) -> None:
        for direction, _, data in ROWS_2:
            if direction == ">":
                heard = connection.recv(timeout=10)
                assert isinstance(heard, bytes)
                said.append(heard)
            else:
                connection.send(bytes.fromhex(data))

    with serve_script(answer, "127.0.0.1", 0, compression=None) as server:
        threading.Thread(target=server.serve_forever).start()
        lines = run("page", server.socket.getsockname()[1], TOKEN).ended()
        until(lambda: len(said) == 4)
        server.shutdown()
    assert lines == ["[2,][]", "[][0,]"]
    expected = [bytes.fromhex(data) for direction, _, data in ROWS_2 if direction == ">"]
    assert [said[at] for at in (0, 1, 3)] == [expected[at] for at in (0, 1, 3)]  # the other one is a list on the page


def test_episodes_through_connections_that_break(serve: Serve, run: Any) -> None:
    acting = serve(grace_s=60.0)
    playing = run("play", port_of(acting), TOKEN, 200)
    for num in (30, 180, 330):
        until(lambda num=num: len(acting.events) > num, 30)  # type: ignore[misc]
        cut(acting)
    lines = playing.ended()
    rounds = ["[0,][1,][0,]", "[1,][0,][1,]"]
    assert lines == ["[][][]" if number % 10 == 9 else rounds[number % 2] for number in range(200)]
    assert [event.kind for event in acting.events] == [*["reset"] * 3, *["step"] * 24, *["truncated"] * 3] * 20
    assert [event.reward for event in acting.events[3:6]] == [1, 2, 3]
    until(lambda: acting.server.num == 0)


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
