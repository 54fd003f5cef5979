"""Checks a run and makes its folder, before its first process starts. Imports no torch."""

from __future__ import annotations

import dataclasses
import os
import sys
import time
import uuid
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from apex_acer.config import ConfigError, RunConfig, StopConfig, algorithm_settings, reading, require, writing
from apex_acer.config.runfile import from_dict, load_run, to_dict
from apex_acer.engines.engine import Run
from apex_acer.engines.machine import place, require_gpus, require_room
from apex_acer.environments.check import check_environment, require_unchanged
from apex_acer.manager.record import in_use
from apex_acer.networks.images import require_image, require_torso, require_vectors
from apex_acer.networks.metadata import read_metadata, require_match, weights_hint, written_by
from apex_acer.protocol.specification import EnvironmentSpec
from apex_acer.remote.token import make_token, token_file
from apex_acer.storage import checkpoint
from apex_acer.storage.folder import foreign, make_new
from apex_acer.storage.runlog import NAME, is_held
from apex_acer.system import imports


def prepare(config: RunConfig, started_at: float) -> Run:
    """A new run, whose environment has been tried and whose folder exists; raises `ConfigError`."""
    if sys.platform not in ("linux", "darwin"):
        raise ConfigError(f"platform: {sys.platform!r} is not supported; run on Linux or macOS")
    if config.load and not Path(config.load).is_file():
        raise ConfigError(f"load: {config.load!r} is not a file; {weights_hint(Path(config.load))}")
    _require_installed(config)
    config, here = _with_opponent(_with_replay(config)), Path.cwd()  # code of the user's may go to another folder
    settings, algorithm = algorithm_settings(config.algorithm.name), type(config.algorithm)
    allowed = f"the settings of {config.algorithm.name} are {settings.__name__}"
    require(algorithm is settings, "algorithm", algorithm.__name__, allowed)
    run = _checked(config, started_at)
    require_torso(run.config.network, run.spec)
    require_image(run.config.algorithm, run.spec)
    require_vectors(run.config.algorithm, run.spec)
    if config.load:
        _require_weights(Path(config.load), run)
    return _with_token(dataclasses.replace(run, folder=make_folder(run.config, here)))


def prepare_resume(
    folder: Path, stop: Mapping[str, Any], started_at: float, *, schedule_steps: int | None = None
) -> Run:
    """The run in `folder`, with new values for the keys of `config.stop` in `stop`; raises `ConfigError`.

    Schedules keep the end they had, unless `schedule_steps` is given: a smaller total would drop the learning rate at once,
    a larger one would raise it again.
    """
    require(isinstance(stop, Mapping), "stop", stop, "give a dict: {'env_steps': 2000}")
    if is_held(folder):  # before its files are read, which change under that program's hands
        raise in_use(folder)
    saved, before = _newest_checkpoint("resume", folder), load_run(folder / "config.toml")
    path, state = saved.path, saved.state
    config = dataclasses.replace(before, stop=_stop_of_rest(before.stop, stop, path, state))
    if schedule_steps is not None:
        config = dataclasses.replace(config, schedule_steps=schedule_steps)
    elif config.has_schedule and config.schedule_end != before.schedule_end:
        config = dataclasses.replace(config, schedule_steps=before.schedule_end)
    _require_installed(config)
    run = _checked(config, started_at)
    with reading(str(path)):
        require_unchanged(config.environment.id, run.spec, EnvironmentSpec.from_dict(state["spec"]))
    notes = (*run.notes, *_schedule_notes(config))
    return _with_token(dataclasses.replace(run, folder=folder, resume=True, notes=notes))


def _checked(config: RunConfig, started_at: float) -> Run:
    """The run, with a number for each count in its configuration; it has no folder yet.

    Raises `ConfigError` if the environment does not work, this machine cannot hold such a run, or the actor could not
    listen to remote clients.
    """
    _require_importable(config)
    spec, notes = check_environment(config)
    config = place(config, spec)
    if not (config.ray.address or (config.engine == "ray" and "ray" in sys.modules)):  # a cluster has other machines
        require_gpus(config)
        require_room(config, spec)
    if config.environment.is_remote:
        with imports.needs("environment.id: 'remote'", "remote"):
            from apex_acer.remote.listener import listen
        listen(config.environment.remote).close()
    return Run(config, spec, Path(), uuid.uuid4().hex, started_at, notes=notes)


def _with_token(run: Run) -> Run:
    """`run`; if its environments are remote, with a token, a note where it is, and the token itself if it is new."""
    if not run.config.environment.is_remote:
        return run
    settings = run.config.environment.remote
    token = make_token(settings, run.folder)
    note = f"the token of remote clients is in {token_file(settings, run.folder)}"
    return dataclasses.replace(run, notes=(*run.notes, note), secret=token and f"token: {token}")


def _with_replay(config: RunConfig) -> RunConfig:
    """`config` with the whole path of `replay.load`, so that it is found from everywhere; raises `ConfigError`."""
    load = config.replay.load
    if not load:
        return config
    _newest_checkpoint("replay.load", Path(load))
    return dataclasses.replace(config, replay=dataclasses.replace(config.replay, load=str(Path(load).absolute())))


