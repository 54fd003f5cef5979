"""`apex-acer evaluate WEIGHTS [flags]`."""

from __future__ import annotations

import json
from dataclasses import dataclass

from apex_acer.cli.notice import Notice
from apex_acer.cli.parsing import Acting, Flag, ImportModules, Weights, evaluation_settings, parse, playing_seed
from apex_acer.config import reading
from apex_acer.networks.card import card_text, score_text
from apex_acer.system.output import printable, printable_lines

SCORES = {"mean": "", "std": "_std", "min": "_min", "max": "_max"}


@dataclass(frozen=True)
class Evaluate:
    """Plays whole games with a weights file and prints the returns, which are not clipped."""

    weights: Weights
    episodes: int | None = None
    """Episodes to play; by default as many as the run's evaluations."""
    seed: int | None = None
    """Seed of the environments and of sampling; by default the run's, with which the run's evaluator played."""
    policy: Acting = None
    card: Flag = False
    """Print the file's card, which has its configuration and its score, and play nothing."""
    import_modules: ImportModules = False
    json: Flag = False
    """Print one JSON object as the last line of standard output."""


def run(arguments: list[str]) -> int:
    """Plays and prints the returns, or prints the card."""
    given = parse(Evaluate, arguments, "evaluate")
    from apex_acer.actor.policy import load_card, load_policy

    if given.card:
        card = load_card(given.weights)
        with reading(given.weights):
            text = card_text(card)
        print(json.dumps(card) if given.json else printable_lines(text))
        return 0
    policy = load_policy(given.weights, given.import_modules)
    settings = evaluation_settings(policy.config, given.episodes, given.policy)
    import torch

    from apex_acer.actor.evaluator import evaluate_policy

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the batches are small; the emulators gain more from the cores
    seed = playing_seed(policy.config, given.seed)
    with Notice(quiet=given.json) as notice:
        notice.say(f"playing {settings.episodes} episodes")
        row = evaluate_policy(policy, settings, seed, threads)
    scores = {name: row[f"eval_return{suffix}"] for name, suffix in SCORES.items()}
    how = "greedy" if settings.greedy else "sampled"
    if given.json:
        played = {"episodes": settings.episodes, "seed": seed, **scores, "length": row["eval_length"]}
        weights = {"env_steps": policy.metadata["env_steps"], "stored": policy.metadata["score"]}
        print(json.dumps({**played, "environment": policy.config.environment.id, "policy": how, **weights}))
    else:
        figures = ", ".join(f"{name} {score:.2f}" for name, score in scores.items())
        print(f"{printable(policy.config.environment.id)}: {settings.episodes} {how} episodes: {figures}")
        with reading(given.weights):
            stored = score_text(policy.metadata["score"])
        print(f"its run's evaluation: {printable(stored)}")
    return 0
