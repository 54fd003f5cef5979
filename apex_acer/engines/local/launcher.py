"""`python -m apex_acer.engines.local.launcher SOCKET` starts the processes of a run, and reports how each of them ended.

It imports once what every role needs, torch above all, and forks: a role then starts in milliseconds instead of seconds
and shares the libraries' memory with the others. On macOS, whose system libraries may not survive a fork, every role is a
new interpreter.

The launcher has one thread, so that a fork copies all of it. Each role leads a process group, and what is left of the group
is killed when the role has ended. When its socket is closed, or the manager dies, the launcher kills all groups and ends.
It is in a group of its own, so that Ctrl-Z does not stop it.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import traceback
import weakref
from pathlib import Path

import numpy

from apex_acer.engines.local import child
from apex_acer.storage.runlog import last
from apex_acer.system.process import die_with_the_parent, environment_variables, kill_group, outlive_the_parent
from apex_acer.system.signals import ENDING

IMPORTED = (
    "gymnasium.envs.registration",
    "tensorboardX",
    "apex_acer.engines.local.transport",
    "apex_acer.engines.roles",
    "apex_acer.config.runfile",
)
LEAVE_S = 2.0  # in which killed processes are gone, unless they are stuck in the kernel
MAX_BYTES = 4096  # of a request
CLOSE = b"close"  # the request that ends the launcher and all that it has started


class Launcher:
    """The launcher as the manager sees it: it never waits for the launcher's imports, though a request may."""

    def __init__(self, output: Path, *kept_open: int, forks: bool = sys.platform == "linux") -> None:
        """`output` gets what the launcher prints; `forks`: whether it forks roles rather than starts interpreters.

        The launcher and all that it starts keep the descriptors `kept_open`.
        """
        self._output, self._start = output, output.stat().st_size if output.exists() else 0
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setblocking(False)
        with theirs, output.open("ab") as file, child.blocked_signals():
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, str(theirs.fileno()), *(["forks"] if forks else [])],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                pass_fds=[theirs.fileno(), *kept_open],
                env={**os.environ, **environment_variables()},
                process_group=0,
            )

    @property
    def printed(self) -> str:
        """The end of what it has printed."""
        return last(self._output, self._start)

    @property
    def alive(self) -> bool:
        """Whether it can start processes."""
        return self._process.poll() is None

    def start(self, arguments: list[str], stdin: int, output: int, pipe: int) -> None:
        """Asks for a process that runs `child`, with copies of the three descriptors.

        `pipe` gets JSON lines: `pid` once the process runs, and `exit` (as in `subprocess`) when it has ended. If `pipe`
        closes without them, the launcher could not start the process, or died.
        """
        with contextlib.suppress(OSError):  # the launcher died, or is frozen
            socket.send_fds(self._socket, [json.dumps(arguments).encode()], [stdin, output, pipe])

    def close(self) -> None:
        with contextlib.suppress(OSError):  # the launcher died, or is frozen
            self._socket.send(CLOSE)
        self._socket.close()
        try:
            self._process.wait(LEAVE_S)
        except subprocess.TimeoutExpired:  # it is frozen
            self._process.kill()
            self._process.wait(LEAVE_S)


def main(number: int, *, forks: bool) -> None:
    """Serves the socket with the descriptor `number` until the manager has closed it."""
    child.leave_signals_to_the_manager()
    die_with_the_parent()  # until the imports are done, because it does not look at its socket meanwhile
    if forks:
        _import_once()
    outlive_the_parent()
    server = Server(socket.socket(fileno=number), forks=forks)
    while server.serve():
        pass


def _import_once() -> None:
    for module in IMPORTED:
        with contextlib.suppress(Exception):  # a role that needs the module fails, too, and says why
            importlib.import_module(module)
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        finalizer.atexit = False  # torch's would take a role's last moments to take torch apart
    gc.collect()
    gc.freeze()  # a garbage collection in one process must not copy the memory that all of them share


class Server:
    """The process of the launcher."""

    def __init__(self, requests: socket.socket, *, forks: bool) -> None:
        self._requests, self._forks = requests, forks
        self._private = ""  # the run's folder under /tmp, once it is known
        self._pipes: dict[int, int] = {}  # of the running processes, by process id
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        signal.set_wakeup_fd(self._wake)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)

    def serve(self) -> bool:
        """Waits for a request or for a process to end; returns False if the manager closes the launcher, or is gone."""
        requests = self._requests.fileno()
        ready, _, _ = select.select([requests, self._woken], [], [])
        if self._woken in ready:
            os.read(self._woken, MAX_BYTES)
            with contextlib.suppress(ChildProcessError):  # no process is left
                while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                    self._report_end(*ended)
        if requests not in ready:
            return True
        request, descriptors, _, _ = socket.recv_fds(self._requests, MAX_BYTES, 3)
        if request in (b"", CLOSE):
            self._close()
            if not request and self._private:  # nobody else is left to remove it
                shutil.rmtree(self._private, ignore_errors=True)
            return False
        self._start(json.loads(request), *descriptors)
        return True

    def _close(self) -> None:
        """Kills what was started, and what that has started."""
        for pid in self._pipes:
            kill_group(pid)
        while self._pipes:
            self._report_end(*os.waitpid(-1, 0))

    def _start(self, arguments: list[str], stdin: int, output: int, pipe: int) -> None:
        for descriptor in stdin, output, pipe:
            os.set_inheritable(descriptor, False)
        self._private = arguments[2]
        try:
            pid = (self._fork if self._forks else _spawn)(arguments, stdin, output, pipe)
        except OSError:  # there is no room for another process; the end of its pipe tells the manager
            traceback.print_exc()
            os.close(pipe)
        else:
            self._pipes[pid] = pipe
            _report(pipe, pid=pid)
        os.close(stdin)
        os.close(output)

    def _fork(self, arguments: list[str], stdin: int, output: int, pipe: int) -> int:
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)  # until the role has its own handlers
        pid = -1
        try:
            pid = os.fork()
        finally:
            if pid:  # also if there is no room for another process
                signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        if pid:
            os.setpgid(pid, pid)
            return pid
        code = 1
        try:
            os.setpgid(0, 0)  # whichever of the two comes first
            self._close_own()
            for number, descriptor in enumerate((stdin, output, output)):
                os.dup2(descriptor, number)
            numpy.random.seed()  # else environments that draw from it would all draw the same
            code = child.main([*arguments, str(pipe)])
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def _close_own(self) -> None:
        """Closes, in a fork, what is the launcher's."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._requests.close()
        for descriptor in self._woken, self._wake, *self._pipes.values():
            os.close(descriptor)

    def _report_end(self, pid: int, status: int) -> None:
        kill_group(pid)
        pipe = self._pipes.pop(pid)
        _report(pipe, exit=os.waitstatus_to_exitcode(status))
        os.close(pipe)


def _spawn(arguments: list[str], stdin: int, output: int, pipe: int) -> int:
    os.set_inheritable(pipe, True)
    command = [sys.executable, "-P", "-m", child.__name__, *arguments, str(pipe)]
    copies = [(os.POSIX_SPAWN_DUP2, descriptor, number) for number, descriptor in enumerate((stdin, output, output))]
    pid = os.posix_spawn(sys.executable, command, os.environ, file_actions=copies, setpgroup=0)
    os.set_inheritable(pipe, False)
    return pid


def _report(pipe: int, **fields: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # the manager has closed it
        os.write(pipe, json.dumps(fields).encode() + b"\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), forks="forks" in sys.argv)
