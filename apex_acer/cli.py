"""The command line: reads a run file, overrides keys, runs a verb, and exits with a reason."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import tyro

from apex_acer import IMPORTED_AT, __version__
from apex_acer.config import ConfigError, RunConfig, require
from apex_acer.runfile import load_run, presets

if TYPE_CHECKING:
    from apex_acer.engines.engine import Run

PROGRAM = "apex-acer"
EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130

T = TypeVar("T")
Flag = tyro.conf.FlagCreatePairsOff[bool]


@dataclass(frozen=True)
class Train:
    """Trains an agent. RUN, given first, is a preset (`apex-acer presets`) or a TOML file; flags override its keys."""

    config: Annotated[RunConfig, tyro.conf.arg(name="")]
    json: Flag = False
    """Print one JSON object as the last line of standard output, and progress on standard error."""


@dataclass(frozen=True)
class Resume:
    """Goes on with a run from its newest checkpoint, with the settings it had. DIR is the run's folder."""

    folder: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
    """A run's folder."""
    steps: int | None = None
    """Environment steps in total, those of before included; by default as many as the run was to make."""
    until: float | None = None
    """Mean return of one evaluation that ends it; by default the run's, unless it was reached."""
    minutes: float | None = None
    """Wall-clock minutes in total, those of before included."""
    json: Flag = False
    """Print one JSON object as the last line of standard output, and progress on standard error."""


@dataclass(frozen=True)
class Evaluate:
    """Plays whole games with a weights file and prints the unclipped returns."""

    weights: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="WEIGHTS")]
    """A .safetensors file of a run."""
    episodes: int | None = None
    """Episodes to play; by default as many as the run's evaluations."""
    seed: int | None = None
    """Seed of the environments and of sampling; by default the run's, which plays the games its evaluator played."""
    policy: Annotated[str | None, tyro.conf.arg(metavar="{greedy,sampled}")] = None
    """Greedy or sampled actions; by default as in the run's evaluations."""
    json: Flag = False
    """Print one JSON object as the last line of standard output."""


@dataclass(frozen=True)
class Sweep:
    """Trains seeds of variants of a run. RUN and its keys are as for `train`; a sweep goes on where its `--out` ended."""

    config: Annotated[RunConfig, tyro.conf.arg(name="")]
    seeds: int = 5
    """Seeds of every variant, from `--seed` upwards."""
    vary: Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="KEY=V1,V2,...")] = ()
    """Values of a key; every combination of several `--vary` is a variant. 64+64 is a tuple, K1:K2=V1:V2,W1:W2 a pair."""
    jobs: int = 0
    """Runs at the same time; 0: one per core with the serial engine, one per two cores otherwise."""
    final_episodes: int = 0
    """Fresh episodes that every finished run's weights play; 0: none."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one verb; returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    verb = given[0] if given else "--help"
    if verb in ("-h", "--help"):
        print(_usage())
        return 0
    if verb == "--version":
        print(f"{PROGRAM} {__version__}")
        return 0
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # a user's environment is often a module in the folder they stand in
    try:
        if verb not in VERBS:
            raise ConfigError(f"verb: {verb!r} is unknown; give one of {', '.join(VERBS)}")
        return VERBS[verb](given[1:])
    except ConfigError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return EXIT_USAGE
    except BrokenPipeError:  # the reader of a pipe has left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except KeyboardInterrupt:
        print(f"{PROGRAM}: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED


def train_verb(arguments: list[str]) -> int:
    """`apex-acer train RUN [flags]`."""
    config, as_json = parse_train(arguments)
    from apex_acer.manager import prepare

    return _train(prepare(config, IMPORTED_AT), as_json)


def resume_verb(arguments: list[str]) -> int:
    """`apex-acer resume DIR [flags]`."""
    given = _parse(Resume, arguments, None, "resume")
    asked = {"env_steps": given.steps, "at_return": given.until, "minutes": given.minutes}
    from apex_acer.manager import prepare_resume

    stop = {name: value for name, value in asked.items() if value is not None}
    return _train(prepare_resume(Path(given.folder).absolute(), stop, IMPORTED_AT), given.json)


def _train(run: Run, as_json: bool) -> int:
    from apex_acer.console import live_view
    from apex_acer.manager import RunFailed, manage

    stream = sys.stderr if as_json else sys.stdout
    try:
        with live_view(run.config, stream) as view:
            result = manage(run, view.update)
    except RunFailed as error:
        print(f"{error}\n{PROGRAM}: the run failed; the lines above say where", file=sys.stderr)
        return EXIT_FAILED
    view.conclude(result)
    if as_json:
        print(json.dumps(dataclasses.asdict(result)))
    return result.exit_code


def parse_train(arguments: list[str]) -> tuple[RunConfig, bool]:
    """The configuration that the arguments of `train` give, and whether `--json` is among them."""
    parsed = _parse_run(Train, arguments, "train")
    return parsed.config, parsed.json


def _parse_run(cls: type[T], arguments: list[str], verb: str) -> T:
    """Arguments that begin with RUN, whose values are the defaults of `cls`'s `config`."""
    asks_help = any(argument in ("-h", "--help") for argument in arguments)
    first = arguments[0] if arguments else ""
    if first.startswith("-") or not first:
        require(asks_help, "run", first, f"give a preset or a TOML file first: {PROGRAM} {verb} RUN [flags]")
        default = RunConfig()
    else:
        default = load_run(first)
    flags = arguments if first.startswith("-") else arguments[1:]
    return _parse(cls, flags, cls(config=default), f"{verb} RUN")  # type: ignore[call-arg]


