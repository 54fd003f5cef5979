"""The verbs that measure this machine: `apex-acer doctor` and `plan`."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from rich.filesize import decimal

from apex_acer.cli.flags import place
from apex_acer.cli.notice import EXIT_FAILED, PROGRAM, Notice
from apex_acer.cli.parsing import parse
from apex_acer.config import RunConfig, require
from apex_acer.config.runfile import load_run
from apex_acer.system.output import printable, say

if TYPE_CHECKING:
    from apex_acer.protocol.specification import EnvironmentSpec
    from apex_acer.tools.capacity import plan as capacity
    from apex_acer.tools.doctor.installation import Finding

NAMES = {
    "actors": "the actors' cores",
    "cores": "the machine's cores",
    "learner": "the learner",
    "network": "the network",
}


@dataclass(frozen=True)
class Doctor:
    """Checks this machine and installation for a run, and measures its speed for about half a minute."""

    run: str = place("RUN", "pong")
    """A preset, a TOML file or the folder of a run."""
    json: bool = False
    """Print one JSON object instead of lines."""


def doctor(arguments: list[str]) -> int:
    """Prints the findings; returns 1 if a run could not work."""
    options = parse(Doctor, arguments)
    findings = []
    with Notice(quiet=options.json) as notice:
        for finding in _examine(options.run, notice.say):
            findings.append(finding)
            if not options.json:
                notice.clear()
                advice = f"; {finding.advice}" if finding.advice else ""
                print(printable(f"{finding.level:<8} {finding.topic:<12} {finding.text}{advice}"), flush=True)
    works = all(finding.level != "problem" for finding in findings)
    if options.json:
        print(json.dumps({"run": options.run, "works": works, "findings": [f._asdict() for f in findings]}))
    return 0 if works else EXIT_FAILED


def _examine(run: str, show: Callable[[str], None]) -> Iterator[Finding]:
    """Findings about the installation and, if that is complete, about the machine and the run; `show` gets the progress."""
    from apex_acer.tools.doctor.installation import check_installation

    complete = True
    for finding in check_installation():
        complete = complete and finding.level != "problem"
        yield finding
    if complete:
        show("loading torch")
        from apex_acer.tools.doctor.run import check_run

        yield from check_run(run, show)


@dataclass(frozen=True)
class Plan:
    """Predicts the speed of a run on other machines, without evaluations, from half a minute of measurements here."""

    run: str = place("RUN", "pong")
    """A preset, a TOML file or the folder of a run; it has all other settings."""
    actors: int | None = None
    """Actor processes; by default as many as fit one machine."""
    cores_per_node: int | None = None
    """Cores of each machine; by default those of this one."""
    gpus: int | None = None
    """GPUs of the learners' machine; 0: they use its cores; by default 1 if this machine has a GPU."""
    learners: int | None = None
    """Learner processes; by default the run's."""
    network_gbit: float = 10.0
    """Network speed of the learners' machine in each direction, in Gbit/s."""
    compress: bool = False
    """Compress observations by LZ4 before they are sent."""
    samples_per_s: float | None = None
    """Samples per second that a GPU trains on, from `apex-acer doctor` there; by default updates are measured here."""
    json: bool = False
    """Print one JSON object instead of lines."""


def plan(arguments: list[str]) -> int:
    """Prints the plan; returns 1 if a component of the run cannot be measured."""
    options = parse(Plan, arguments)
    _check(options)
    from apex_acer.environments.check import check_environment
    from apex_acer.networks.device import choose_device
    from apex_acer.tools.capacity.components import compression
    from apex_acer.tools.capacity.measure import measure_work
    from apex_acer.tools.capacity.plan import make_plan

    config = load_run(options.run)
    allowed = "the clients decide on its speed; give a run whose environments are made here"
    require(not config.environment.is_remote, "run", options.run, allowed)
    device = str(choose_device(config.learner.device, "learner.device"))
    gpu = "" if device == "cpu" else device
    spec = check_environment(config).spec
    config, machines = _place(options, config, spec, bool(gpu))
    if config.ray.compress:
        compression()
    try:
        with Notice(quiet=options.json) as notice:
            notice.say("measuring the components, half a minute")
            work = measure_work(config, spec, machines, gpu, options.samples_per_s)
    except RuntimeError as error:
        say(printable(f"{PROGRAM}: {options.run}: {error}; train the run to see more"), sys.stderr)
        return EXIT_FAILED
    predicted = make_plan(work, machines)
    if options.json:
        parts = {"work": asdict(work), "machines": asdict(machines), "plan": asdict(predicted)}
        print(json.dumps({"run": options.run, **parts}))
    else:
        for topic, text in _lines(config, work, machines, predicted):
            print(f"{topic:<10} {text}")
    return 0


