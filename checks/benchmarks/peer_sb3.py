"""Stable-Baselines3 on a task with the settings that its RL Zoo publishes for it; a script of `make bench-peers`.

The settings are those of the files hyperparams/{ppo,sac,td3,ddpg}.yml in https://github.com/DLR-RM/rl-baselines3-zoo (commit
22e3ff2 of April 2026); what a file leaves out is Stable-Baselines3's default, as in the Zoo. Its `noise_type: normal` with
`noise_std: 0.1` is NormalActionNoise, and its `lin_7.3e-4` falls from there to 0 over `n_timesteps`. The Zoo has no game of
several agents: simple_spread has the settings of our preset, and SuperSuit makes its agents columns.
"""

from __future__ import annotations

import argparse
import importlib
import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from stable_baselines3 import DDPG, PPO, SAC, TD3
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.vec_env import VecEnv, VecNormalize, sync_envs_normalization

EPISODES, EVALUATION_SEED = 100, 1_000_000


class Zoo(NamedTuple):
    """What the Zoo's file says of an algorithm on an environment."""

    n_timesteps: int
    settings: dict[str, Any]
    falling: tuple[str, ...] = ()  # settings that fall linearly to 0 over `n_timesteps`
    noise_std: float = 0.0
    n_envs: int = 1
    normalize: bool = False  # observations and rewards, by running statistics


def deterministic(n_timesteps: int) -> Zoo:
    """What td3.yml and ddpg.yml say of both tasks."""
    networks = {"policy_kwargs": {"net_arch": [400, 300]}, "learning_rate": 1e-3}
    replay = {"buffer_size": 200_000, "learning_starts": 10_000, "train_freq": 1, "gradient_steps": 1}
    return Zoo(n_timesteps, {"gamma": 0.98, **networks, **replay}, noise_std=0.1)


LUNAR_SAC = {
    "policy_kwargs": {"net_arch": [400, 300]},
    "learning_rate": 7.3e-4,
    "batch_size": 256,
    "buffer_size": 1_000_000,
    "learning_starts": 10_000,
    "train_freq": 1,
    "gradient_steps": 1,
    "ent_coef": "auto",
    "gamma": 0.99,
    "tau": 0.01,
}
SPREAD_PPO = {
    "n_steps": 50,  # of 24 agents, the 1,200 steps of our batch
    "batch_size": 300,
    "n_epochs": 10,
    "ent_coef": 0.01,
    "learning_rate": 1e-3,
}
CARTPOLE_PPO = {
    "n_steps": 32,
    "batch_size": 256,
    "n_epochs": 20,
    "gamma": 0.98,
    "gae_lambda": 0.8,
    "ent_coef": 0.0,
    "learning_rate": 1e-3,
    "clip_range": 0.2,
}
ALGORITHMS: dict[str, type[BaseAlgorithm]] = {"ppo": PPO, "sac": SAC, "td3": TD3, "ddpg": DDPG}
SETTINGS = {
    ("ppo", "CartPole-v1"): Zoo(100_000, CARTPOLE_PPO, falling=("learning_rate", "clip_range"), n_envs=8),
    ("ppo", "mpe2.simple_spread_v3:parallel_env"): Zoo(
        1_000_000, SPREAD_PPO, falling=("learning_rate",), n_envs=8, normalize=True
    ),
    ("sac", "Pendulum-v1"): Zoo(20_000, {"learning_rate": 1e-3}),
    ("td3", "Pendulum-v1"): deterministic(20_000),
    ("ddpg", "Pendulum-v1"): deterministic(20_000),
    ("sac", "LunarLanderContinuous-v3"): Zoo(500_000, LUNAR_SAC, falling=("learning_rate",)),
    ("td3", "LunarLanderContinuous-v3"): deterministic(300_000),
    ("ddpg", "LunarLanderContinuous-v3"): deterministic(300_000),
}


