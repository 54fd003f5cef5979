"""Stable-Baselines3 and its contrib package as their RL Zoo trains them; a script of `make bench-peers` and `make race`.

Settings, wrappers, the number of steps and whether evaluations are greedy are what the Zoo's package has for the task; a
MuJoCo task of version 5 gets those of version 4, the newest there. The Zoo has no game of several agents: simple_spread has
the settings of our preset, and SuperSuit makes its agents columns.
"""

from __future__ import annotations

import argparse
import importlib
import json
import tempfile
import time
from typing import Any, NamedTuple

import ale_py
import gymnasium
import numpy as np
import supersuit
import torch
from rl_zoo3.exp_manager import ExperimentManager
from stable_baselines3 import PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize, sync_envs_normalization

EVALUATION_SEED = 1_000_000
ATARI = {"frameskip": 1, "repeat_action_probability": 0.0}  # the Zoo's wrapper skips frames
PARALLEL = "ppo", "a2c"  # step several environments at once
SPREAD_PPO = {
    "n_steps": 50,  # of 24 agents, the 1,200 steps of our batch
    "batch_size": 300,
    "n_epochs": 10,
    "ent_coef": 0.01,
    "learning_rate": lambda remaining: 1e-3 * remaining,
}

gymnasium.register_envs(ale_py)


class Trainer(NamedTuple):
    """An agent with its environments, what it is evaluated in, and for how long the Zoo trains it."""

    agent: BaseAlgorithm
    environments: VecEnv
    greedy: bool
    env_steps: int


class Evaluation(BaseCallback):
    """Plays the same games whenever one is due, and knows how long training took without that."""

    def __init__(self, trainer: Trainer, episodes: int) -> None:
        super().__init__()
        self.environments, self.greedy, self.episodes = trainer.environments, trainer.greedy, episodes
        self.paused_s = 0.0

    @property
    def wall_s(self) -> float:
        """Since the first step."""
        return time.perf_counter() - self.start

    @property
    def train_s(self) -> float:
        """Since the first step, without evaluations."""
        return self.wall_s - self.paused_s

    def is_due(self) -> bool:
        """Whether to evaluate after this step."""
        raise NotImplementedError

    def is_last(self, returns: np.ndarray) -> bool:
        """Whether training ends with an evaluation of these returns."""
        raise NotImplementedError

    def _on_training_start(self) -> None:
        self.start = time.perf_counter()

    def _on_step(self) -> bool:
        return not self.is_due() or self.evaluate()

    def evaluate(self) -> bool:
        """Plays the games; returns whether training goes on."""
        start = time.perf_counter()
        self.environments.seed(EVALUATION_SEED)
        sync_envs_normalization(self.training_env, self.environments)
        returns, _ = evaluate_policy(
            self.model, self.environments, self.episodes, deterministic=self.greedy, return_episode_rewards=True
        )
        self.paused_s += time.perf_counter() - start
        return not self.is_last(np.asarray(returns))


class ToTarget(Evaluation):
    """Every so many steps, until the target or the limit is reached."""

    def __init__(self, trainer: Trainer, episodes: int, every: int, target: float, limit_s: float) -> None:
        super().__init__(trainer, episodes)
        self.every, self.target, self.limit_s = every, target, limit_s
        self.count, self.eval_return = 0, float("-inf")

    def is_due(self) -> bool:
        before, self.count = self.count, self.num_timesteps // self.every
        return self.count > before

    def is_last(self, returns: np.ndarray) -> bool:
        self.eval_return = float(returns.mean())
        return self.eval_return >= self.target or self.wall_s >= self.limit_s

    def record(self) -> dict[str, Any]:
        """What the run took, and its last evaluation."""
        seconds = {"train_s": round(self.train_s, 3), "wall_s": round(self.wall_s, 3)}
        score = {"eval_return": round(self.eval_return, 2), "reached": self.eval_return >= self.target}
        return {"env_steps": self.num_timesteps, **seconds, **score}


