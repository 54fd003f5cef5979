"""One role in a process of its own: `main`'s arguments, or those of `python -m`, are ROLE INDEX PRIVATE PIPE.

Standard input is the lifeline: JSON lines from the manager, first what to start with; when it breaks, the process leaves.
What the manager is told goes into the descriptor PIPE. PRIVATE is the run's folder under /tmp.
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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from apex_acer.system.process import WAIT_S, die_with_the_parent, name_process

# what takes time to import is imported where it is needed, so that the lifeline holds from the first moment on

STOP_S = 2.0  # for actors to come for their stop after the run ended
RAW_OUTPUT = 2  # the descriptor of the transcript, as that of standard output is
MANAGERS_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


class Parent:
    """What a child says to the manager, as JSON lines."""

    def __init__(self, pipe: int) -> None:
        os.set_inheritable(pipe, False)  # its end-of-file tells of this process's death, whatever environments start
        self._pipe = pipe

    def say(self, **said: Any) -> None:
        """Writes one line."""
        os.write(self._pipe, json.dumps(said).encode() + b"\n")


class Lifeline:
    """What the manager says to a child; ends the process when the manager is gone, however it went."""

    def __init__(self, private: str) -> None:
        self._private = private
        self.start: dict[str, Any] = self._hear()
        self.address: str = self.start["address"]
        """The newest learner's."""
        # a thread, because native code may hang where signal handlers never run
        threading.Thread(target=self._listen, name="lifeline", daemon=True).start()

    def _listen(self) -> None:
        while True:
            self.address = self._hear()["address"]

    def _hear(self) -> dict[str, Any]:
        """The next line."""
        line = b""
        while byte := os.read(0, 1):
            if byte == b"\n":
                return dict(json.loads(line))
            line += byte
        shutil.rmtree(self._private, ignore_errors=True)  # nobody else is left to clean up
        os._exit(0)


def main(arguments: list[str]) -> int:
    """Runs the role to its end; 0 where it ended well, 2 for a configuration error, 1 for anything else."""
    role, index, private, pipe = arguments
    parent = Parent(int(pipe))
    leave_signals_to_the_manager()
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)  # where it hangs
    if role != "learner":
        # the launcher ends with the manager; not the learner: somebody must be left to remove the private folder
        die_with_the_parent()
    name_process(f"{role}_{index}")
    lifeline = Lifeline(private)
    sys.path[:] = lifeline.start["path"]
    from apex_acer.config import ConfigError
    from apex_acer.engines.engine import one_line
    from apex_acer.storage.runlog import Log, Speech

    speech = Speech(Log(Path(lifeline.start["folder"])), role if role != "actor" else f"actor_{index}", RAW_OUTPUT)
    sys.stdout = sys.stderr = speech.stream()
    logging.basicConfig(level=lifeline.start["config"]["logging"]["level"].upper(), format="%(message)s")
    try:
        _run_learner(lifeline, parent) if role == "learner" else _run_peer(role, int(index), lifeline, parent)
    except ConfigError as error:
        parent.say(config_error=str(error))
        return 2
    except Exception as error:
        parent.say(raised=one_line(error))
        traceback.print_exc()
        return 1
    finally:
        speech.end_line()
    parent.say(ended=True)
    return 0


def _run_learner(lifeline: Lifeline, parent: Parent) -> None:
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
    parent.say(ready=True)
    while learner.step(WAIT_S):
        server.check()
    parent.say(result=dataclasses.asdict(learner.finish()))
    learner.inbox.wait_stopped(STOP_S)
    server.close()
    zmq.Context.instance().term()  # once all that was sent has left


def _run_peer(role: str, index: int, lifeline: Lifeline, parent: Parent) -> None:
    import torch

    from apex_acer.actor.actor import Actor
    from apex_acer.actor.evaluator import Evaluator
    from apex_acer.config.runfile import from_dict
    from apex_acer.engines.local.transport import DealerLink
    from apex_acer.protocol.messages import Peer

    start, address = lifeline.start, lifeline.address
    os.nice(start["nice"])
    torch.set_num_threads(start["threads"])
    peer = Peer("actor" if role == "actor" else "evaluator", index, start["incarnation"])
    link = DealerLink(address, peer)
    given = from_dict(start["config"]), start["run_id"], peer, link, start["threads"]
    worker = Actor(*given) if role == "actor" else Evaluator(*given, Path(start["folder"]))
    parent.say(ready=True)
    while worker.step(WAIT_S):
        if address != lifeline.address:  # another learner took over
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
    """Ignores what a terminal sends to the whole group; the manager started this process with it blocked."""
    for number in MANAGERS_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, MANAGERS_SIGNALS)


if __name__ == "__main__":
    os._exit(
        main(sys.argv[1:])
    )  # all is closed; taking torch apart would keep the run from ending for most of a second
