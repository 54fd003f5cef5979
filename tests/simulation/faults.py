"""What goes wrong in a simulated run: the kinds of faults, and those of each schedule."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from typing import Any, NamedTuple

from tests.simulation import task
from tests.simulation.clients import Client
from tests.simulation.engine import SimulatedEngine, SimulatedHandle
from tests.simulation.world import FULL, READ_ONLY

HUNG_S, EVALUATION_MINUTES = 3.0, 0.1
STEPS = 80
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
    kinds = list(KINDS)
    match chance.choice(["", "", "", "several learners", "remote clients"]):
        case "several learners":
            config |= {"engine": "ray", "learner": {**config["learner"], "count": 2}}
            config["checkpoint"]["replay"] = False  # for one learner alone
        case "remote clients":
            clients = chance.choice([1, 3])
            remote = {"observation_shape": [2], "num_actions": 2, "local": task.ID, "clients": clients, "grace_s": 2.0}
            config |= {"environment": {"id": "remote", "remote": remote}}
            config["actors"] |= {"count": 1, "environments": 1}
            kinds += OF_CLIENTS
    number = chance.choice([0, 1, 1, 2, 2, 3, 4, 6])
    return config, sorted(draw(chance, kinds) for _ in range(number))


def draw(chance: random.Random, kinds: list[str]) -> Fault:
    """A random fault."""
    return Fault(chance.uniform(0, 5), chance.choice(kinds), chance.choice(ROLES), chance.random())


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
    is_local = fault.who == "evaluator" or not engine.clients.all
    if (handle := _handle(engine, fault.who)) and fault.who != "learner" and is_local:
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
    engine.world.signals.received.append(signal.SIGINT)
    engine.world.signals.wake()


def end_manager(engine: SimulatedEngine, fault: Fault) -> None:
    engine.die()


def _client(engine: SimulatedEngine, fault: Fault) -> Client:
    clients: list[Client] = engine.clients.all
    return clients[int(100 * fault.size) % len(clients)]


def cut(engine: SimulatedEngine, fault: Fault) -> None:
    """A client's connection breaks."""
    _client(engine, fault).cut()


def freeze_client(engine: SimulatedEngine, fault: Fault) -> None:
    client = _client(engine, fault)
    client.frozen = True
    engine.world.after(6 * fault.size, lambda: setattr(client, "frozen", False))


def leave(engine: SimulatedEngine, fault: Fault) -> None:
    _client(engine, fault).leave(quietly=False)


def kill_client(engine: SimulatedEngine, fault: Fault) -> None:
    _client(engine, fault).leave(quietly=True)


Happens = Callable[[SimulatedEngine, Fault], None]
KINDS: dict[str, Happens] = {
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
OF_CLIENTS: dict[str, Happens] = {
    "cut": cut,
    "freeze client": freeze_client,
    "client leaves": leave,
    "kill client": kill_client,
}
HARMLESS = {"jump", "repeat", "slow steps", "Ctrl-C", *OF_CLIENTS}  # nobody is restarted because of these
CAUSES = {  # with which words a run may fail, and because of what
    "there is no checkpoint to continue from": {"kill", "freeze", "kill while saving", "slow disk", "slow network"},
    "supervision.restarts allows": {"kill", "freeze", "raise", "slow steps", "kill while saving"},
    "a restart would hit the same error": {"disk error"},
    "the same error came before": {"raise"},
    "it had not saved within": {"freeze", "slow disk", "slow network", "jump"},
    "killed by SIGKILL": {"kill", "kill while saving"},
    "exit code 1": {"disk error"},
}
