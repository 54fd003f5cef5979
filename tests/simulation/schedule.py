"""Schedules: what goes wrong in a simulated run, what must be true of it nevertheless, and how few faults show a failure."""

from __future__ import annotations

import dataclasses
import json
import random
import signal
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

from apex_acer.config import ConfigError, RunConfig, StopConfig
from apex_acer.config.runfile import from_dict
from apex_acer.engines.engine import Run
from apex_acer.environments.vector import environment_spec
from apex_acer.learner.learner import Learner
from apex_acer.manager import manager
from apex_acer.manager.callbacks import Callbacks
from apex_acer.manager.supervisor import RunFailed
from apex_acer.protocol.messages import Status
from apex_acer.storage import checkpoint
from apex_acer.system.signals import Signals
from tests.simulation import task
from tests.simulation.engine import SimulatedEngine, SimulatedHandle
from tests.simulation.world import FULL, READ_ONLY, Killed, World

RUN_ID = "simulated"
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # files that need no disk, where there are such
ENDS_S = 3000.0  # virtual seconds within which every run has ended
HUNG_S, EVALUATION_MINUTES = 3.0, 0.1
STEPS = 80
HARMLESS = {"jump", "repeat", "slow steps", "Ctrl-C"}  # nobody is restarted because of these
BATCH, UNROLL = 20, 10  # environment steps of each
ROLES = "learner", "actor_0", "actor_1", "evaluator"


class Fault(NamedTuple):
    """What happens `at` so many virtual seconds after the start of a run, to whom, and how much."""

    at: float
    kind: str
    who: str
    size: float

    def __str__(self) -> str:
        return f"{self.at:.2f} s: {self.kind} {self.who} {self.size:.3g}"


def plan(seed: int) -> tuple[dict[str, Any], list[Fault]]:
    """The configuration of a schedule, and what goes wrong in it."""
    chance = random.Random(f"plan {seed}")
    config: dict[str, Any] = {
        "seed": seed % 1000,
        "environment": {"id": task.ID},
        "actors": {"count": 2, "environments": 2, "weights_every": 5, "threads": 1},
        "learner": {"batch_size": 4, "threads": 1, "device": "cpu", "precision": "float32"},
        "replay": {"capacity": 8 * STEPS, "start": 20},
        "algorithm": {"name": task.NAME, "unroll_length": 5, "replay_ratio": chance.choice([1.0, 2.0])},
        "evaluation": {"every": 40, "episodes": 2, "environments": 2},
        "checkpoint": {"every": chance.choice([0, 20, 30]), "replay": chance.random() < 0.5},
        "supervision": {"hung_seconds": HUNG_S, "evaluation_minutes": EVALUATION_MINUTES, "restarts": 4},
        "network": {"hidden_sizes": [1]},
        "logging": {"every_seconds": 5.0},
        "stop": {"env_steps": STEPS},
    }
    number = chance.choice([0, 1, 1, 2, 2, 3, 4, 6])
    return config, sorted(draw(chance) for _ in range(number))


def draw(chance: random.Random) -> Fault:
    """A random fault."""
    at = chance.uniform(0, 5)
    kind = chance.choice(list(KINDS))
    return Fault(at, kind, chance.choice(ROLES), chance.random())


def _handle(engine: SimulatedEngine, name: str) -> SimulatedHandle | None:
    handle = engine.handles.get(name)
    return handle if handle and handle.alive else None


def kill(engine: SimulatedEngine, fault: Fault) -> None:
    if handle := _handle(engine, fault.who):
        handle.kill()


def freeze(engine: SimulatedEngine, fault: Fault) -> None:
    if handle := _handle(engine, fault.who):
        handle.frozen = True
        if fault.size < 0.7:
            engine.world.after(4 * HUNG_S * fault.size**2, handle.thaw)


def raise_(engine: SimulatedEngine, fault: Fault) -> None:
    """A user's environment raises."""
    if (handle := _handle(engine, fault.who)) and fault.who != "learner" and handle.role:
        handle.end(f"a traceback\n{fault.who}: exit code 1", raised="ValueError: no more fuel")


def slow_steps(engine: SimulatedEngine, fault: Fault) -> None:
    if (handle := _handle(engine, fault.who)) and fault.who != "learner":
        handle.step_s = 0.9 * HUNG_S * fault.size
        engine.world.after(10.0, lambda: setattr(handle, "step_s", 0.0))


