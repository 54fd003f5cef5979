"""Checks this machine for one run: cores, memory and disk, the run's environment, device, settings and speed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import ale_py.roms
import torch
from rich.filesize import decimal

from apex_acer.config import ConfigError, EnvironmentConfig, RunConfig
from apex_acer.config.runfile import load_run
from apex_acer.engines import machine
from apex_acer.environments.check import check_environment
from apex_acer.environments.vector import environment_spec
from apex_acer.learner.parts import capacity
from apex_acer.networks.device import CPU, choose_device
from apex_acer.networks.speed import multiplies_bfloat16
from apex_acer.system.process import available_cores
from apex_acer.tools.capacity.components import replay_bytes_per_step
from apex_acer.tools.capacity.measure import ceiling, measure
from apex_acer.tools.doctor.installation import Finding, judge
from apex_acer.views.progress import clock

ACTING, LEARNING = ("environment", "acting"), ("update",)
SECONDS = 1.5  # for each component
SPARE_DISK_BYTES = 1e9  # for weights, logs and curves
SOCKETS = Path("/tmp")  # parent of a run's private folder
USUAL = 0.9  # share of the ceiling that runs reach (docs/performance.md)


def check_run(run: str, say: Callable[[str], None]) -> Iterator[Finding]:
    """Findings about all that a run (a preset, a TOML file or a run's folder) needs, and its speed.

    `say` is called with what is being done before it takes long. Raises `ConfigError` if there is no such run.
    """
    config = load_run(run)
    yield check_cores()
    device, finding = check_device(config.learner.device)
    yield finding
    say("making environments")
    yield check_games(needed=config.environment.is_atari)
    try:
        spec, notes = check_environment(config)
    except ConfigError as error:
        yield Finding("environment", "problem", str(error), "correct the run file, or give another one")
        return
    yield Finding("environment", "ok", "; ".join([config.environment.id, *notes]))
    yield check_bfloat16(device, matters=machine.learns_on_every_core(config.learner.device, spec))
    config = machine.place(config, spec)
    stored, on_gpu = capacity(config) * replay_bytes_per_step(config, spec), device.type == "cuda"
    yield from check_machine(config, stored, 0 if on_gpu and config.replay.device == "learner" else stored)
    yield Finding("settings", "ok", machine.describe(config))
    say("measuring the speed, half a minute")
    yield from check_speed(run, config, device)


def check_cores() -> Finding:
    """The cores that a run may use, and whether a container limits their time."""
    cores, (quota, _, period) = available_cores(), machine.control("cpu.max").partition(" ")
    limit = float(quota) / float(period) if quota.isdigit() else cores  # processor seconds per second
    text = f"{cores} available of {os.cpu_count()}"
    if limit < cores:
        advice = f"processes are placed for {cores} cores; give --actors, or pin the container to cores instead"
        return Finding("cores", "warning", f"{text}, limited to the time of {limit:g}", advice)
    return judge("cores", text, "actors and the learner take turns; two cores or more are better", well=cores > 1)


def check_machine(config: RunConfig, replay_bytes: float, here: float) -> Iterator[Finding]:
    """Memory, files and disk for the placed `config`, whose replay takes `replay_bytes`, of which `here` in main memory."""
    yield check_memory(config, here)
    yield check_open_files(config)
    writable = os.access(SOCKETS, os.W_OK | os.X_OK)
    yield judge("sockets", f"they are in {SOCKETS}", f"make {SOCKETS} writable", works=writable)
    yield check_disk(config, replay_bytes)


def check_memory(config: RunConfig, replay_bytes: float) -> Finding:
    """Total and unused memory, and what the run needs."""
    total, unused = machine.memory_bytes()
    need = machine.usual_bytes(config.actors.count, replay_bytes)
    text = f"{decimal(int(unused))} unused of {decimal(int(total))}; about {decimal(int(need))} needed"
    replay = f"--replay.capacity below {config.replay.capacity} or " if config.algorithm.has_replay else ""
    advice = f"give {replay}--actors below {config.actors.count}"
    return judge("memory", text, advice, works=need < total, well=need < unused)


def check_open_files(config: RunConfig) -> Finding:
    """The shell's limit on the open files of a process."""
    limit, most = machine.open_files_limit()
    need = machine.open_files(config.actors.count)
    advice = f"ulimit -n {need}" if most >= need else "give fewer --actors"
    return judge("open files", f"{limit:,.0f} allowed, about {need:,} needed", advice, works=limit >= need)


def check_disk(config: RunConfig, replay_bytes: float) -> Finding:
    """Free disk where the run's folder would be made."""
    folder = Path(config.out or "runs").absolute()
    there = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(there).free
    # a new checkpoint is whole before the old one goes
    need = 2 * replay_bytes if config.checkpoint.replay or config.replay.load else 0
    works = os.access(there, os.W_OK | os.X_OK) and there.is_dir() and free > need
    text = f"{decimal(int(free))} free for {folder}" + (f", {decimal(int(need))} needed" if need else "")
    well = free > need + SPARE_DISK_BYTES
    return judge("disk", text, "give --out a writable folder with room", works=works, well=well)


def check_device(name: str) -> tuple[torch.device, Finding]:
    """The device that `learner.device` means on this machine; the CPU if it cannot be used."""
    try:
        device = choose_device(name, "learner.device")
    except ConfigError as error:
        return CPU, Finding("gpu", "problem", str(error), "give --learner.device cpu")
    if device.type == "cuda":
        size = torch.cuda.get_device_properties(device).total_memory
        return device, Finding("gpu", "ok", f"{torch.cuda.get_device_name(device)}, {size / 1e9:,.0f} GB")
    if machine.has_gpu(name):
        advice = "install a torch for CUDA and a driver that fits, or give --learner.device cpu"
        return device, Finding("gpu", "warning", f"there is one, but torch {torch.__version__} cannot use it", advice)
    unused = torch.cuda.is_available() or torch.backends.mps.is_available()
    return device, Finding("gpu", "ok", "there is one that this run does not use" if unused else "none; the CPU learns")


def check_bfloat16(device: torch.device, *, matters: bool) -> Finding:
    """Whether `device` has instructions for bfloat16; `matters`: whether the run has convolutions on the CPU."""
    has = multiplies_bfloat16(device)
    text = f"the {device.type} has {'' if has else 'no '}instructions for it"
    advice = "updates in float32 take about 1.7 times as long; a GPU would be faster"
    return judge("bfloat16", text, advice, well=has or not matters)


def check_games(*, needed: bool) -> Finding:
    """Whether ALE has its games and can make one; a problem only if they are `needed`."""
    folder = Path(os.environ.get("ALE_ROMS_DIR") or Path(ale_py.roms.__file__).parent)
    names = ale_py.roms.get_all_rom_ids()
    num = sum((folder / f"{name}.bin").is_file() for name in names)
    text, works = f"{num} of {len(names)} in {folder}", True
    try:
        environment_spec(EnvironmentConfig(id="ALE/Pong-v5"))
    except ConfigError as error:
        text, works = f"{text}; {error}", False
    return judge("atari games", text, "pip install --force-reinstall ale-py", works=works or not needed, well=works)


def check_speed(run: str, config: RunConfig, device: torch.device) -> Iterator[Finding]:
    """The rates of the components, and the speed to expect of the placed `config`."""
    gpu, cores = device.type == "cuda", 1 if config.engine == "serial" else available_cores()
    try:
        rates = measure(run, ACTING if gpu else ACTING + LEARNING, seconds=SECONDS, count=cores)
        if gpu:
            rates |= measure(run, LEARNING, seconds=SECONDS, device=str(device))
    except RuntimeError as error:
        advice = "the environment or the learner failed; train the run to see more"
        yield Finding("speed", "problem", str(error), advice)
        return
    emulator, acting, update = (f"{rates[name]:,.0f}" for name in ACTING + LEARNING)
    where = "on the GPU" if gpu else "a core"
    text = f"{emulator} environment and {acting} acting steps/s a core, {update} samples/s of updates {where}"
    yield Finding("speed", "ok", text, figures=rates)
    most = ceiling(rates, config, cores, config.learner.threads, gpu=gpu)
    expected, steps = USUAL * most, config.stop.env_steps
    text = f"about {expected:,.0f} env steps/s, at most {most:,.0f}; {steps:,} steps in {clock(steps / expected)}"
    yield Finding("expect", "ok", text, figures={"env_steps_per_s": expected, "ceiling": most})
