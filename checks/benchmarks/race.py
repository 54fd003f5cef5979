"""Scores after minutes of training on this machine, of apex_acer and other trainers: `make race TASK=pong`.

A score is a mean over fresh games, sampled or greedy as each trainer's own evaluations are, with the weights after so many
minutes since the first env step. Start-up, evaluations and, of ours, checkpoints at the end of a part are not counted. Runs
that the file of results has are not made again, so an interrupted race goes on.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import torch
import tyro

from apex_acer.networks.speed import multiplies_bfloat16
from apex_acer.system.files import write
from checks.benchmarks.bench import RESULTS
from checks.benchmarks.peer_programs import OURS, PEERS, Failed, Record, last_json, script, versions

CPU = torch.device("cpu")
PROGRAM = str(Path(sys.executable).with_name("apex-acer"))
EVALUATION_S = 1_800.0  # at most


class Race(NamedTuple):
    """Who learns what."""

    environment: str
    ours: dict[str, tuple[str, ...]]  # preset and flags, by name
    peers: tuple[str, ...]  # the Zoo's names of algorithms

    @property
    def names(self) -> list[str]:
        """All who run, in turns."""
        return [*self.ours, *(f"sb3_{algorithm}" for algorithm in self.peers)]


def atari(game: str, acer: str) -> Race:
    """A game on which schedules end at 10M env steps, as in the Zoo; `acer` is the preset that its user would take."""
    flags = f"--environment.id ALE/{game}-v5 --steps 10000000".split()
    presets = {"acer": acer, "apex_dqn": "pong-apex-dqn", "pqn": "pong-pqn", "ppo": "pong-ppo"}
    ours: dict[str, tuple[str, ...]] = {f"{OURS}_{name}": (preset, *flags) for name, preset in presets.items()}
    return Race(f"ALE/{game}-v5", ours, ("ppo", "a2c", "dqn"))


def mujoco(environment: str, preset: str, ours: tuple[str, ...], peers: tuple[str, ...]) -> Race:
    """A task with a preset for each of our algorithms."""
    presets: dict[str, tuple[str, ...]] = {f"{OURS}_{name}": (f"{preset}-{name}",) for name in ours}
    return Race(environment, presets, peers)


RACES = {
    "pong": atari("Pong", "pong"),
    "breakout": atari("Breakout", "breakout"),
    "spaceinvaders": atari("SpaceInvaders", "atari"),
    "halfcheetah": mujoco(
        "HalfCheetah-v5", "halfcheetah", ("sac", "crossq", "td3", "ppo"), ("sac", "tqc", "crossq", "td3", "ppo")
    ),
    "hopper": mujoco("Hopper-v5", "hopper", ("sac", "crossq", "trpo"), ("sac", "tqc", "crossq", "td3", "trpo", "ppo")),
}


def run(race: Race, name: str, seed: int, minutes: Sequence[float], episodes: int) -> Record:
    """The record of a run of one trainer. Raises `Failed`."""
    if name in race.ours:
        return {"peer": name, "seed": seed, "scores": run_ours(race.ours[name], seed, minutes, episodes)}
    flags = ["--algorithm", name.removeprefix("sb3_"), "--environment", race.environment, "--seed", str(seed)]
    flags += ["--episodes", str(episodes), "--minutes", *map(str, minutes)]
    return last_json(script("peer_sb3.py", *flags), 60.0 * minutes[-1] + EVALUATION_S * len(minutes))


def run_ours(preset: Sequence[str], seed: int, minutes: Sequence[float], episodes: int) -> list[Record]:
    """The scores of this project's trainer, which stops at each of the minutes and goes on from there."""
    scores: list[Record] = []
    with tempfile.TemporaryDirectory() as folder:
        command = ["train", *preset, "--seed", str(seed), "--out", f"{folder}/run"]
        command += ["--evaluation.every", "0", "--checkpoint.replay"]
        for after in minutes:
            end = last_json([PROGRAM, *command, "--minutes", str(after), "--json"], 60.0 * after + EVALUATION_S)
            command = ["evaluate", f"{folder}/run/weights.safetensors", "--episodes", str(episodes), "--seed", "1"]
            games = last_json([PROGRAM, *command, "--json"], EVALUATION_S)
            scores.append({"minutes": after, "env_steps": end["env_steps"], "mean": games["mean"], "std": games["std"]})
            if end["reason"] != "minutes":  # it had all its steps; what it scored then stands
                break
            command = ["resume", f"{folder}/run"]
    return scores + [scores[-1] | {"minutes": after} for after in minutes[len(scores) :]]