class AfterMinutes(Evaluation):
    """After each of these minutes of training."""

    def __init__(self, trainer: Trainer, episodes: int, minutes: list[float]) -> None:
        super().__init__(trainer, episodes)
        self.minutes, self.scores = minutes, list[dict[str, float]]()

    def is_due(self) -> bool:
        return self.train_s >= 60.0 * self.minutes[len(self.scores)]

    def _on_training_end(self) -> None:
        while len(self.scores) < len(self.minutes):  # it had all its steps; what it scores now stands
            self.evaluate()

    def is_last(self, returns: np.ndarray) -> bool:
        score = {"minutes": self.minutes[len(self.scores)], "env_steps": self.num_timesteps}
        self.scores.append(score | {"mean": float(returns.mean()), "std": float(returns.std())})
        return len(self.scores) == len(self.minutes)

    def record(self) -> dict[str, Any]:
        """The score after each of the minutes."""
        return {"scores": self.scores}


def make_trainer(algorithm: str, environment: str, episodes: int, seed: int, folder: str) -> Trainer:
    """The Zoo's trainer; of a game of several agents, a `module:function`, ours."""
    if ":" in environment:
        training, evaluating = make_columns(environment, 8), make_columns(environment, episodes)
        agent = PPO("MlpPolicy", VecNormalize(training), seed=seed, device="cpu", **SPREAD_PPO)
        return Trainer(agent, VecNormalize(evaluating, training=False, norm_reward=False), True, 1_000_000)
    is_atari = environment.startswith("ALE/")
    name = environment if is_atari else environment.replace("-v5", "-v4")
    gymnasium.registry[name] = gymnasium.spec(environment)
    manager = ExperimentManager(
        argparse.Namespace(),
        algorithm,
        name,
        folder,
        eval_freq=-1,
        env_kwargs=ATARI if is_atari else {},
        seed=seed,
        verbose=0,
        vec_env_type="subproc" if is_atari and algorithm in PARALLEL else "dummy",
        device="cpu",
    )
    agent, _ = manager.setup_experiment()
    manager.vec_env_class = DummyVecEnv
    environments = manager.create_envs(episodes, eval_env=True)
    return Trainer(agent, environments, manager.deterministic_eval, manager.n_timesteps)


def make_columns(name: str, num: int) -> VecEnv:
    """`num` copies of a game of several agents, of which each is a column."""
    module, function = name.split(":")
    columns = supersuit.pettingzoo_env_to_vec_env_v1(getattr(importlib.import_module(module), function)())
    environments = supersuit.concat_vec_envs_v1(columns, num, base_class="stable_baselines3")
    environments.venv.seed = lambda seed: environments.venv.reset(seed=seed)  # which Stable-Baselines3 expects
    return environments


def main() -> None:
    """Trains once and prints the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--algorithm", required=True, help="by the Zoo's name")
    parser.add_argument("--environment", required=True)
    parser.add_argument("--episodes", type=int, default=100, help="of an evaluation")
    parser.add_argument("--minutes", type=float, nargs="+", help="of training, after each of which it is evaluated")
    parser.add_argument("--target", type=float, help="of an evaluation, in place of minutes")
    parser.add_argument("--every", type=int, help="steps between evaluations on the way to the target")
    parser.add_argument(
        "--limit", type=float, default=float("inf"), help="seconds; the evaluation after them is the last"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=0, help="torch's; 0: its default, one per core")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(arguments.algorithm, arguments.environment, arguments.episodes, arguments.seed, folder)
        evaluation: ToTarget | AfterMinutes
        if arguments.minutes:
            evaluation = AfterMinutes(trainer, arguments.episodes, arguments.minutes)
        else:
            evaluation = ToTarget(trainer, arguments.episodes, arguments.every, arguments.target, arguments.limit)
        trainer.agent.learn(trainer.env_steps, callback=evaluation)
        record = evaluation.record()
    print(json.dumps({"peer": f"sb3_{arguments.algorithm}", "seed": arguments.seed, **record}))


if __name__ == "__main__":
    main()
