"""What must be true of a simulated run, whatever happens: of its learners at their end, and of how it ends."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from apex_acer.learner.learner import Learner
from apex_acer.protocol.specification import Array
from apex_acer.storage import checkpoint
from tests.simulation.engine import SimulatedEngine, SimulatedHandle
from tests.simulation.faults import CAUSES, HARMLESS, STEPS
from tests.simulation.world import Broken

BATCH, UNROLL = 20, 10  # environment steps of each


def require(condition: object, problem: str) -> None:
    if not condition:
        raise Broken(problem)


def saved_steps(folder: Path) -> int:
    """The environment steps in the newest whole checkpoint; 0: there is none."""
    newest = checkpoint.newest(folder)
    return int(checkpoint.load(newest).state["env_steps"]) if newest else 0


class Memory(NamedTuple):
    """What a learner has in replay, the oldest sequence first."""

    obs: Array
    """`[sequences, k+1, 2]`"""
    mask: Array
    """`[sequences, k]`, as is `ended`."""
    ended: Array


def memory(learner: Learner) -> Memory:
    storage = learner._queue.storage
    arrays = storage.arrays()
    order = (storage.oldest + np.arange(len(storage))) % max(1, len(storage))
    ended = arrays["terminated"][order].astype(bool) | arrays["truncated"][order].astype(bool)
    return Memory(arrays["obs"][order].astype(int), arrays["mask"][order].astype(bool), ended)


def check_learners(engine: SimulatedEngine, handle: SimulatedHandle) -> None:
    """Each step of an accepted unroll is in replay once, in order, and counted once."""
    if not handle.learners or handle.result:
        return
    memories = [memory(learner) for learner in handle.learners]
    steps = np.concatenate([obs[:, :-1][mask] for obs, mask, _ in memories])  # [steps, 2]
    require(len(np.unique(steps, axis=0)) == len(steps), f"{handle.name}: a step is in replay twice")
    for obs, mask, ended in memories:
        follows = (obs[:, 1:] - obs[:, :-1] == [0, 1]).all(-1)
        require(follows[mask].all(), f"{handle.name}: a step leads to an observation that does not follow")
        resets = ~mask[:, 1:] & mask[:, :-1]
        require(ended[:, :-1][resets].all(), f"{handle.name}: an episode is followed by another before its end")
    first, config = handle.learners[0], handle.learners[0]._config
    if not config.environment.is_remote:
        check_order(handle, memories[0].obs[: handle.restored], gaps=True)  # those of earlier learners
        for number, (obs, _, _) in enumerate(memories):
            check_order(handle, obs[0 if number else handle.restored :], gaps=False)
    if config.saves_replay or not (handle.peer.incarnation or engine.resumed):
        counted = first.counters.env_steps
        require(counted == len(steps), f"{handle.name}: {counted} steps are counted, {len(steps)} are in replay")
    limiter, learners = first._queue._limiter, 2 + handle.peer.incarnation + engine.resumed
    ratio = config.algorithm.replay_ratio
    owed = ratio * limiter.fresh_steps - limiter.replayed_steps
    require(abs(owed) <= learners * (BATCH + ratio * UNROLL), f"{handle.name}: {owed} replayed steps are owed")
    held = {tuple(begins) for obs, _, _ in memories for begins in obs[:, 0].tolist()}
    for message in engine.acknowledged.get(handle.name, []):
        assert message.unroll
        for column in message.unroll.obs[0].astype(int).tolist():
            require(tuple(column) in held, f"{handle.name}: an unroll that was answered is not in replay: {column}")


def check_order(handle: SimulatedHandle, obs: Array, *, gaps: bool) -> None:
    """Each environment's sequences `[sequences, k+1, 2]` follow each other, without a gap unless there may be `gaps`."""
    made: dict[int, int] = {}
    for sequence in obs:
        number, first, last = int(sequence[0, 0]), int(sequence[0, 1]), int(sequence[-1, 1])
        before = made.get(number, first)
        follows = before <= first if gaps else before == first
        require(follows, f"{handle.name}: environment {number} goes from step {before} to {first}")
        made[number] = last


def check_end(engine: SimulatedEngine, folder: Path, kinds: Collection[str], result: Any) -> None:
    """A run ends once, for the reason that it tells, after its steps, and nobody was restarted or killed without need."""
    end, pressed = folder / "result.json", len(engine.world.signals.received)
    if end.exists():
        told = json.loads(end.read_text())
        require(told["reason"] == result.reason, f"result.json says {told['reason']}, the run {result.reason}")
    require(result.reason in ("env_steps", *(["SIGINT"] if pressed else [])), f"the run ended with {result.reason}")
    if result.reason == "env_steps":
        require(result.env_steps >= STEPS, f"the run ended after {result.env_steps} of {STEPS} steps")
    for handle in engine.all:
        require(not handle.alive, f"{handle.name} outlives its run")
    restarts = [handle.name for handle in engine.all if handle.peer.incarnation]
    ended_badly = [handle.name for handle in engine.all if handle.failure]
    if HARMLESS.issuperset(kinds) and pressed < 2 and result.weights:
        require(not restarts, f"restarted without need: {restarts}")
        # a pause while the run ends outlasts the time in which its processes leave by themselves
        require(not ended_badly or "jump" in kinds, f"killed without need: {ended_badly}")
    lost = any(name.startswith("learner") for name in ended_badly)
    if not lost and pressed == 1 and result.reason == "SIGINT" and result.env_steps:
        require(bool(result.weights) or "disk error" in kinds, "Ctrl-C did not save")


def check_reason(failure: str, kinds: Collection[str]) -> str:
    """The line with which a run failed, which must be one that such faults may cause."""
    line = failure.strip().rpartition("\n")[2]
    may_fail = any(words in line and causes.intersection(kinds) for words, causes in CAUSES.items())
    require(may_fail, f"the run failed: {line}")
    return line
