"""One role in its own process: `main`'s arguments, or those of `python -m`, are ROLE INDEX PRIVATE PIPE.

Standard input is the lifeline: JSON lines from the manager, of which the first says what to start; when it breaks, the
process ends. The process reports to the manager through the descriptor PIPE. PRIVATE is the run's folder under /tmp.
"""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import json
import logging
import os
import shutil
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from apex_acer.system.process import WAIT_S, die_with_the_parent, name_process

# slow imports are inside functions, so that the lifeline is watched from the first moment on

STOP_S = 2.0  # in which actors can fetch their stop after the run has ended
RAW_OUTPUT = 2  # the descriptor of the transcript, to which standard output goes, too
MANAGERS_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
Report = Callable[..., None]


class Lifeline:
    """What the manager tells a child; ends the process when the manager is gone, whatever ended it."""

    def __init__(self, private: str) -> None:
        self._private = private
        self.start: dict[str, Any] = self._read()
        self.address: str = self.start["address"]  # of the newest learner
        self.leave: Callable[[], None] = lambda: (
            None
        )  # what is to be done before the process ends on the manager's word
        # a thread, because Python runs no signal handler while native code hangs
        threading.Thread(target=self._listen, name="lifeline", daemon=True).start()

    def _listen(self) -> None:
        while True:
            said = self._read()
            self.address = said["address"]
            if said.get("leave"):
                self.leave()
                os._exit(0)

    def _read(self) -> dict[str, Any]:
        line = b""
        while byte := os.read(0, 1):
            if byte == b"\n":
                return dict(json.loads(line))
            line += byte
        shutil.rmtree(self._private, ignore_errors=True)  # no other process is left to remove it
        os._exit(0)


def main(arguments: list[str]) -> int:
    """Runs the role to its end; returns 0 if it ended well, 2 after a configuration error, 1 after any other."""
    role, index, private, pipe = arguments
    os.set_inheritable(
        int(pipe), False
    )  # only this process holds it, so that its end-of-file tells of this one's death
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
    link = DealerLink(address, peer)
    make = Actor if role == "actor" else make_evaluator
    worker = make(from_dict(start["config"]), start["run_id"], peer, link, start["threads"], Path(start["folder"]))
    lifeline.leave = worker.close
    report(ready=True)
    while worker.step(WAIT_S):
        if address != lifeline.address:  # there is a new learner
            address = lifeline.address
            link.close()
            link = DealerLink(address, peer)
            worker.reconnect(link)
    worker.close()
    link.close()


@contextlib.contextmanager
def blocked_signals() -> Iterator[None]:
    """A process started inside begins with the manager's signals blocked, and unblocks them when it ignores them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, MANAGERS_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_signals_to_the_manager() -> None:
    """Ignores what a terminal sends to the whole process group, and unblocks what `blocked_signals` has blocked."""
    for number in MANAGERS_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, MANAGERS_SIGNALS)


if __name__ == "__main__":
    # everything is closed; the interpreter's own shutdown would take torch apart for most of a second
    os._exit(main(sys.argv[1:]))
