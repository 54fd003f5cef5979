"""The verbs that measure this machine: `apex-acer doctor` and `plan`."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.filesize import decimal

from apex_acer.cli.flags import Switch
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
    """Checks this machine and installation for a run, and measures how fast it would be.

    That takes about half a minute, and longer while other programs keep the cores busy.
    """

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")] = "pong"
    """A preset, a TOML file or the folder of a run."""
    json: Switch = False
    """Print one JSON object instead of lines."""


def doctor(arguments: list[str]) -> int:
    """Prints the findings; returns 1 if a run could not work."""
    options = parse(Doctor, arguments, "doctor")
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
    """Findings about the installation and, if that is complete, about the machine and the run; shows what is being done."""
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
    """Predicts the speed of a run without evaluations on other machines, from half a minute of measurements on this one."""

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")] = "pong"
    """A preset, a TOML file or the folder of a run; it decides whatever has no flag here."""
    actors: int | None = None
    """Actor processes; by default as many as fit one machine."""
    cores_per_node: int | None = None
    """Cores of each machine; by default those of this one."""
    gpus: int | None = None
    """GPUs of the learners' machine; 0: the learners use its cores; by default 1 if this machine has a GPU."""
    learners: int | None = None
    """Learner processes; by default the run's."""
    network_gbit: float = 10.0
    """Network speed of the learners' machine in each direction, in Gbit/s."""
    compress: Switch = False
    """Compress observations by LZ4 before they are sent."""
    samples_per_s: float | None = None
    """Samples per second that a GPU trains on, as `apex-acer doctor` measures there; then updates are not measured here."""
    json: Switch = False
    """Print one JSON object instead of lines."""


def plan(arguments: list[str]) -> int:
    """Measures, plans and prints; returns 1 if a component of the run cannot be measured."""
    options = parse(Plan, arguments, "plan")
    _check(options)
    from apex_acer.environments.check import check_environment
    from apex_acer.networks.device import choose_device
    from apex_acer.tools.capacity.exchange import compression
    from apex_acer.tools.capacity.plan import make_plan
    from apex_acer.tools.capacity.work import measure_work

    config = load_run(options.run)
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
    made = make_plan(work, machines)
    if options.json:
        said = {"work": asdict(work), "machines": asdict(machines), "plan": asdict(made)}
        print(json.dumps({"run": options.run, **said}))
    else:
        for topic, text in _lines(config, work, machines, made):
            print(f"{topic:<10} {text}")
    return 0


def _check(options: Plan) -> None:
    for flag in ("actors", "cores_per_node", "learners", "gpus"):
        value, least = getattr(options, flag), 0 if flag == "gpus" else 1
        name = f"--{flag.replace('_', '-')}"
        require(value is None or value >= least, name, value, f"give {least} or more")
    for flag in ("network_gbit", "samples_per_s"):
        value, name = getattr(options, flag), f"--{flag.replace('_', '-')}"
        require(value is None or 0 < value < math.inf, name, value, "give a number above 0")


def _place(
    options: Plan, config: RunConfig, spec: EnvironmentSpec, has_gpu: bool
) -> tuple[RunConfig, capacity.Machines]:
    """The run as it would be placed on the given machines, and these machines."""
    from apex_acer.engines.machine import available_cores, learns_on_every_core, place
    from apex_acer.learner.gradient import num_parts
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
    from apex_acer.tools.capacity.plan import advise

    yield "machines", _machines(machines)
    if machines.gpus and work.gradient_s is None:
        yield "gpu", _gpu(plan)
    rates = f"{plan.samples_per_s:,.0f} samples/s, {plan.updates_per_s:,.1f} updates/s"
    most = next(iter(plan.limits.values()))
    yield "expect", f"about {plan.env_steps_per_s:,.0f} env steps/s, at most {most:,.0f}; {rates}"
    into, out, line = (f"{size / 1e6:,.0f} MB/s" for size in (plan.network_in, plan.network_out, machines.bytes_per_s))
    if machines.nodes > 1:
        text = f"{into} into the learner's machine, {out} out of it"
        yield "network", f"{text}; {machines.network_gbit:g} Gbit/s are {line} each way"
    replay = work.replay_bytes * config.replay.capacity / machines.learners
    yield "replay", f"{decimal(int(replay))} of memory{' in each learner' if machines.learners > 1 else ''}"
    yield "limit", _limit(plan)
    for text in advise(work, machines, plan, compressed=config.ray.compress):
        yield "advice", text


def _machines(machines: capacity.Machines) -> str:
    on = _count(machines.gpus, "GPU") if machines.gpus else _count(machines.threads, "thread")
    each = " each" if machines.learners > 1 and not machines.gpus else ""
    learners = f"{_count(machines.learners, 'learner')} on {on}{each}"
    if machines.nodes == 1:
        return f"one of {machines.cores_per_node} cores for {_count(machines.actors, 'actor')} and {learners}"
    return f"{machines.nodes} of {machines.cores_per_node} cores for {machines.actors} actors; one more for {learners}"


def _count(number: int, name: str) -> str:
    return f"{number} {name}{'s' if number > 1 else ''}"


def _gpu(plan: capacity.Plan) -> str:
    needed = plan.gpu_samples_per_s
    assumed = "assumed to cost no time" + (f": from {needed:,.0f} samples/s on it is not the limit" if needed else "")
    return f"none here to measure, give its --samples-per-s; {assumed}"


def _limit(plan: capacity.Plan) -> str:
    (first, rate), *others = plan.limits.items()
    after = ", then ".join(f"{NAMES[name]} at {limit / rate:,.1f} times that rate" for name, limit in others)
    return f"{NAMES[first]}; next {after}"