class Evaluation(BaseCallback):
    """Plays the same 100 greedy episodes every so often, stops at the target or the limit and knows the time it took."""

    def __init__(self, environments: VecEnv, every: int, target: float, limit_s: float) -> None:
        super().__init__()
        self.environments, self.every, self.target, self.limit_s = environments, every, target, limit_s
        self.count = 0
        self.paused_s = 0.0
        self.eval_return = float("-inf")

    @property
    def reached(self) -> bool:
        return self.eval_return >= self.target

    @property
    def wall_s(self) -> float:
        """Since the first step."""
        return time.perf_counter() - self.start

    def _on_training_start(self) -> None:
        self.start = time.perf_counter()

    def _on_step(self) -> bool:
        if self.num_timesteps // self.every == self.count:
            return True
        self.count = self.num_timesteps // self.every
        self._evaluate()
        return not self.reached and self.wall_s < self.limit_s

    def _evaluate(self) -> None:
        start = time.perf_counter()
        self.environments.seed(EVALUATION_SEED)
        sync_envs_normalization(self.training_env, self.environments)
        self.eval_return = float(evaluate_policy(self.model, self.environments, EPISODES, deterministic=True)[0])
        self.paused_s += time.perf_counter() - start


def falling(initial: float, n_timesteps: int, env_steps: int) -> Callable[[float], float]:
    """From `initial` to 0 over the Zoo's steps, and again for a run that needs more than those."""
    return lambda remaining: initial * (1.0 - (1.0 - remaining) * env_steps / n_timesteps % 1.0)


def make_environments(name: str, num: int, seed: int | None = None) -> VecEnv:
    """`num` environments; of a game of several agents, a `module:function`, each agent is a column."""
    if ":" not in name:
        return make_vec_env(name, n_envs=num, seed=seed)
    import supersuit

    module, function = name.split(":")
    columns = supersuit.pettingzoo_env_to_vec_env_v1(getattr(importlib.import_module(module), function)())
    environments = supersuit.concat_vec_envs_v1(columns, num, base_class="stable_baselines3")
    environments.venv.seed = lambda seed: environments.venv.reset(seed=seed)  # which Stable-Baselines3 expects
    return environments


def make_agent(algorithm: str, environment: str, env_steps: int, seed: int) -> BaseAlgorithm:
    """The agent and its environments, for a run of at most `env_steps`."""
    zoo = SETTINGS[algorithm, environment]
    environments = make_environments(environment, zoo.n_envs, seed)
    if zoo.normalize:
        environments = VecNormalize(environments)
    settings = dict(zoo.settings)
    for name in zoo.falling:
        settings[name] = falling(settings[name], zoo.n_timesteps, env_steps)
    if zoo.noise_std:
        num = environments.action_space.shape[0]
        settings["action_noise"] = NormalActionNoise(np.zeros(num), np.full(num, zoo.noise_std))
    return ALGORITHMS[algorithm]("MlpPolicy", environments, seed=seed, device="cpu", **settings)


def main() -> None:
    """Trains once and prints the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--algorithm", choices=ALGORITHMS, required=True)
    parser.add_argument("--environment", required=True)
    parser.add_argument("--target", type=float, required=True)
    parser.add_argument("--every", type=int, required=True, help="steps between evaluations")
    parser.add_argument("--env-steps", type=int, required=True, help="at most")
    parser.add_argument(
        "--limit", type=float, default=float("inf"), help="seconds; the evaluation after them is the last"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=0, help="torch's; 0: its default, one per core")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    agent = make_agent(arguments.algorithm, arguments.environment, arguments.env_steps, arguments.seed)
    environments = make_environments(arguments.environment, EPISODES)
    if SETTINGS[arguments.algorithm, arguments.environment].normalize:
        environments = VecNormalize(environments, training=False, norm_reward=False)
    evaluation = Evaluation(environments, arguments.every, arguments.target, arguments.limit)
    agent.learn(arguments.env_steps, callback=evaluation)
    wall_s = evaluation.wall_s
    record = {
        "peer": f"sb3_{arguments.algorithm}",
        "seed": arguments.seed,
        "env_steps": agent.num_timesteps,
        "train_s": round(wall_s - evaluation.paused_s, 3),
        "wall_s": round(wall_s, 3),
        "eval_return": round(evaluation.eval_return, 2),
        "reached": evaluation.reached,
    }
    print(json.dumps(record))


if __name__ == "__main__":
    main()
