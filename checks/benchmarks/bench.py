"""`make bench`: how near a real run comes to what this machine's components allow, and where the time goes.

Prints what it finds and the change against the last accepted result, and writes JSON. The components are measured on all
cores at once; of them and the replay ratio follows the ceiling

    cores / (t_acting + (fresh + ratio) * t_update)

in environment steps per second (`ceiling` in `tools/capacity/measure.py`), where fresh is 1 for an algorithm that trains
on each segment as it comes, and 0 for others. The preset is trained with processes at each replay ratio, without evaluation,
and the components are measured again after each run: its ceiling is that of the two measurements around it, and it is void
if they disagree.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import tyro

from apex_acer.config import RunConfig
from apex_acer.config.runfile import load_run
from apex_acer.environments.vector import environment_spec
from apex_acer.system.process import available_cores
from apex_acer.tools.capacity.components import replay_bytes_per_step
from apex_acer.tools.capacity.measure import ceiling, measure, samples_per_step
from checks.benchmarks import fabric
from checks.benchmarks.draw import draw_time
from tests.processes import idle_s, processes, processor_s, resident_mb

RESULTS = Path(__file__).parents[2] / "docs" / "results"
REPLAY_STEPS = 10_000  # full before the measurement begins, as it is for most of a run
WARM_UP_S, DEADLINE_S = 15.0, 180.0
ACTOR, SECONDS = ("environment", "acting"), 4.0
MOST_DRIFT = 0.05  # of a component's rate around a run that counts
Figures = dict[str, Any]


def measure_components(preset: str, device: str) -> dict[str, float]:
    """Rates per core; those of the updates on `device`."""
    learner, cores = ("replay", "forward", "update"), available_cores()
    if device == "cpu":
        return measure(preset, (*ACTOR, *learner), seconds=SECONDS, count=cores)
    rates = measure(preset, ACTOR, seconds=SECONDS, count=cores)
    return rates | measure(preset, learner, seconds=SECONDS, device=device)


def judge(run: Figures, preset: str, ratio: float, device: str, around: Sequence[dict[str, float]]) -> Figures:
    """`run` beside its ceiling, by the mean of the components measured before and after it, and what makes it `void`."""
    before, after = around
    components = {name: (rate + after[name]) / 2 for name, rate in before.items()}
    cores = available_cores()
    limit = ceiling(components, at_ratio(preset, ratio), cores, cores, gpu=device != "cpu")
    drift = {name: abs(after[name] - rate) / components[name] for name, rate in before.items()}
    void = {name: share for name, share in drift.items() if share > MOST_DRIFT}
    return {**run, "ceiling": limit, "achieved": run["env_steps_per_s"] / limit, "void": void}


def at_ratio(preset: str, ratio: float) -> RunConfig:
    """`preset` at another replay ratio."""
    config = load_run(preset)
    return dataclasses.replace(config, algorithm=dataclasses.replace(config.algorithm, replay_ratio=ratio))


def measure_run(
    preset: str, ratio: float | None, seconds: float, device: str = "cpu", flags: Sequence[str] = ()
) -> Figures:
    """A real run: its rates after the warm-up, where each process spent its time, and what memory it held.

    `ratio` is the replay ratio, None for an algorithm without replay; `flags` are added to the command.
    """
    with tempfile.TemporaryDirectory() as folder:
        flags = [*flags, *f"--engine local --evaluation.every 0 --stop.at-return None --out {folder}/run".split()]
        flags += ["--stop.minutes", str((WARM_UP_S + seconds) / 60), "--learner.device", device]
        if ratio is not None:
            replay = f"--replay.start 1000 --replay.capacity {REPLAY_STEPS} --algorithm.replay-ratio {ratio}"
            flags += replay.split()
        command = [str(Path(sys.executable).with_name("apex-acer")), "train", preset, *flags]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            watched = _watch(process)
        rows = [json.loads(line) for line in Path(folder, "run", "metrics.jsonl").read_text().splitlines()]
    warm = [row for row in rows if row["wall_s"] >= WARM_UP_S]
    learner = [row for row in warm if row["source"] == "learner"]
    first, last = learner[0], learner[-1]
    rate = (last["env_steps"] - first["env_steps"]) / (last["wall_s"] - first["wall_s"])
    return {
        "env_steps_per_s": rate,
        "learner_samples_per_s": rate * samples_per_step(load_run(preset), last["replay_ratio"]),
        "replay_ratio": last["replay_ratio"],
        "time": {source: _shares(warm, source) for source in sorted({row["source"] for row in warm})},
        **watched,
    }


def _watch(process: subprocess.Popen[bytes]) -> Figures:
    """Of each child the largest resident set, MB, and the cores it uses after the warm-up; ends with the process.

    `idle` are the cores that nothing uses. Kills the process at the deadline.
    """
    started, largest, spent = time.monotonic(), dict[str, float](), list[tuple[float, dict[str, float]]]()
    while process.poll() is None:
        with contextlib.suppress(OSError):  # a child has ended
            children, now = processes(process.pid), time.monotonic()
            for role, pid in children.items():
                largest[role] = max(resident_mb(pid), largest.get(role, 0.0))
            if now - started > WARM_UP_S:
                spent.append((now, {role: processor_s(pid) for role, pid in children.items()} | {"idle": idle_s()}))
        if time.monotonic() - started > DEADLINE_S:
            process.kill()
            raise TimeoutError(f"the run did not end within {DEADLINE_S:.0f} s")
        time.sleep(1.0)
    if process.returncode:
        raise RuntimeError(f"the run ended with {process.returncode}")
    return {"rss_mb": largest, "cores": cores(spent)}


def cores(spent: Sequence[tuple[float, dict[str, float]]]) -> dict[str, float]:
    """Cores in use by name, from times and the processor seconds until then, as long as all names are there."""
    begin, first = spent[0]
    end, last = next(sample for sample in reversed(spent) if sample[1].keys() == first.keys())
    return {name: (last[name] - first[name]) / (end - begin) for name in first}


def _shares(rows: list[Figures], source: str) -> dict[str, float]:
    """Mean shares of a process's time by phase; `other` is what no timer covers, copying above all."""
    mine = [row for row in rows if row["source"] == source]
    names = sorted({name for row in mine for name in row if name.startswith("time_")})
    shares = {name: sum(row.get(name, 0.0) for row in mine) / len(mine) for name in names}
    return {**shares, "other": max(0.0, 1 - sum(shares.values()))}


