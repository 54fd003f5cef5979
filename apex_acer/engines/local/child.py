"""One role in its own process: `main`'s arguments, or those of `python -m`, are ROLE INDEX PRIVATE PIPE.

Standard input is the lifeline: JSON lines from the manager, of which the first says what to start; when it breaks, the
process ends. The process reports to the manager through the descriptor PIPE. PRIVATE is the run's folder under /tmp. The
process leads a process group, which the launcher kills once it has ended: what its environments have started ends with it.
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
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from apex_acer.system.process import WAIT_S, die_with_the_parent, name_process
from apex_acer.system.signals import ENDING, Dismissed

# slow imports are inside functions, so that the lifeline is watched from the first moment on

STOP_S = 0.5  # in which actors can fetch their stop after the run has ended; others are dismissed
INTERRUPT_S = 0.5  # between interruptions of a dismissed process, until one has ended its loop
BEAT_S = 1.0  # between two reports of a process that makes steps
RAW_OUTPUT = 2  # the descriptor of the transcript, to which standard output goes, too
Report = Callable[..., None]


class NoTerminal(io.TextIOBase):
    """A role's standard input, on which a debugger fails at once instead of waiting for what nobody can type."""

    def readline(self, size: int = -1, /) -> NoReturn:  # type: ignore[override]
        """Raises an error that says where a debugger works."""
        raise RuntimeError("nothing can be typed into this process; debug with --engine serial")