def evaluate_verb(arguments: list[str]) -> int:
    """`apex-acer evaluate WEIGHTS [flags]`."""
    given = _parse(Evaluate, arguments, None, "evaluate")
    require(given.policy in (None, "greedy", "sampled"), "policy", given.policy, "give greedy or sampled")
    from apex_acer.evaluator import evaluate_policy
    from apex_acer.policy import load_policy

    policy = load_policy(given.weights)
    settings = policy.config.evaluation
    if given.episodes is not None:
        require(given.episodes >= 1, "episodes", given.episodes, "give 1 or more")
        settings = dataclasses.replace(settings, episodes=given.episodes)
    if given.policy is not None:
        settings = dataclasses.replace(settings, greedy=given.policy == "greedy")
    seed = policy.config.seed if given.seed is None else given.seed
    row = evaluate_policy(policy, settings, seed)
    scores = {name: row[f"eval_return{suffix}"] for name, suffix in SCORES.items()}
    how = "greedy" if settings.greedy else "sampled"
    if given.json:
        facts = {"environment": policy.config.environment.id, "policy": how}
        print(json.dumps({"episodes": settings.episodes, **scores, "length": row["eval_length"], **facts}))
    else:
        figures = ", ".join(f"{name} {score:.2f}" for name, score in scores.items())
        print(f"{policy.config.environment.id}: {settings.episodes} {how} episodes: {figures}")
    return 0


def sweep_verb(arguments: list[str]) -> int:
    """`apex-acer sweep RUN [flags]`."""
    given = _parse_run(Sweep, arguments, "sweep")
    try:
        from apex_acer.sweep import make_plan, sweep
    except ModuleNotFoundError as error:
        how = "pip install 'apex-acer[sweep]', or in a checkout pip install -e '.[sweep]'"
        raise ConfigError(f"sweep: {error.name} is not installed; {how}") from None
    plan = make_plan(
        given.config,
        arguments,
        seeds=given.seeds,
        vary=given.vary,
        at_once=given.jobs,
        final_episodes=given.final_episodes,
    )
    return sweep(plan)


def presets_verb(arguments: list[str]) -> int:
    """`apex-acer presets`."""
    require(not arguments, "presets", arguments, "it takes no arguments")
    for name, description in presets().items():
        print(f"{name:<22} {description}")
    return 0


SCORES = {"mean": "", "std": "_std", "min": "_min", "max": "_max"}
VERBS: dict[str, Callable[[list[str]], int]] = {
    "train": train_verb,
    "resume": resume_verb,
    "evaluate": evaluate_verb,
    "sweep": sweep_verb,
    "presets": presets_verb,
}


def _parse(cls: type[T], arguments: list[str], default: Any, verb: str) -> T:
    keywords = {} if default is None else {"default": default}
    parsed: T = tyro.cli(cls, args=arguments, prog=f"{PROGRAM} {verb}", description=cls.__doc__, **keywords)
    return parsed


def _usage() -> str:
    lines = [f"usage: {PROGRAM} VERB ...  ({PROGRAM} VERB --help says more)", ""]
    purposes = {"train": Train.__doc__, "resume": Resume.__doc__}
    purposes |= {"evaluate": Evaluate.__doc__, "sweep": Sweep.__doc__}
    for name, verb in VERBS.items():
        call = (verb.__doc__ or "").split("`")[1]
        purpose = purposes.get(name) or "Lists the presets."
        lines.append(f"  {call:<36} {purpose.partition('. ')[0].rstrip('.')}")
    return "\n".join([*lines, "", f"presets: {', '.join(presets())}"])


if __name__ == "__main__":
    sys.exit(main())
