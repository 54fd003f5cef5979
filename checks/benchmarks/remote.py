"""What remote clients cost: `python -m checks.benchmarks.remote --task {solved,latency,clients,serve,agents}`.

Prints a record for each measurement and writes all of a task into docs/results.

- `solved`: the preset `cartpole-remote` with eight Python clients, to 475, and the preset `cartpole`, in turns.
- `latency`: from observation to action in one Python client, on this machine, beside a learner; alone, and with seven others
  that keep the learner busy.
- `clients`: many clients of one run: steps a second, and how even they are.
- `serve`: the same of `apex-acer serve`, for one client and many.
- `agents`: steps a second of 16 agents on one connection and of 16 connections, in turns, in training and with `serve`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import gymnasium
import tyro

from apex_acer.client import Client, spaces
from checks.benchmarks.peer_programs import Record, last_json
from tests.remote.conftest import free_port

RESULTS = Path(__file__).parents[2] / "docs" / "results"
PROGRAM = str(Path(sys.executable).with_name("apex-acer"))
REMOTE = "--environment.remote."
TARGET, PYTHON_CLIENTS, PROCESSES, AGENTS = 475.0, 8, 4, 16
WARM_UP_S, START_S, DEADLINE_S = 10.0, 60.0, 300.0
PLAY = "import gymnasium, sys; from apex_acer.client import run; run(gymnasium.make('CartPole-v1'), *sys.argv[1:])"


class Served(NamedTuple):
    """A server's program, and how to reach it."""

    process: subprocess.Popen[str]
    url: str
    token: str
    folder: Path