class Lifeline:
    """What the manager tells a child; ends the process when the manager is gone, whatever ended it."""

    def __init__(self, private: str) -> None:
        self._private = private
        self._input = _take_standard_input()
        self.start: dict[str, Any] = self._read()
        self.address: str = self.start["address"]  # of the newest learner
        self.dismissed = False
        self._closing = False
        # a thread, because Python runs no signal handler while native code hangs
        threading.Thread(target=self._listen, name="lifeline", daemon=True).start()

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Ends the context with `Dismissed` when the manager dismisses the process; what comes after is not interrupted."""
        signal.signal(signal.SIGTERM, self._on_signal)
        try:
            yield
        except Dismissed:
            pass
        finally:
            self._closing = True

    def check(self) -> None:
        """Raises `Dismissed` if the process is to leave."""
        if self.dismissed:
            raise Dismissed

    def _listen(self) -> None:
        while True:
            said = self._read()
            self.address = said.get("address", self.address)
            if said.get("leave"):
                self.dismissed = True
                threading.Thread(target=self._interrupt, name="interrupt", daemon=True).start()

    def _interrupt(self) -> None:
        """Interrupts a step or a wait that is too long, again and again: a destructor in the main thread swallows it."""
        while not self._closing:
            time.sleep(INTERRUPT_S)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        if not self._closing:
            self.check()

    def _read(self) -> dict[str, Any]:
        line = b""
        while byte := os.read(self._input, 1):
            if byte == b"\n":
                return dict(json.loads(line))
            line += byte
        shutil.rmtree(self._private, ignore_errors=True)  # no other process is left to remove it
        os._exit(0)


def _take_standard_input() -> int:
    """Moves standard input to another descriptor, which is returned: what the role starts must not read from it."""
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
    lifeline = Lifeline(private)
    sys.path[:] = lifeline.start["path"]
    from apex_acer.config import ConfigError
    from apex_acer.engines.engine import one_line
    from apex_acer.storage.folder import held
    from apex_acer.storage.runlog import Log, Speech

    folder = Path(lifeline.start["folder"])

    def report(**said: Any) -> None:
        os.write(int(pipe), json.dumps(said).encode() + b"\n")

    speech = Speech(Log(folder), role if role != "actor" else f"actor_{index}", RAW_OUTPUT)
    sys.stdout = sys.stderr = speech.stream()
    logging.basicConfig(level=lifeline.start["config"]["logging"]["level"].upper(), format="%(message)s")
    try:
        with held(folder, lifeline.start["run_id"]):
            _run_learner(lifeline, report) if role == "learner" else _run_peer(role, int(index), lifeline, report)
    except ConfigError as error:
        report(config_error=str(error))
        return 2
    except BaseException as error:  # `sys.exit` in a user's code is an error, too
        report(raised=one_line(error))
        traceback.print_exc()
        return 1
    finally:
        atexit._run_exitfuncs()  # the process ends without Python's own shutdown, which would take torch apart for a second
        speech.end_line()
    report(ended=True)
    return 0


def _run_learner(lifeline: Lifeline, report: Report) -> None:
    import torch
    import zmq

    from apex_acer.config.runfile import from_dict
    from apex_acer.engines.local.transport import InboxServer
    from apex_acer.learner.learner import Learner
    from apex_acer.protocol.specification import EnvironmentSpec

    start = lifeline.start
    torch.set_num_threads(start["threads"])
    config, spec = from_dict(start["config"]), EnvironmentSpec.from_dict(start["spec"])
    folder, resume = Path(start["folder"]), start["resume"]
    learner = Learner(config, spec, folder, start["run_id"], start["started_at"], resume=resume)
    learner.inbox.expect(start["incarnations"])
    server = InboxServer(learner.inbox, start["address"])
    report(ready=True)
    while learner.step(WAIT_S):
        server.check()
    report(result=dataclasses.asdict(learner.finish()))
    learner.inbox.wait_stopped(STOP_S)
    server.close()
    zmq.Context.instance().term()  # returns once everything is sent


def _run_peer(role: str, index: int, lifeline: Lifeline, report: Report) -> None:
    import torch

    from apex_acer.actor.actor import Actor
    from apex_acer.actor.evaluator import make_evaluator
    from apex_acer.config.runfile import from_dict
    from apex_acer.engines.local.transport import DealerLink
    from apex_acer.protocol.messages import Peer

    start, address = lifeline.start, lifeline.address
    os.nice(start["nice"])
    torch.set_num_threads(start["threads"])
    peer = Peer("actor" if role == "actor" else "evaluator", index, start["incarnation"])
    heartbeat = Heartbeat(lifeline, report)
    link = DealerLink(address, peer, heartbeat)
    make = Actor if role == "actor" else make_evaluator
    with contextlib.ExitStack() as afterwards, lifeline.working():
        given = from_dict(start["config"]), start["run_id"], peer, link, start["threads"], Path(start["folder"])
        worker = afterwards.enter_context(contextlib.closing(make(*given)))
        report(ready=True)
        while not lifeline.dismissed and worker.step(WAIT_S):
            if address != lifeline.address:  # there is a new learner
                address = lifeline.address
                link.close()
                link = DealerLink(address, peer, heartbeat)
                worker.reconnect(link)


class Heartbeat:
    """Called after each step of the environments: reports that the process does not hang, and ends it if it is dismissed."""

    def __init__(self, lifeline: Lifeline, report: Report) -> None:
        self._lifeline, self._report = lifeline, report
        self._due_at = 0.0  # monotonic seconds

    def __call__(self) -> None:
        """Raises `Dismissed` if the process is to leave."""
        self._lifeline.check()
        now = time.monotonic()
        if now >= self._due_at:
            self._due_at = now + BEAT_S
            self._report(heartbeat=True)


@contextlib.contextmanager
def blocked_signals() -> Iterator[None]:
    """A process started inside begins with the manager's signals blocked, and unblocks them when it ignores them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_signals_to_the_manager() -> None:
    """Does nothing at a signal that ends programs, and unblocks what `blocked_signals` has blocked.

    A handler that does nothing, because what this process starts would inherit an ignored signal: a simulator could not be
    terminated. Under `nohup`, SIGHUP stays ignored.
    """
    for number in ENDING:
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _do_nothing)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)


def _do_nothing(number: int, frame: FrameType | None) -> None:
    del number, frame


if __name__ == "__main__":
    # everything is closed; the interpreter's own shutdown would take torch apart for most of a second
    os._exit(main(sys.argv[1:]))
