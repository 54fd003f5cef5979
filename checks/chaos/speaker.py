"""`python -m checks.chaos.speaker ADDRESS RUN_ID INCARNATION UNROLL FILE`: an actor without environments, to be killed.

It sends the unroll in UNROLL again and again, its rewards the message's sequence, two unanswered; the sequence of each
that was answered goes to FILE. It imports no torch, so that it starts quickly.
"""

from __future__ import annotations

import os
import sys

import numpy as np

from apex_acer.engines.local.transport import DealerLink
from apex_acer.protocol.messages import Message, Peer
from apex_acer.protocol.unroll import Unroll


def main(address: str, run_id: str, incarnation: str, unroll_file: str, file: str) -> None:
    peer = Peer("actor", 0, int(incarnation))
    with np.load(unroll_file) as stored:
        fields = {name: stored[name] for name in stored.files}
    extras = {"log_probs": fields.pop("log_probs")}
    link, answered = DealerLink(address, peer), os.open(file, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    for sequence in range(10**9):
        fields["reward"] = np.full_like(fields["reward"], sequence)
        link.send(Message(run_id, peer, sequence, unroll=Unroll(**fields, extras=extras, state={})))
        if sequence:
            reply = link.receive(30)
            assert reply is not None
            assert reply.sequence == sequence - 1
            assert not reply.refused
            os.write(answered, b"%d\n" % reply.sequence)


if __name__ == "__main__":
    main(*sys.argv[1:])
