"""`apex-acer evaluate WEIGHTS [flags]`."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Annotated

import tyro

from apex_acer.cli.parsing import Flag, parse
from apex_acer.config import require

SCORES = {"mean": "", "std": "_std", "min": "_min", "max": "_max"}


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


def run(arguments: list[str]) -> int:
    """Plays and prints."""
    given = parse(Evaluate, arguments, "evaluate")
    require(given.policy in (None, "greedy", "sampled"), "policy", given.policy, "give greedy or sampled")
    from apex_acer.evaluator import evaluate_policy
    from apex_acer.policy import load_policy

    policy = load_policy(given.weights, import_modules=True)  # as its environment's module will be
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