def _check(options: Plan) -> None:
    counts = {"--actors": options.actors, "--cores-per-node": options.cores_per_node, "--learners": options.learners}
    for name, count in counts.items():
        require(count is None or count >= 1, name, count, "give 1 or more")
    require(options.gpus is None or options.gpus >= 0, "--gpus", options.gpus, "give 0 or more")
    for name, rate in {"--network-gbit": options.network_gbit, "--samples-per-s": options.samples_per_s}.items():
        require(rate is None or 0 < rate < math.inf, name, rate, "give a number above 0")


def _place(
    options: Plan, config: RunConfig, spec: EnvironmentSpec, has_gpu: bool
) -> tuple[RunConfig, capacity.Machines]:
    """The run as it would be placed on the machines of the `options`, and these machines."""
    from apex_acer.engines.machine import learns_on_every_core, place
    from apex_acer.learner.gradient import num_parts
    from apex_acer.system.process import available_cores
    from apex_acer.tools.capacity.plan import Machines

    cores = options.cores_per_node or available_cores()
    gpus = int(has_gpu) if options.gpus is None else options.gpus
    learners = options.learners or config.learner.count
    config = dataclasses.replace(
        config,
        engine="ray",  # the only one with several learners; its checks apply to them
        actors=dataclasses.replace(config.actors, count=options.actors or config.actors.count),
        learner=dataclasses.replace(config.learner, count=learners, device="cuda" if gpus else "cpu"),
        ray=dataclasses.replace(config.ray, compress=options.compress or config.ray.compress),
    )
    config = place(config, spec, cores)
    shared = learns_on_every_core(config.learner.device, spec)
    threads = num_parts(config.learner.threads, config.learner.batch_size // learners) if shared else 1
    return config, Machines(config.actors.count, cores, gpus, learners, threads, options.network_gbit)


def _lines(
    config: RunConfig, work: capacity.Work, machines: capacity.Machines, plan: capacity.Plan
) -> Iterator[tuple[str, str]]:
    from apex_acer.learner import parts
    from apex_acer.tools.capacity.plan import advise

    yield "machines", _machines(machines)
    if machines.gpus and work.gradient_s is None:
        needed = plan.gpu_samples_per_s
        enough = f" (from {needed:,.0f} on it is not the limit)" if needed else ""
        yield "gpu", f"none here to measure, assumed to cost no time; give its --samples-per-s{enough}"
    rates = f"{plan.samples_per_s:,.0f} samples/s, {plan.updates_per_s:,.1f} updates/s"
    most = next(iter(plan.limits.values()))
    yield "expect", f"about {plan.env_steps_per_s:,.0f} env steps/s, at most {most:,.0f}; {rates}"
    into, out, line = (f"{size / 1e6:,.0f} MB/s" for size in (plan.network_in, plan.network_out, machines.bytes_per_s))
    if machines.nodes > 1:
        text = f"{into} into the learner's machine, {out} out of it"
        yield "network", f"{text}; {machines.network_gbit:g} Gbit/s are {line} each way"
    replay = work.replay_bytes * parts.capacity(config) / machines.learners
    yield "replay", f"{decimal(int(replay))} of memory{' in each learner' if machines.learners > 1 else ''}"
    yield "limit", _limit(plan)
    for text in advise(work, machines, plan, compressed=config.ray.compress):
        yield "advice", text


def _machines(machines: capacity.Machines) -> str:
    where = f"{machines.nodes} of {machines.cores_per_node} cores"
    where += " for actors, 1 more for learners" if machines.nodes > 1 else ""
    on = f"GPUs: {machines.gpus}" if machines.gpus else f"threads of a learner: {machines.threads}"
    return f"{where}; actors: {machines.actors}, learners: {machines.learners}, {on}"


def _limit(plan: capacity.Plan) -> str:
    (first, rate), *others = plan.limits.items()
    after = ", then ".join(f"{NAMES[name]} at {limit / rate:,.1f} times that rate" for name, limit in others)
    return f"{NAMES[first]}; next {after}"