def show(result: Figures, before: Figures | None) -> None:
    """Prints figures and, where there is an accepted result, how they changed."""
    print(f"{result['preset']} on {result['cores']} cores, updates on {result['device']}")
    print(f"replay: {result['replay_bytes_per_step']:,.0f} bytes an environment step")
    print("components per core and second, all cores busy:")
    for name, rate in result["components"].items():
        print(f"  {name:<24}{rate:>10,.0f}{_change(rate, before['components'].get(name) if before else None)}")
    for name, run in result["runs"].items():
        earlier = before["runs"].get(name) if before else None
        print(
            f"replay ratio {name}: {run['env_steps_per_s']:,.0f} env steps/s of at most {run['ceiling']:,.0f}", end=""
        )
        print(f" ({run['achieved']:.0%}){_change(run['env_steps_per_s'], earlier and earlier['env_steps_per_s'])}")
        if run["void"]:
            drift = ", ".join(f"{component} by {share:.0%}" for component, share in run["void"].items())
            print(
                f"  void: around the run {drift} faster or slower, {MOST_DRIFT:.0%} at most; the machine is not quiet"
            )
        for source, shares in run["time"].items():
            print(
                f"  {source:<12}",
                ", ".join(f"{phase.removeprefix('time_')} {share:.0%}" for phase, share in shares.items()),
            )
        print("  cores in use:", ", ".join(f"{role} {used:.2f}" for role, used in run["cores"].items()))
        print("  memory, MB: ", ", ".join(f"{role} {size:,.0f}" for role, size in run["rss_mb"].items()))
    for name, rates in result["fabric"].items():
        print(f"{name:<28}{rates['unrolls_per_s']:>10,.0f} a second, {rates['bytes_per_s'] / 1e6:>8,.0f} MB/s")


def device_name(device: str) -> str:
    """What the device calls itself."""
    return str(torch.cuda.get_device_name(device)) if device != "cpu" else str(torch.cpu.get_capabilities()["cpu_name"])


def _change(now: float, before: float | None) -> str:
    return f"   {now / before - 1:+.0%} against the accepted" if before else ""


def main(
    preset: str = "pong",
    device: str = "cpu",
    ratios: tuple[float, ...] = (1.0, 4.0, 8.0),
    seconds: float = 60.0,
    accept: bool = False,
    out: Path = Path("build/bench.json"),
) -> int:
    """Measures this machine.

    Args:
        preset: what is trained.
        device: the learner's.
        ratios: replay ratios.
        seconds: of each run after its warm-up.
        accept: keep the result in docs/results, where later ones are held against it.
        out: where it is written.
    """
    accepted = RESULTS / f"bench-{preset}{'' if device == 'cpu' else '-gpu'}.json"
    before = json.loads(accepted.read_text()) if accepted.exists() else None
    measured, runs = [measure_components(preset, device)], dict[str, Figures]()
    for ratio in ratios:
        run = measure_run(preset, ratio, seconds, device)
        measured.append(measure_components(preset, device))
        runs[f"{ratio:g}"] = judge(run, preset, ratio, device, measured[-2:])
    components = {name: statistics.fmean(each[name] for each in measured) for name in measured[0]}
    machine: Figures = {"preset": preset, "device": device_name(device), "cores": available_cores()}
    config = load_run(preset)
    machine["replay_bytes_per_step"] = replay_bytes_per_step(config, environment_spec(config.environment))
    result = {**machine, "components": components, "runs": runs, "fabric": fabric.main()}
    show(result, before)
    if accept and any(run["void"] for run in runs.values()):
        print("nothing was accepted, because a run is void")
        accept = False
    for path in [out, *([accepted] if accept else [])]:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=2) + "\n")
        path.with_suffix(".png").write_bytes(draw_time(result))
    return 0


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
