"""`python -m apex_acer.engines.local.launcher SOCKET`: starts the processes of a run, and tells how each one ended.

It imports once what every role needs, torch above all, and forks: a role then starts in milliseconds instead of seconds,
and shares those libraries' memory with the others. On macOS, whose system libraries may not survive a fork, every role is a
new interpreter.

The launcher has one thread, so that a fork copies all of it. It leaves, and takes along what it started, when its socket
is closed; Linux ends it with the manager.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import traceback
from pathlib import Path

import numpy

from apex_acer.engines.local import child
from apex_acer.system.process import die_with_the_parent, environment_variables

IMPORTED = (
    "gymnasium.envs.registration",
    "tensorboardX",
    "apex_acer.actor.actor",
    "apex_acer.engines.local.transport",
    "apex_acer.actor.evaluator",
    "apex_acer.learner.learner",
    "apex_acer.config.runfile",
)
LEAVE_S = 2.0  # killed processes are gone within this, or stuck in the kernel
MAX_BYTES = 4096  # of a request


class Launcher:
    """The manager's side. Nothing here waits until the launcher has imported: its requests do."""

    def __init__(self, output: Path, *held: int, forks: bool = sys.platform == "linux") -> None:
        """What the launcher prints is appended to `output`; `forks`: whether roles are forked.

        It and all that it starts keep the descriptors `held` open.
        """
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setblocking(False)
        with theirs, output.open("ab") as file, child.blocked_signals():
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, str(theirs.fileno()), *(["forks"] if forks else [])],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                pass_fds=[theirs.fileno(), *held],
                env={**os.environ, **environment_variables()},
            )

    @property
    def alive(self) -> bool:
        """Whether it can start anything."""
        return self._process.poll() is None

    def start(self, arguments: list[str], stdin: int, output: int, pipe: int) -> None:
        """Asks for a process of `child`, with copies of the three descriptors.

        What becomes of it is written to `pipe` as JSON lines: `pid` once it runs, `exit` (as `subprocess` has it) when it
        has ended. A pipe that is just closed tells that the launcher cannot start it, or died.
        """
        with contextlib.suppress(OSError):  # it died, or is frozen
            socket.send_fds(self._socket, [json.dumps(arguments).encode()], [stdin, output, pipe])

    def close(self) -> None:
        """Ends the launcher and all that it has started."""
        self._socket.close()
        try:
            self._process.wait(LEAVE_S)
        except subprocess.TimeoutExpired:  # it is frozen
            self._process.kill()
            self._process.wait(LEAVE_S)


def main(number: int, *, forks: bool) -> None:
    """Serves the socket of that number until it is closed."""
    child.leave_signals_to_the_manager()
    die_with_the_parent()
    if forks:
        _import_once()
    server = Server(socket.socket(fileno=number), forks=forks)
    while server.serve():
        pass
    server.close()


def _import_once() -> None:
    for module in IMPORTED:
        with contextlib.suppress(Exception):  # the role that needs it fails, too, and says why
            importlib.import_module(module)
    gc.collect()
    gc.freeze()  # a collection in one process must not copy what all of them share


class Server:
    """The launcher's own side."""

    def __init__(self, requests: socket.socket, *, forks: bool) -> None:
        self._requests, self._forks = requests, forks
        self._pipes: dict[int, int] = {}  # by process id, of what has not ended
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        signal.set_wakeup_fd(self._wake)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)

    def serve(self) -> bool:
        """Waits for a request, or for a process to end; False once there are no more requests."""
        requests = self._requests.fileno()
        ready, _, _ = select.select([requests, self._woken], [], [])
        if self._woken in ready:
            os.read(self._woken, MAX_BYTES)
            self._tell_ends()
        if requests not in ready:
            return True
        request, descriptors, _, _ = socket.recv_fds(self._requests, MAX_BYTES, 3)
        if request:
            self._start(json.loads(request), *descriptors)
        return bool(request)

    def close(self) -> None:
        """Ends what was started."""
        for pid in self._pipes:
            os.kill(pid, signal.SIGKILL)
        while self._pipes:
            self._tell_end(*os.waitpid(-1, 0))

    def _start(self, arguments: list[str], stdin: int, output: int, pipe: int) -> None:
        for descriptor in stdin, output, pipe:
            os.set_inheritable(descriptor, False)
        pid = (self._fork if self._forks else _spawn)(arguments, stdin, output, pipe)
        self._pipes[pid] = pipe
        _say(pipe, pid=pid)
        os.close(stdin)
        os.close(output)

    def _fork(self, arguments: list[str], stdin: int, output: int, pipe: int) -> int:
        if pid := os.fork():
            return pid
        code = 1
        try:
            self._forget()
            for number, descriptor in enumerate((stdin, output, output)):
                os.dup2(descriptor, number)
            numpy.random.seed()  # or environments that draw from it would all draw the same
            code = child.main([*arguments, str(pipe)])
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def _forget(self) -> None:
        """In a fork: what is the launcher's."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._requests.close()
        for descriptor in self._woken, self._wake, *self._pipes.values():
            os.close(descriptor)

    def _tell_ends(self) -> None:
        with contextlib.suppress(ChildProcessError):  # there are no more
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                self._tell_end(*ended)

    def _tell_end(self, pid: int, status: int) -> None:
        pipe = self._pipes.pop(pid)
        _say(pipe, exit=os.waitstatus_to_exitcode(status))
        os.close(pipe)


def _spawn(arguments: list[str], stdin: int, output: int, pipe: int) -> int:
    os.set_inheritable(pipe, True)
    command = [sys.executable, "-P", "-m", child.__name__, *arguments, str(pipe)]
    copies = [(os.POSIX_SPAWN_DUP2, descriptor, number) for number, descriptor in enumerate((stdin, output, output))]
    pid = os.posix_spawn(sys.executable, command, os.environ, file_actions=copies)
    os.set_inheritable(pipe, False)
    return pid


def _say(pipe: int, **said: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # the manager has closed it
        os.write(pipe, json.dumps(said).encode() + b"\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), forks="forks" in sys.argv)
