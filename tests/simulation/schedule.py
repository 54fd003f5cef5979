"""A schedule: one run with faults, its continuation, and how few of its faults show that something is wrong."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from apex_acer.actor import remote_rollout
from apex_acer.config import ConfigError, RunConfig, StopConfig
from apex_acer.config.runfile import from_dict
from apex_acer.engines.engine import Run
from apex_acer.environments.spaces import specify_remote
from apex_acer.environments.vector import environment_spec
from apex_acer.manager import manager
from apex_acer.manager.callbacks import Callbacks
from apex_acer.manager.supervisor import RunFailed
from apex_acer.protocol.messages import Status
from apex_acer.remote.token import make_token
from apex_acer.storage import checkpoint
from apex_acer.system.signals import Signals
from tests.simulation import task
from tests.simulation.clients import Clients
from tests.simulation.engine import SimulatedEngine, SimulatedHandle
from tests.simulation.faults import KINDS, OF_CLIENTS, STEPS, Fault, plan
from tests.simulation.invariants import check_end, check_learners, check_reason, require, saved_steps
from tests.simulation.world import Broken, Killed, World

RUN_ID = "simulated"
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # files that need no disk, where there are such
ENDS_S = 3000.0  # virtual seconds within which every run has ended


class Outcome(NamedTuple):
    """What a schedule came to."""

    wrong: str
    """What was not as it must be; empty if all was."""
    faults: list[Fault]
    trace: list[str]


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
        except (Broken, AssertionError, ConfigError, OSError, RuntimeError) as error:
            wrong = f"{type(error).__name__}: {error}"
    return Outcome(wrong, faults, world.trace)


class Schedule:
    """One run and its continuation, and what is checked while it goes on."""

    def __init__(self, world: World, folder: Path, config: RunConfig, faults: list[Fault]) -> None:
        self._world, self._folder, self._config, self._faults = world, folder, config, faults
        self._kinds = {fault.kind for fault in faults}
        self._saved_steps = 0  # in the newest whole checkpoint, as a learner that has died has left it
        task.begin()
        environment = config.environment
        if environment.is_remote:
            make_token(environment.remote, folder)
            self._spec = specify_remote(environment)
            self._clients = Clients(world, environment.remote.clients, (folder / "token").read_text().strip())
        else:
            self._spec = environment_spec(environment)
            self._clients = Clients(world, 0, "")

    def run(self) -> None:
        with contextlib.closing(self._clients):
            self._run()

    def _run(self) -> None:
        result = self._manage(resume=False, faults=self._faults)
        newest = checkpoint.newest(self._folder)
        require(newest is not None or not self._saved_steps, "the only checkpoint is gone")
        has_saved = result is not None and bool(result.weights)
        if newest is None and not has_saved:
            return  # it ended before anything was saved
        require(newest is not None, "a run that has saved holds no whole checkpoint")
        assert newest
        saved = checkpoint.load(newest).state
        if has_saved:
            steps = saved["env_steps"]
            require(steps == result.env_steps, f"{steps} steps are saved, {result.env_steps} are told")
            if self._config.seed % 3:
                return  # a run that ended well is resumed in one schedule of three
        resumed = self._manage(resume=True, faults=[])
        require(resumed is not None and resumed.reason == "env_steps", f"the resumed run ended with {resumed}")
        wall_s = saved["wall_s"]
        require(resumed.wall_s >= wall_s, f"{wall_s:g} s were saved, the resumed run says {resumed.wall_s:g} s")

    def _manage(self, *, resume: bool, faults: list[Fault]) -> Any:
        """The result of the run, or None if it failed for a good reason; raises if for none."""
        world, config = self._world, self._config
        world.note("the run is resumed" if resume else "a run begins")
        world.signals = Signals()
        world.disk.kill_in = world.disk.error = 0
        if resume:
            config = dataclasses.replace(config, stop=StopConfig(env_steps=max(STEPS, saved_steps(self._folder)) + 20))
        run = Run(config, self._spec, self._folder, RUN_ID, world.now, resume=resume)
        with contextlib.ExitStack() as stack:
            stack.enter_context(mock.patch.object(manager, "engine_class", return_value=self._engine(faults)))
            stack.enter_context(mock.patch.object(remote_rollout, "Server", self._clients.serve))
            try:
                result = manager.manage(run, Callbacks(on_status=self._look), world.signals)
            except Killed:
                return None
            except RunFailed as error:
                world.note(f"failed: {check_reason(str(error), self._kinds)}")
                return None
        check_end(SimulatedEngine.newest, self._folder, self._kinds, result)
        return result

    def _engine(self, faults: list[Fault]) -> Callable[[Run], SimulatedEngine]:
        def make(run: Run) -> SimulatedEngine:
            engine = SimulatedEngine(run, self._world, self._clients)
            engine.lost = lambda handle: self._check_lost(engine, handle)
            engine.began = self._check_restored
            for fault in faults:
                self._world.after(fault.at, functools.partial(self._happen, engine, fault))
            self._world.after(ENDS_S, lambda: self._too_late(engine))
            return engine

        return make

    def _happen(self, engine: SimulatedEngine, fault: Fault) -> None:
        if engine is SimulatedEngine.newest and not engine.dead:
            self._world.note(f"fault: {fault.kind} {fault.who} {fault.size:.3g}")
            (KINDS | OF_CLIENTS)[fault.kind](engine, fault)

    def _too_late(self, engine: SimulatedEngine) -> None:
        if engine is SimulatedEngine.newest and any(handle.alive for handle in engine.all):
            raise Broken(f"the run has not ended {ENDS_S:g} s after its start")

    def _look(self, status: Status) -> None:
        for line in status["news"]:
            self._world.note(f"news: {line}")
        require("refused" not in str(status["news"]), f"a message was refused: {status['news']}")

    def _check_restored(self, handle: SimulatedHandle) -> None:
        """A learner that was restarted continues from the newest checkpoint."""
        saved, begins = saved_steps(self._folder), handle.role.counters.env_steps
        require(saved >= self._saved_steps, f"{self._saved_steps} steps were saved, {saved} are left")
        self._saved_steps = saved
        require(begins == saved, f"{handle.name} begins at {begins} of {saved} steps")

    def _check_lost(self, engine: SimulatedEngine, handle: SimulatedHandle) -> None:
        if handle.learners and not handle.result:
            self._saved_steps = max(self._saved_steps, saved_steps(self._folder))
            check_learners(engine, handle)


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