def _newest_checkpoint(key: str, folder: Path) -> checkpoint.Checkpoint:
    """The newest whole checkpoint in `folder`, the value of `key`; raises `ConfigError`."""
    try:
        return checkpoint.load_newest(folder)
    except ConfigError as error:
        raise ConfigError(f"{key}: {error}") from None


def _with_opponent(config: RunConfig) -> RunConfig:
    """`config` with the whole path of the opponent's weights file, so that it is found from everywhere."""
    weights = config.evaluation.opponent_file
    evaluation = dataclasses.replace(config.evaluation, opponent=str(Path(weights).absolute())) if weights else None
    return dataclasses.replace(config, evaluation=evaluation) if evaluation else config


def _schedule_notes(config: RunConfig) -> list[str]:
    """The learning rate after the end of its schedule, if a resumed run goes on beyond that."""
    end, steps, optimizer = config.schedule_end, config.stop.env_steps, config.optimizer
    if optimizer.schedule == "constant" or end >= steps:
        return []
    rate = f"learning rate: {optimizer.learning_rate * optimizer.final_fraction:g} from env step {end:,} on"
    return [f"{rate}, where its schedule ends; --schedule-steps {steps} lets it fall until the end of the run"]


def _require_importable(config: RunConfig) -> None:
    """Raises `ConfigError` if the run's processes would not find what it names; no module of it is imported."""
    named = {"network.torso": (config.network.torso, "class"), "optimizer.name": (config.optimizer.name, "function")}
    for key, (name, kind) in (named | {"learner.callback": (config.learner.callback, "function")}).items():
        if ":" in name:
            imports.require_there(key, name, kind)
    if weights := config.evaluation.opponent_file:
        require(Path(weights).is_file(), "evaluation.opponent", weights, "give a file that is there")
    elif ":" in config.evaluation.opponent:
        imports.require_there("evaluation.opponent", config.evaluation.opponent, "function")
    environment = config.environment
    is_here = not environment.is_remote or environment.remote.local
    if config.engine != "serial" and is_here and "gymnasium" in sys.modules:  # else this program registers nothing
        from apex_acer.environments.registry import require_everywhere

        require_everywhere(environment.local)


def _require_installed(config: RunConfig) -> None:
    """Raises `ConfigError` if a tracker of the run, or what writes videos of its evaluations, is not installed."""
    needed: list[tuple[str, str, str]] = [("logging.trackers", name, name) for name in config.logging.trackers]
    if config.evaluation.video_every:
        needed += [("evaluation.video_every", "video", name) for name in ("av", "pygame")]
    for key, extra, module in needed:
        with imports.needs(key, extra):
            if find_spec(module) is None:
                raise ModuleNotFoundError(name=module)


def _require_weights(path: Path, run: Run) -> None:
    """Raises `ConfigError` if the weights to start from are of another run, as far as their metadata tells."""
    metadata = read_metadata(path)
    try:
        require_match(metadata, run.config, run.spec)
    except ConfigError as error:
        raise ConfigError(f"{run.config.load}: {error}{written_by(metadata)}") from None


def _stop_of_rest(before: StopConfig, changes: Mapping[str, Any], path: Path, state: Mapping[str, Any]) -> StopConfig:
    """The limits of a run resumed from `state` of the checkpoint `path`; raises `ConfigError` if one is reached already."""
    try:
        env_steps, minutes = int(state["env_steps"]), state["wall_s"] / 60
        reached = {"at_return": None} if state["evaluations"]["passed"] else {}
    except (ArithmeticError, LookupError, TypeError, ValueError):
        raise ConfigError(f"{path}: its state is not that of a run of this program") from None
    stop = from_dict({"stop": {**to_dict(before), **reached, **changes}}, "resume").stop
    if env_steps >= stop.env_steps:
        total = stop.env_steps
        raise ConfigError(f"stop.env_steps: {total} is reached, the run has made {env_steps}; give --steps above that")
    if stop.minutes is not None and minutes >= stop.minutes:
        limit = f"{stop.minutes:g} is reached, the run has taken {minutes:.1f}"
        raise ConfigError(f"stop.minutes: {limit}; give --minutes above that")
    return stop


def make_folder(config: RunConfig, here: Path) -> Path:
    """The run's folder: a new one, or `out`, in which nothing may be but what a refused start has left.

    It is relative to the absolute folder `here`. Raises `ConfigError` if there is anything else, or it cannot be written.
    """
    name = config.environment.id.rpartition(":")[2].rpartition("/")[2].lower()
    out = Path(config.out or f"runs/{name}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}")
    path = here / out
    with writing("out", out):
        if not config.out:
            return make_new(path)
        path.mkdir(parents=True, exist_ok=True)
        if not (other := foreign(path)):
            (path / NAME).touch()
            return path
    # the curves of two runs in one file would double back
    is_run = (path / "metrics.jsonl").exists()
    holds = "holds another run, which `resume` continues" if is_run else f"is not empty, it holds {other!r}"
    raise ConfigError(f"out: {str(out)!r} {holds}; give a new or empty folder")
