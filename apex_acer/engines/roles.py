"""A run's roles as every engine makes them, and the share of a machine that the process of one takes."""

from __future__ import annotations

import os

import torch

from apex_acer.actor.actor import Actor
from apex_acer.actor.evaluator import Evaluator
from apex_acer.config import RunConfig
from apex_acer.engines.engine import Run
from apex_acer.engines.machine import niceness, num_threads
from apex_acer.learner.learner import Learner
from apex_acer.learner.ranks import ALONE, Ranks
from apex_acer.protocol.messages import Link, Peer, Role


def take_share(run: Run, role: Role) -> None:
    """Sets the priority and the number of torch's threads of this process, whose only role is `role`."""
    os.nice(niceness(run.config, run.spec, role))
    torch.set_num_threads(num_threads(run.config, role))


def make_learner(run: Run, incarnations: dict[str, int], ranks: Ranks = ALONE) -> Learner:
    """The learner, which hears the other roles in these `incarnations`; raises `ConfigError` if it cannot work."""
    learner = Learner(run.config, run.spec, run.folder, run.run_id, run.started_at, resume=run.resume, ranks=ranks)
    learner.inbox.expect(incarnations)
    return learner


def make_peer(run: Run, peer: Peer, link: Link) -> Actor | Evaluator:
    """The actor or the evaluator `peer`; raises `ConfigError` if it cannot work."""
    make = Actor if peer.role == "actor" else _evaluator_class(run.config)
    return make(run.config, run.run_id, peer, link, num_threads(run.config, peer.role), run.folder, found=run.spec)


def _evaluator_class(config: RunConfig) -> type[Evaluator]:
    if not config.environment.is_remote or config.environment.remote.local:
        return Evaluator
    from apex_acer.actor.remote_evaluator import RemoteEvaluator  # needs an extra

    return RemoteEvaluator