@contextlib.contextmanager
def served(command: str, section: str, clients: int, file: Path | None = None) -> Iterator[Served]:
    """A program that serves clients, interrupted at the end; `{folder}` in the command is its own, with a copy of `file`."""
    with tempfile.TemporaryDirectory() as name:
        if file:
            shutil.copy(file, name)
        folder, address = Path(name), f"127.0.0.1:{free_port()}"
        flags = f"{section}listen {address} {section}clients {clients}"
        words = [PROGRAM, *f"{command} {flags}".format(folder=folder).split()]
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            try:
                yield Served(process, f"ws://{address}", wait_for(folder, process), folder)
            finally:
                process.send_signal(signal.SIGINT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.communicate(timeout=START_S)
                process.kill()


def wait_for(folder: Path, process: subprocess.Popen[str]) -> str:
    """The token that a program in `folder` has written."""
    ends_at = time.monotonic() + START_S
    while time.monotonic() < ends_at and process.poll() is None:
        if found := list(folder.glob("**/token")):
            return found[0].read_text().strip()
        time.sleep(0.05)
    raise RuntimeError(f"no token within {START_S:.0f} s")


def start_load(server: Served, clients: int, seconds: float, agents: int = 0) -> list[subprocess.Popen[str]]:
    """Processes that play with so many clients in all, each of which may have several `agents`."""
    processes = min(PROCESSES, clients)
    shares = [len(range(number, clients, processes)) for number in range(processes)]
    flags = ["--warm-up", str(WARM_UP_S), "--seconds", str(seconds), "--agents", str(agents)]
    command = [sys.executable, "-m", "checks.benchmarks.remote_load", server.url, server.token, *flags]
    return [
        subprocess.Popen(
            [*command, "--clients", str(share), "--seed", str(1000 * at)], stdout=subprocess.PIPE, text=True
        )
        for at, share in enumerate(shares)
    ]


def take_load(processes: list[subprocess.Popen[str]]) -> Record:
    """What the clients in all processes saw."""
    said = [json.loads(process.communicate(timeout=DEADLINE_S)[0]) for process in processes]
    steps = sorted(num for each in said for num in each["steps"])
    seconds = statistics.mean(each["seconds"] for each in said)
    return {
        "clients": len(steps),
        "steps_per_s": round(sum(steps) / seconds),
        "steps": {"least": steps[0], "median": statistics.median(steps), "most": steps[-1]},
        "least_over_median": round(steps[0] / max(1, statistics.median(steps)), 3),
        **percentiles([wait for each in said for wait in each["waits_ms"]]),
        "client_cpu_us_per_step": round(statistics.mean(each["cpu_us_per_step"] for each in said)),
    }


def percentiles(waits_ms: list[float]) -> Record:
    """Of the milliseconds from observation to action."""
    waits = sorted(waits_ms)
    found = {f"p{share}_ms": waits[int(share / 100 * (len(waits) - 1))] for share in (50, 90, 99)}
    return {name: round(value, 3) for name, value in found.items()} | {"longest_ms": round(waits[-1], 1)}


# ── tasks ──


def run_local(seed: int) -> Record:
    """The preset `cartpole`, to the target."""
    with tempfile.TemporaryDirectory() as folder:
        words = f"train cartpole --engine local --until {TARGET} --seed {seed} --json --out {folder}/run"
        return told("local", seed, last_json([PROGRAM, *words.split()], DEADLINE_S))


def run_remote(seed: int) -> Record:
    """`cartpole-remote`, with clients as a user starts them."""
    command = f"train cartpole-remote --engine local --until {TARGET} --seed {seed} --json --out {{folder}}/run"
    with served(command, REMOTE, PYTHON_CLIENTS) as server:
        play = [sys.executable, "-c", PLAY, server.url, server.token]
        clients = [subprocess.Popen(play) for _ in range(PYTHON_CLIENTS)]
        try:
            output, _ = server.process.communicate(timeout=DEADLINE_S)
            codes = [client.wait(START_S) for client in clients]
        finally:
            for client in clients:
                client.kill()
    if any(codes):
        raise RuntimeError(f"clients ended with {codes}")
    return told("remote", seed, json.loads(output.splitlines()[-1]))


def told(name: str, seed: int, result: dict[str, Any]) -> Record:
    figures = {key: result[key] for key in ("env_steps", "wall_s", "startup_s", "eval_return")}
    return {"run": name, "seed": seed, **figures, "reached": result["reason"] == "at_return"}


def solved(seeds: int) -> Iterator[Record]:
    """A run of each for every seed, and the ratios of their medians."""
    records: dict[str, list[Record]] = {"local": [], "remote": []}
    for seed in range(seeds):
        for name, run in (("local", run_local), ("remote", run_remote)):
            records[name].append(run(seed))
            yield records[name][-1]
    medians = {
        name: {key: statistics.median(run[key] for run in runs) for key in ("env_steps", "wall_s")}
        for name, runs in records.items()
    }
    ratios = {key: round(medians["remote"][key] / medians["local"][key], 3) for key in medians["local"]}
    yield {"medians": medians, "remote_over_local": ratios}


def latency(seconds: float) -> Iterator[Record]:
    """One client's waits, alone and beside seven others."""
    for others in (0, 7):
        with served(f"train cartpole-remote {ENDLESS}", REMOTE, 64) as server:
            load = start_load(server, others, seconds) if others else []
            waits = measure_waits(server, seconds)
            if others:
                take_load(load)
            yield {"others": others, "steps": len(waits), **percentiles(waits), **shares(server.folder)}


ENDLESS = "--engine local --stop.env-steps 1000000000 --stop.at-return None --evaluation.every 0 --out {folder}/run"


def measure_waits(server: Served, seconds: float) -> list[float]:
    """Milliseconds from each observation to its action in a client that plays CartPole, after the warm-up."""
    env, waits, began = gymnasium.make("CartPole-v1"), list[float](), time.monotonic()
    described: dict[str, Any] = spaces(env)
    with Client(server.url, server.token, **described) as client:
        while (now := time.monotonic() - began) < WARM_UP_S + seconds:
            action, over = client.reset(env.reset()[0]), False
            while not over:
                obs, reward, terminated, truncated, _ = env.step(action)
                over = terminated or truncated
                if over:
                    client.end(obs, float(reward), terminated=terminated)
                else:
                    asked_at = time.perf_counter()
                    action = client.step(obs, float(reward))
                    if now > WARM_UP_S:
                        waits.append(1000 * (time.perf_counter() - asked_at))
    return waits


def shares(folder: Path) -> Record:
    """How the learner and the actor spent their time at the end, and how fast the run was."""
    rows = [json.loads(line) for path in folder.glob("run/metrics.jsonl") for line in path.read_text().splitlines()]
    warm = [row for row in rows if row["wall_s"] > WARM_UP_S]
    return {
        source: {
            name: round(statistics.mean(row[name] for row in mine if name in row), 3)
            for name in sorted({name for row in mine for name in row})
            if name.startswith("time_") or name == "env_steps_per_s"
        }
        for source in ("learner", "actor_0")
        if (mine := [row for row in warm if row["source"] == source])
    }


def many(clients: int, seconds: float) -> Iterator[Record]:
    """Many clients of one run."""
    with served(f"train cartpole-remote {ENDLESS}", REMOTE, clients) as server:
        figures = take_load(start_load(server, clients, seconds))
        yield figures | shares(server.folder)


@contextlib.contextmanager
def some_weights() -> Iterator[Path]:
    """A file with the weights of a short run."""
    with tempfile.TemporaryDirectory() as folder:
        train = "train cartpole --engine serial --steps 2000 --evaluation.every 0 --stop.at-return None --quiet"
        subprocess.run([PROGRAM, *train.split(), "--out", f"{folder}/run"], check=True, timeout=DEADLINE_S)
        yield Path(folder, "run", "weights.safetensors")


SERVE = "serve {folder}/weights.safetensors"


def serve(clients: int, seconds: float) -> Iterator[Record]:
    """`apex-acer serve` with one client, and with many."""
    with some_weights() as weights:
        for count in (1, clients):
            with served(SERVE, "--", count, weights) as server:
                yield take_load(start_load(server, count, seconds))


def agents(rounds: int, seconds: float) -> Iterator[Record]:
    """As many agents on one connection as clients with one each, in turns, and how many times as many steps they make."""
    rates: dict[tuple[str, int], list[int]] = {}
    with some_weights() as weights:
        servers = {"serve": (SERVE, "--", weights), "train": (f"train cartpole-remote {ENDLESS}", REMOTE, None)}
        for name, (command, section, file) in [*servers.items()] * rounds:
            for connections, num in ((AGENTS, 0), (1, AGENTS)):
                with served(command, section, AGENTS, file) as server:
                    figures = take_load(start_load(server, connections, seconds, num))
                rates.setdefault((name, connections), []).append(figures["steps_per_s"])
                yield {"program": name, "connections": connections, **figures}
    medians = {key: statistics.median(values) for key, values in rates.items()}
    yield {
        f"{name}_one_over_{AGENTS}_connections": round(medians[name, 1] / medians[name, AGENTS], 2) for name in servers
    }


def main(
    task: Literal["solved", "latency", "clients", "serve", "agents"],
    seeds: int = 5,
    clients: int = 64,
    seconds: float = 30.0,
    out: Path | None = None,
) -> int:
    """Measures a task.

    Args:
        task: what is measured.
        seeds: runs of each kind, for `solved` and `agents`.
        clients: how many at once, for `clients` and `serve`.
        seconds: of each measurement after its warm-up.
        out: the file of results; by default in docs/results.
    """
    tasks = {
        "solved": lambda: solved(seeds),
        "latency": lambda: latency(seconds),
        "clients": lambda: many(clients, seconds),
        "serve": lambda: serve(clients, seconds),
        "agents": lambda: agents(seeds, seconds),
    }
    records, before = [], round(os.getloadavg()[0], 1)  # of other programs
    for record in tasks[task]():
        print(json.dumps(record), flush=True)
        records.append(record)
    path = out or RESULTS / f"remote-{task}{f'-{clients}' if task == 'clients' and clients != 64 else ''}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    conditions = {"cores": os.cpu_count(), "load_average_before": before}
    path.write_text(json.dumps({**conditions, "records": records}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
