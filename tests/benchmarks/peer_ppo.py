"""Stable-Baselines3's PPO on CartPole-v1 with the tuned settings of its RL Zoo; a script of `make bench-peers`."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnv

ENVIRONMENT = "CartPole-v1"
BUDGET, SCHEDULE = 200_000, 100_000  # the Zoo's n_timesteps is the schedule
EVERY, EPISODES, TARGET = 1_000, 100, 475.0
EVALUATION_SEED = 1_000_000


def falling(initial: float) -> Callable[[float], float]:
    """From `initial` to 0 over the Zoo's steps, and again for a run that needs more than those."""
    return lambda remaining: initial * (remaining * BUDGET / SCHEDULE % 1 or 1.0)


class Evaluation(BaseCallback):
    """Plays the same 100 greedy episodes every 1,000 steps, stops at the target and knows the time all this took."""

    def __init__(self, environments: VecEnv) -> None:
        super().__init__()
        self.environments = environments
        self.count = 0
        self.seconds = 0.0
        self.eval_return = 0.0

    def _on_training_start(self) -> None:
        self.start = time.perf_counter()

    def _on_step(self) -> bool:
        if self.num_timesteps // EVERY > self.count:
            self.count += 1
            self._evaluate()
        return self.eval_return < TARGET

    def _evaluate(self) -> None:
        start = time.perf_counter()
        self.environments.seed(EVALUATION_SEED)
        self.eval_return = float(evaluate_policy(self.model, self.environments, EPISODES, deterministic=True)[0])
        self.seconds += time.perf_counter() - start


def make_agent(seed: int) -> PPO:
    """The agent and its 8 environments."""
    return PPO(
        "MlpPolicy",
        make_vec_env(ENVIRONMENT, n_envs=8, seed=seed),
        n_steps=32,
        batch_size=256,
        n_epochs=20,
        gamma=0.98,
        gae_lambda=0.8,
        ent_coef=0.0,
        learning_rate=falling(0.001),
        clip_range=falling(0.2),
        seed=seed,
        device="cpu",
    )


def main() -> None:
    """Trains once and prints the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    agent = make_agent(arguments.seed)
    evaluation = Evaluation(make_vec_env(ENVIRONMENT, n_envs=EPISODES))
    agent.learn(BUDGET, callback=evaluation)
    wall_s = time.perf_counter() - evaluation.start
    record = {
        "peer": "sb3_ppo",
        "seed": arguments.seed,
        "env_steps": agent.num_timesteps,
        "train_s": round(wall_s - evaluation.seconds, 3),
        "wall_s": round(wall_s, 3),
        "eval_return": round(evaluation.eval_return, 2),
        "reached": evaluation.eval_return >= TARGET,
    }
    print(json.dumps(record))


if __name__ == "__main__":
    main()
