"""`python -m apex_acer.engines.local.child ROLE INDEX PIPE`: one role in a process of its own.

Reads one JSON line from standard input, which then stays open as the lifeline: when it breaks, the process leaves.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import shutil
import signal
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

from apex_acer.config import ConfigError

WAIT_S = 1.0  # of every blocking call, after which the loop looks around
STOP_S = 3.0  # for actors to come for their stop after the run ended


class Parent:
    """What a child says to the manager, as JSON lines."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe

    def say(self, **said: Any) -> None:
        """Writes one line."""
        os.write(self._pipe, json.dumps(said).encode() + b"\n")


def main() -> int:
    """Runs the role to its end; 0 where it ended well, 2 for a configuration error, 1 for anything else."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the manager tells
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    role, index, parent = sys.argv[1], int(sys.argv[2]), Parent(int(sys.argv[3]))
    line = _read_line(0)
    if not line:  # the manager is gone already
        return 0
    start = json.loads(line)
    threading.Thread(target=_watch_lifeline, args=(start["private"],), name="lifeline", daemon=True).start()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    sys.path[:] = start["path"]
    try:
        (_run_learner if role == "learner" else _run_peer)(role, index, start, parent)
    except ConfigError as error:
        parent.say(config_error=str(error))
        return 2
    except Exception:
        traceback.print_exc()
        return 1
    parent.say(ended=True)
    return 0


def _run_learner(role: str, index: int, start: dict[str, Any], parent: Parent) -> None:
    import torch

    from apex_acer.engines.local.transport import InboxServer
    from apex_acer.learner import Learner
    from apex_acer.runfile import from_dict
    from apex_acer.trajectory import EnvironmentSpec

    del role, index
    torch.set_num_threads(start["threads"])
    spec = EnvironmentSpec.from_dict(start["spec"])
    learner = Learner(from_dict(start["config"]), spec, Path(start["folder"]), start["run_id"], start["started_at"])
    server = InboxServer(learner.inbox, start["address"])
    parent.say(ready=True)
    while learner.step(WAIT_S):
        server.check()
    result = learner.finish()
    learner.inbox.wait_stopped(STOP_S)
    server.close()
    parent.say(result=dataclasses.asdict(result))


def _run_peer(role: str, index: int, start: dict[str, Any], parent: Parent) -> None:
    import torch

    from apex_acer.actor import Actor
    from apex_acer.engines.local.transport import DealerLink
    from apex_acer.evaluator import Evaluator
    from apex_acer.messages import Peer
    from apex_acer.runfile import from_dict

    torch.set_num_threads(start["threads"])
    kind = Actor if role == "actor" else Evaluator
    peer = Peer("actor" if role == "actor" else "evaluator", index, start["incarnation"])
    link = DealerLink(start["address"], peer)
    worker = kind(from_dict(start["config"]), start["run_id"], peer, link, start["threads"])
    parent.say(ready=True)
    while worker.step(WAIT_S):
        pass
    worker.close()
    link.close()


def _read_line(descriptor: int) -> bytes:
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(descriptor, 1)):  # what follows is the lifeline's
        line += byte
    return line


def _watch_lifeline(private: str) -> None:
    """Leaves at once when the manager is gone: a thread, because native code may hang where signals never arrive."""
    if not os.read(0, 1):  # no goodbye: nobody else is left to clean up
        shutil.rmtree(private, ignore_errors=True)
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
