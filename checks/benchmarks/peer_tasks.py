"""The tasks of the races against other trainers: what is learned, to what score, by which preset and by whom else."""

from __future__ import annotations

from typing import Any, NamedTuple

from checks.benchmarks.peer_programs import OURS


class Peer(NamedTuple):
    """Another trainer's script, and the one of ours that it is held against.

    The script also gets --target, --every, --limit and --seed, and prints a record.
    """

    script: str
    flags: tuple[str, ...]
    beside: str


class Task(NamedTuple):
    """One race: to a mean of `target` over 100 greedy episodes, looked at every `every` environment steps."""

    environment: str
    target: float
    every: int
    limit_s: float  # of each run: what has not reached the target by then counts with what it took
    ours: dict[str, tuple[str, ...]]  # by its name in the results: our preset, and flags
    peers: dict[str, Peer]


def off_policy(environment: str, preset: str, *algorithms: str, **limits: Any) -> Task:
    """Our presets `preset`-`algorithm`, each against Stable-Baselines3's algorithm of the same name."""
    ours: dict[str, tuple[str, ...]] = {f"{OURS}_{name}": (f"{preset}-{name}",) for name in algorithms}
    flags = {name: ("--algorithm", name, "--environment", environment) for name in algorithms}
    peers = {f"sb3_{name}": Peer("peer_sb3.py", flags[name], f"{OURS}_{name}") for name in algorithms}
    return Task(environment, ours=ours, peers=peers, **limits)


CARTPOLE_PPO = ("--algorithm", "ppo", "--environment", "CartPole-v1", "--threads", "1")
SPREAD = "mpe2.simple_spread_v3:parallel_env"
TASKS = {
    "cartpole": Task(
        "CartPole-v1",
        target=475.0,
        every=1_000,
        limit_s=240.0,
        ours={OURS: ("cartpole", "--engine", "local", "--actors", "2")},
        peers={
            "sb3_ppo": Peer("peer_sb3.py", CARTPOLE_PPO, OURS),
            "pfrl_acer": Peer("peer_acer.py", ("--processes", "2", "--env-steps", "200000"), OURS),
        },
    ),
    "cartpole-ppo": Task(
        "CartPole-v1",
        target=475.0,
        every=1_000,
        limit_s=240.0,
        ours={f"{OURS}_ppo": ("cartpole-ppo",)},
        peers={"sb3_ppo": Peer("peer_sb3.py", CARTPOLE_PPO, f"{OURS}_ppo")},
    ),
    "simple-spread": Task(
        SPREAD,
        target=-20.0,
        every=100_000,
        limit_s=900.0,
        ours={f"{OURS}_ppo": ("simple-spread-ppo", "--steps", "1000000")},
        peers={"sb3_ppo": Peer("peer_sb3.py", ("--algorithm", "ppo", "--environment", SPREAD), f"{OURS}_ppo")},
    ),
    "pendulum": off_policy(
        "Pendulum-v1",
        "pendulum",
        *("sac", "td3", "ddpg"),
        target=-160.0,
        every=1_000,
        limit_s=1_200.0,
    ),
    "lunarlander-continuous": off_policy(
        "LunarLanderContinuous-v3",
        "lunarlander-continuous",
        *("sac", "td3"),
        target=250.0,
        every=10_000,
        limit_s=7_200.0,
    ),
}
