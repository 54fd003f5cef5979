"""A real shell in a terminal that is emulated, to see what a user sees."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import signal
import struct
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyte

from tests.processes import children, processes

PROMPT = "shell> "
WITHIN_S = 40.0


class Terminal:
    """A shell with job control that leaves the terminal's modes as programs leave them, unlike those that edit lines."""

    def __init__(
        self, folder: Path, columns: int, lines: int, command: Sequence[str] = ("/bin/sh", "-i"), **environment: str
    ) -> None:
        """A terminal in `folder`; `command` is the shell, `environment` is added to this one's."""
        self._screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self._screen)
        self._lock = threading.Lock()
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            binaries = str(Path(sys.executable).parent)
            path = {"PATH": f"{binaries}:{os.environ['PATH']}", "PS1": PROMPT, "TERM": "xterm-256color"}
            hidden = {"COLUMNS", "LINES", "NO_COLOR", "ENV"}
            kept = {name: value for name, value in os.environ.items() if name not in hidden}
            os.execvpe(command[0], list(command), {**kept, **path, **environment})
        self.resize(columns, lines)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self.wait_for(PROMPT.rstrip())

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while data := os.read(self._fd, 65536):
                with self._lock:
                    self._stream.feed(data)

    def resize(self, columns: int, lines: int) -> None:
        """As if its window's corner was dragged."""
        with self._lock:
            self._screen.resize(lines, columns)
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def type(self, keys: str) -> None:
        """Presses keys; `\\x03` is Ctrl-C."""
        os.write(self._fd, keys.encode())

    @property
    def lines(self) -> list[str]:
        """What is on the screen, without the blanks at the right and below."""
        with self._lock:
            text = "\n".join(line.rstrip() for line in self._screen.display)
        return text.rstrip().split("\n")

    def find(self, pattern: str) -> list[str]:
        """The lines on the screen in which `pattern` is found."""
        return [line for line in self.lines if re.search(pattern, line)]

    def wait_for(self, *patterns: str, within_s: float = WITHIN_S) -> None:
        """Until each pattern is found in a line of the screen."""
        self.wait_until(lambda: all(self.find(pattern) for pattern in patterns), within_s)

    def wait_until(self, condition: Callable[[], object], within_s: float = WITHIN_S) -> None:
        """Until `condition` holds; fails with what is on the screen where it does not in time."""
        deadline = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < deadline, "\n".join(["not in time:", *self.lines])
            time.sleep(0.05)

    def assert_as_before(self) -> None:
        """The cursor is shown, and what is typed is, too."""
        self.wait_until(lambda: not self._screen.cursor.hidden, 2.0)
        assert self.echoes
        assert not self.find(r"\x1b|\^\[|\[\?25")

    @property
    def echoes(self) -> bool:
        """Whether what is typed is shown."""
        return bool(termios.tcgetattr(self._fd)[3] & termios.ECHO)

    def program(self) -> dict[str, int]:
        """Process ids of the run that the shell has started, by name."""
        (manager,) = children(self.pid)
        return processes(manager)

    def close(self) -> None:
        """Ends the shell and what it has started, as closing the window does."""
        left = [pid for child in children(self.pid) for pid in processes(child).values()]
        os.close(self._fd)
        for pid in [self.pid, *left]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self._reader.join()


@contextlib.contextmanager
def terminal(folder: Path, columns: int = 100, lines: int = 30, **more: Any) -> Iterator[Terminal]:
    """A terminal that is closed afterwards."""
    opened = Terminal(folder, columns, lines, **more)
    try:
        yield opened
    finally:
        opened.close()
