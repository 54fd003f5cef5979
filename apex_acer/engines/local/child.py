"""One role in its own process; the arguments of `main`, and of `python -m`, are ROLE INDEX PRIVATE PIPE.

Standard input is the parent-death pipe: JSON lines from the manager, of which the first says what to start; when it breaks,
the process ends. The process reports to the manager through the descriptor PIPE. PRIVATE is the run's folder under /tmp. The
process leads a process group, which the launcher kills when it has ended, with what its environments have started.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import faulthandler
import io
import json
import logging
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from apex_acer.system.process import WAIT_S, die_with_the_parent, name_process
from apex_acer.system.signals import ENDING, Dismissed

# slow imports are inside functions, so that the parent-death pipe is watched from the first moment on
STOP_S = 0.5  # in which actors can fetch their stop after the run has ended; others are dismissed
INTERRUPT_S = 0.5  # between interruptions of a dismissed process, until one has ended its loop
BEAT_S = 1.0  # between two reports of a process that makes steps
RAW_OUTPUT = 2  # the descriptor of the transcript, to which standard output goes, too


class NoTerminal(io.TextIOBase):
    """A role's standard input, on which a debugger fails at once instead of waiting."""

    def readline(self, size: int = -1, /) -> NoReturn:  # type: ignore[override]
        raise RuntimeError("nothing can be typed into this process; debug with --engine serial")


class Parent:
    """The two pipes to the manager: its messages, and the child's reports. The process ends if the manager is gone."""

    def __init__(self, private: str, pipe: int) -> None:
        self._private, self._pipe = private, pipe
        self._input = _take_standard_input()
        self.start: dict[str, Any] = self._read()
        self.address: str = self.start["address"]  # of the newest learner
        self.dismissed = False
        self._closing = False
        self._beat_at = 0.0  # monotonic seconds of the next report of steps
        # a thread, because Python runs no signal handler while native code hangs
        threading.Thread(target=self._listen, name="parent", daemon=True).start()

    def report(self, **fields: Any) -> None:
        os.write(self._pipe, json.dumps(fields).encode() + b"\n")

    def beat(self) -> None:
        """Reports a step of the environments; raises `Dismissed` if the process is to leave."""
        self._check()
        now = time.monotonic()
        if now >= self._beat_at:
            self._beat_at = now + BEAT_S
            self.report(heartbeat=True)

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Leaves the context when the manager dismisses the process; what comes after is not interrupted."""
        signal.signal(signal.SIGTERM, self._on_signal)
        try:
            yield
        except Dismissed:
            pass
        finally:
            self._closing = True

    def _check(self) -> None:
        if self.dismissed:
            raise Dismissed

    def _listen(self) -> None:
        while True:
            message = self._read()
            self.address = message.get("address", self.address)
            if message.get("leave"):
                self.dismissed = True
                threading.Thread(target=self._interrupt, name="interrupt", daemon=True).start()

    def _interrupt(self) -> None:
        """Interrupts a long step or wait, again and again: a destructor in the main thread would swallow one."""
        while not self._closing:
            time.sleep(INTERRUPT_S)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        if not self._closing:
            self._check()

    def _read(self) -> dict[str, Any]:
        line = b""
        while byte := os.read(self._input, 1):
            if byte == b"\n":
                return dict(json.loads(line))
            line += byte
        shutil.rmtree(self._private, ignore_errors=True)  # no other process is left to remove it
        os._exit(0)


def _take_standard_input() -> int:
    """Moves standard input to another descriptor, because what the role starts must not read it; returns that."""
    descriptor = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    sys.stdin = NoTerminal()
    return descriptor


def main(arguments: list[str]) -> int:
    """Runs the role to its end; returns 0 if it ended well, 2 after a configuration error, 1 after any other."""
    role, index, private, pipe = arguments
    os.set_inheritable(int(pipe), False)  # so that its end-of-file tells of this process's death
    leave_signals_to_the_manager()
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    if role != "learner":
        # Linux ends these with the launcher and so with the manager; the learner stays, to remove the private folder
        die_with_the_parent()
    name_process(f"{role}_{index}")
    parent = Parent(private, int(pipe))
    sys.path[:] = parent.start["path"]
    from apex_acer.config import ConfigError
    from apex_acer.engines.engine import one_line
    from apex_acer.storage.folder import held
    from apex_acer.storage.runlog import Log, Speech

    folder = Path(parent.start["folder"])
    speech = Speech(Log(folder), role if role != "actor" else f"actor_{index}", RAW_OUTPUT)
    sys.stdout = sys.stderr = speech.stream()
    logging.basicConfig(level=parent.start["config"]["logging"]["level"].upper(), format="%(message)s")
    try:
        with held(folder, parent.start["run_id"]):
            _run_learner(parent) if role == "learner" else _run_peer(parent)
    except ConfigError as error:
        parent.report(config_error=str(error))
        return 2
    except BaseException as error:  # `sys.exit` in a user's code is an error, too
        parent.report(raised=one_line(error))
        traceback.print_exc()
        return 1
    finally:
        atexit._run_exitfuncs()  # the process ends without Python's own shutdown, which would take torch apart for a second
        speech.end_line()
    parent.report(ended=True)
    return 0


def _run_learner(parent: Parent) -> None:
    import zmq

    from apex_acer.engines.engine import Run
    from apex_acer.engines.local.transport import InboxServer
    from apex_acer.engines.roles import make_learner, take_share

    run = Run.from_start(parent.start)
    take_share(run, "learner")
    learner = make_learner(run, parent.start["incarnations"])
    server = InboxServer(learner.inbox, parent.start["address"])
    parent.report(ready=True)
    while learner.step(WAIT_S):
        server.check()
    parent.report(result=dataclasses.asdict(learner.finish()))
    learner.inbox.wait_stopped(STOP_S)
    server.close()
    zmq.Context.instance().term()  # returns once everything is sent


def _run_peer(parent: Parent) -> None:
    from apex_acer.engines.engine import Run
    from apex_acer.engines.local.transport import DealerLink
    from apex_acer.engines.roles import make_peer, take_share
    from apex_acer.protocol.messages import Peer

    peer = Peer(*parent.start["peer"])
    with contextlib.ExitStack() as afterwards, parent.working():
        run, address = Run.from_start(parent.start), parent.address
        take_share(run, peer.role)
        link = DealerLink(address, peer, parent.beat)
        worker = make_peer(run, peer, link)
        afterwards.push(lambda kind, *_: worker.close(failed=kind is not None))
        parent.report(ready=True)
        while not parent.dismissed and worker.step(WAIT_S):
            if address != parent.address:  # there is a new learner
                address = parent.address
                link.close()
                link = DealerLink(address, peer, parent.beat)
                worker.reconnect(link)


@contextlib.contextmanager
def blocked_signals() -> Iterator[None]:
    """Blocks the manager's signals; a process that is started inside inherits that until it has handlers."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_signals_to_the_manager() -> None:
    """Has this process do nothing at signals that end programs, and unblocks what `blocked_signals` has blocked.

    They are not ignored, because what this process starts would inherit that, and a simulator could not be terminated.
    Under `nohup`, SIGHUP stays ignored.
    """
    for number in ENDING:
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda number, frame: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)


if __name__ == "__main__":
    # everything is closed; the interpreter's own shutdown would take torch apart for most of a second
    os._exit(main(sys.argv[1:]))