def slow_network(engine: SimulatedEngine, fault: Fault) -> None:
    engine.world.slowness = 1000 * fault.size
    engine.world.after(3.0, lambda: setattr(engine.world, "slowness", 1.0))


def repeat(engine: SimulatedEngine, fault: Fault) -> None:
    engine.repeats = fault.size


def kill_while_saving(engine: SimulatedEngine, fault: Fault) -> None:
    engine.world.disk.kill_in = 1 + int(12 * fault.size)


def disk_error(engine: SimulatedEngine, fault: Fault) -> None:
    disk = engine.world.disk
    disk.error = FULL if fault.size < 0.5 else READ_ONLY
    engine.world.after(1.0, lambda: setattr(disk, "error", 0))


def slow_disk(engine: SimulatedEngine, fault: Fault) -> None:
    disk = engine.world.disk
    disk.seconds = fault.size
    engine.world.after(3.0, lambda: setattr(disk, "seconds", 0.0))


def jump(engine: SimulatedEngine, fault: Fault) -> None:
    """All of the machine is suspended."""
    engine.world.now += 1000 * fault.size


def press(engine: SimulatedEngine, fault: Fault) -> None:
    """Ctrl-C."""
    signals.received.append(signal.SIGINT)
    signals.wake()


def end_manager(engine: SimulatedEngine, fault: Fault) -> None:
    engine.die()


KINDS: dict[str, Callable[[SimulatedEngine, Fault], None]] = {
    "kill": kill,
    "freeze": freeze,
    "raise": raise_,
    "slow steps": slow_steps,
    "slow network": slow_network,
    "repeat": repeat,
    "kill while saving": kill_while_saving,
    "disk error": disk_error,
    "slow disk": slow_disk,
    "jump": jump,
    "Ctrl-C": press,
    "kill the manager": end_manager,
}
signals = Signals()


class Outcome(NamedTuple):
    """What a schedule came to."""

    wrong: str
    """What was not as it must be; empty if all was."""
    faults: list[Fault]
    trace: list[str]


class Broken(AssertionError):
    """Something is not as it must be."""


def run(seed: int, only: Collection[int] | None = None) -> Outcome:
    """Runs the schedule `seed`, of whose faults only those with the numbers `only` happen; None: all."""
    changes, faults = plan(seed)
    faults = [fault for number, fault in enumerate(faults) if only is None or number in only]
    world = World(seed)
    with tempfile.TemporaryDirectory(prefix="simulation-", dir=MEMORY) as name, world.in_force():
        folder = Path(name) / "run"
        folder.mkdir()
        wrong = ""
        try:
            Schedule(world, folder, from_dict(changes), faults).run()
        except (AssertionError, ConfigError, OSError, RuntimeError) as error:
            wrong = f"{type(error).__name__}: {error}"
    return Outcome(wrong, faults, world.trace)