def show(runs: Sequence[Record], minutes: Sequence[float]) -> None:
    """Prints the median score of each trainer after each of the minutes, and its env steps at the end."""
    print(f"\n{'median':<24}{'runs':>5}", *(f"{f'{after:g} min':>10}" for after in minutes), f"{'env steps':>12}")
    for name in dict.fromkeys(found["peer"] for found in runs):
        own = [found["scores"] for found in runs if found["peer"] == name]
        means = [statistics.median(score["mean"] for score in scores) for scores in zip(*own, strict=True)]
        steps = statistics.median(scores[-1]["env_steps"] for scores in own)
        print(f"{name:<24}{len(own):>5}", *(f"{mean:>10,.1f}" for mean in means), f"{steps:>12,.0f}")


def main(
    task: Literal["pong", "breakout", "spaceinvaders", "halfcheetah", "hopper"] = "pong",
    minutes: tuple[float, ...] = (10.0, 30.0, 60.0),
    seeds: int = 1,
    peers: tuple[str, ...] = (),
    episodes: int = 30,
    out: Path | None = None,
) -> int:
    """Runs trainers in turns, each for as long as the last of the minutes.

    Args:
        task: what is learned.
        minutes: of training; there is a score after each.
        seeds: runs of each trainer, with seeds from 0.
        peers: who runs, ours included; all if none is named.
        episodes: fresh games of a score.
        out: the file of results; by default in docs/results.
    """
    race, path = RACES[task], out or RESULTS / f"race-{task}.json"
    if unknown := set(peers) - set(race.names):
        sys.exit(f"--peers: {', '.join(sorted(unknown))} is not allowed; give some of {', '.join(race.names)}")
    minutes = tuple(sorted(minutes))
    facts = {"environment": race.environment, "minutes": list(minutes), "episodes": episodes}
    facts |= {"cores": os.cpu_count(), "has_bfloat16": multiplies_bfloat16(CPU)}
    runs = earlier_runs(path, facts)
    path.parent.mkdir(parents=True, exist_ok=True)
    PEERS.make()
    facts["versions"] = versions()
    complete = True
    for seed, name in itertools.product(range(seeds), peers or race.names):
        if (name, seed) in {(found["peer"], found["seed"]) for found in runs}:
            continue
        try:
            runs.append(run(race, name, seed, minutes, episodes))
        except Failed as failure:
            complete = False
            print(f"{name}, seed {seed}: {failure}", flush=True)
            continue
        print(json.dumps(runs[-1]), flush=True)
        write(path, (json.dumps({**facts, "runs": runs}, indent=2) + "\n").encode())
    show(runs, minutes)
    return 0 if complete else 1


def earlier_runs(path: Path, facts: Record) -> list[Record]:
    """The runs in a file of results; exits with a message if they answer another question or are another machine's."""
    if not path.exists():
        return []
    found: Record = json.loads(path.read_text(encoding="utf-8"))
    if different := [name for name, value in facts.items() if found[name] != value]:
        name = different[0]
        sys.exit(f"--out: {path} has runs with {name} {found[name]}, not {facts[name]}; give another file")
    runs: list[Record] = found["runs"]
    return runs


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
