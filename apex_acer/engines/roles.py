"""A run's roles as every engine makes them, and the share of a machine that the process of one takes."""

from __future__ import annotations

import os

import torch

from apex_acer.actor.actor import Actor
from apex_acer.actor.evaluator import Evaluator
from apex_acer.engines.engine import Run
from apex_acer.engines.machine import niceness
from apex_acer.learner.learner import Learner
from apex_acer.learner.ranks import ALONE, Ranks
from apex_acer.protocol.messages import Link, Peer, Role


def take_share(run: Run, role: Role) -> None:
    """Sets the priority and the number of torch's threads of this process, whose only role is `role`."""
    os.nice(niceness(run.config, run.spec, role))
    torch.set_num_threads((run.config.learner if role == "learner" else run.config.actors).threads)


def make_learner(run: Run, incarnations: dict[str, int], ranks: Ranks = ALONE) -> Learner:
    """The learner, which accepts the other roles in these `incarnations`; raises `ConfigError` if it cannot work."""
    learner = Learner(run.config, run.spec, run.folder, run.run_id, run.started_at, resume=run.resume, ranks=ranks)
    learner.inbox.expect(incarnations)
    return learner


def make_peer(run: Run, peer: Peer, link: Link) -> Actor | Evaluator:
    """The actor or the evaluator `peer`; raises `ConfigError` if it cannot work."""
    environment = run.config.environment
    make: type[Actor | Evaluator] = Actor if peer.role == "actor" else Evaluator
    if peer.role == "evaluator" and environment.is_remote and not environment.remote.local:
        from apex_acer.actor.remote_evaluator import RemoteEvaluator  # needs an extra

        make = RemoteEvaluator
    return make(run.config, run.run_id, peer, link, run.config.actors.threads, run.folder, spec=run.spec)