class Schedule:
    """One run and its continuation, and what is checked while it goes on."""

    def __init__(self, world: World, folder: Path, config: RunConfig, faults: list[Fault]) -> None:
        self._world, self._folder, self._config, self._faults = world, folder, config, faults
        self._kinds = {fault.kind for fault in faults}
        self._saved_steps = 0  # in the newest whole checkpoint, as a learner that has died has left it
        task.begin()
        self._spec = environment_spec(config.environment)

    def run(self) -> None:
        result = self._manage(resume=False, faults=self._faults)
        newest = checkpoint.newest(self._folder)
        require(newest is not None or not self._saved_steps, "the only checkpoint is gone")
        if newest is None and not (result and result.weights):
            return  # it ended before anything was saved
        require(newest is not None, "a run that has saved holds no whole checkpoint")
        assert newest
        saved = checkpoint.load(newest)
        env_steps = saved.state["env_steps"]
        if result is not None and result.weights:
            require(env_steps == result.env_steps, f"{env_steps} steps are saved, {result.env_steps} are told")
        if self._config.seed % 3 and result is not None and result.weights:
            return  # a run that ended well is resumed in one schedule of three
        resumed = self._manage(resume=True, faults=[])
        require(resumed is not None and resumed.reason == "env_steps", f"the resumed run ended with {resumed}")
        wall_s = saved.state["wall_s"]
        require(resumed.wall_s >= wall_s, f"{wall_s:g} s were saved, the resumed run says {resumed.wall_s:g} s")

    def _manage(self, *, resume: bool, faults: list[Fault]) -> Any:
        """The result of the run, or None if it failed for a good reason; raises if for none."""
        global signals
        signals, world = Signals(), self._world
        world.note("the run is resumed" if resume else "a run begins")
        world.disk.kill_in = world.disk.error = 0
        config = self._config
        if resume:
            saved = checkpoint.newest(self._folder)
            assert saved
            steps = max(STEPS, checkpoint.load(saved).state["env_steps"]) + 20
            config = dataclasses.replace(config, stop=StopConfig(env_steps=steps))
        run = Run(config, self._spec, self._folder, RUN_ID, world.now, resume=resume)
        SimulatedEngine.world = world
        begun = world.now
        with mock.patch.object(manager, "engine_class", return_value=self._engine(faults, begun)):
            try:
                result = manager.manage(run, Callbacks(on_status=self._look), signals)
            except Killed:
                return None
            except RunFailed as error:
                self._require_reason(str(error))
                return None
        for handle in SimulatedEngine.newest.all:
            require(not handle.alive, f"{handle.name} outlives its run")
        self._check_end(result)
        return result

    def _engine(self, faults: list[Fault], begun: float) -> Callable[[Run], SimulatedEngine]:
        def make(run: Run) -> SimulatedEngine:
            engine = SimulatedEngine(run)
            engine.lost = lambda handle: self._check_learner(engine, handle)
            engine.began = self._check_restored
            for fault in faults:
                self._world.after(fault.at, lambda fault=fault: self._happen(engine, fault))
            self._world.after(ENDS_S, lambda: self._too_late(engine, begun))
            return engine

        return make

    def _happen(self, engine: SimulatedEngine, fault: Fault) -> None:
        if engine is SimulatedEngine.newest and not engine._dead:
            self._world.note(f"fault: {fault.kind} {fault.who} {fault.size:.3g}")
            KINDS[fault.kind](engine, fault)

    def _too_late(self, engine: SimulatedEngine, begun: float) -> None:
        if engine is SimulatedEngine.newest and any(handle.alive for handle in engine.all):
            raise Broken(f"the run has not ended {ENDS_S:g} s after its start")

    def _look(self, status: Status) -> None:
        for line in status["news"]:
            self._world.note(f"news: {line}")
        require("refused" not in str(status["news"]), f"a message was refused: {status['news']}")

    # ── what must be true ──

    def _check_restored(self, handle: SimulatedHandle) -> None:
        """A learner that was restarted continues from the newest checkpoint."""
        newest, learner = checkpoint.newest(self._folder), handle.role
        saved = checkpoint.load(newest).state["env_steps"] if newest else 0
        require(saved >= self._saved_steps, f"{self._saved_steps} steps were saved, {saved} are left")
        self._saved_steps = saved
        require(
            learner.counters.env_steps == saved,
            f"{handle.name} begins at {learner.counters.env_steps} of {saved} steps",
        )

    def _check_learner(self, engine: SimulatedEngine, handle: SimulatedHandle) -> None:
        """Each step of an accepted unroll is in replay once, in order, and counted once."""
        if handle.peer.role != "learner" or handle.result:
            return
        learner: Learner = handle.role
        if newest := checkpoint.newest(self._folder):
            self._saved_steps = max(self._saved_steps, checkpoint.load(newest).state["env_steps"])
        storage = learner._queue.storage
        arrays = storage.arrays()
        order = (storage.oldest + np.arange(len(storage))) % max(1, len(storage))
        obs, mask = arrays["obs"][order], arrays["mask"][order].astype(bool)  # [sequences, k+1, 2], [sequences, k]
        self._check_order(handle, obs[: handle.restored].astype(int), gaps=True)  # those of earlier learners
        self._check_order(handle, obs[handle.restored :].astype(int), gaps=False)
        counted, stored = learner.counters.env_steps, int(mask.sum())
        if learner._config.saves_replay or not (handle.peer.incarnation or engine._run.resume):
            require(counted == stored, f"{handle.name}: {counted} steps are counted, {stored} are in replay")
        limiter, learners = learner._queue._limiter, 2 + handle.peer.incarnation + engine._run.resume
        ratio = learner._config.algorithm.replay_ratio
        owed = ratio * limiter.fresh_steps - limiter.replayed_steps
        require(abs(owed) <= learners * (BATCH + ratio * UNROLL), f"{handle.name}: {owed} replayed steps are owed")
        held = {(int(row[0, 0]), int(row[0, 1])) for row in obs}
        for message in engine.acknowledged.get(handle.name, []):
            assert message.unroll
            for column in message.unroll.obs[0].astype(int).tolist():
                require(tuple(column) in held, f"{handle.name}: an unroll that was answered is not in replay: {column}")

    def _check_order(self, handle: SimulatedHandle, obs: Any, *, gaps: bool) -> None:
        """Each environment's sequences `[sequences, k+1, 2]` follow each other, without a gap unless there may be `gaps`."""
        made: dict[int, int] = {}
        for sequence in obs:
            number, first, last = int(sequence[0, 0]), int(sequence[0, 1]), int(sequence[-1, 1])
            before = made.get(number, first)
            follows = before <= first if gaps else before == first
            require(follows, f"{handle.name}: environment {number} goes from step {before} to {first}")
            made[number] = last

    def _check_end(self, result: Any) -> None:
        end = self._folder / "result.json"
        if end.exists():
            told = json.loads(end.read_text())
            require(told["reason"] == result.reason, f"result.json says {told['reason']}, the run {result.reason}")
        pressed = bool(signals.received)
        require(result.reason in ("env_steps", *(["SIGINT"] if pressed else [])), f"the run ended with {result.reason}")
        if result.reason == "env_steps":
            require(result.env_steps >= STEPS, f"the run ended after {result.env_steps} of {STEPS} steps")
        restarts = [handle.name for handle in SimulatedEngine.newest.all if handle.peer.incarnation]
        ended_badly = [handle.name for handle in SimulatedEngine.newest.all if handle.failure]
        if self._kinds <= HARMLESS and len(signals.received) < 2 and result.weights:
            require(not restarts, f"restarted without need: {restarts}")
            # a pause while the run ends outlasts the time in which its processes leave by themselves
            require(not ended_badly or "jump" in self._kinds, f"killed without need: {ended_badly}")
        lost = any(name.startswith("learner") for name in ended_badly)
        if not lost and len(signals.received) == 1 and result.reason == "SIGINT" and result.env_steps:
            require(bool(result.weights) or "disk error" in self._kinds, "Ctrl-C did not save")

    def _require_reason(self, failure: str) -> None:
        """A run may fail for these reasons alone."""
        line = failure.strip().rpartition("\n")[2]
        reasons = {
            "there is no checkpoint to continue from": {
                "kill",
                "freeze",
                "kill while saving",
                "slow disk",
                "slow network",
            },
            "supervision.restarts allows": {"kill", "freeze", "raise", "slow steps", "kill while saving"},
            "a restart would hit the same error": {"disk error"},
            "the same error came before": {"raise"},
            "it had not saved within": {"freeze", "slow disk", "slow network", "jump"},
            "killed by SIGKILL": {"kill", "kill while saving"},
            "exit code 1": {"disk error"},
        }
        for words, kinds in reasons.items():
            if words in line and kinds & self._kinds:
                self._world.note(f"failed: {line}")
                return
        raise Broken(f"the run failed: {line}")


def require(condition: object, problem: str) -> None:
    if not condition:
        raise Broken(problem)


def shrink(seed: int) -> list[int]:
    """The numbers of as few faults of the schedule `seed` as make it fail."""
    numbers = list(range(len(plan(seed)[1])))
    for number in list(numbers):
        fewer = [other for other in numbers if other != number]
        if run(seed, fewer).wrong:
            numbers = fewer
    return numbers


def report(seed: int, only: Collection[int] | None = None, lines: int = 60) -> str:
    """The end of the trace of a schedule, and what is wrong."""
    outcome = run(seed, only)
    return "\n".join([*outcome.trace[-lines:], f"schedule {seed}: {outcome.wrong or 'all is well'}"])


def failure(seed: int) -> tuple[int, str]:
    """The number of a schedule, and what is wrong in it; empty if nothing is."""
    return seed, run(seed).wrong
