"""PFRL's ACER on CartPole-v1 with the settings of its authors' gym example; a script of `make bench-peers`.

The example is ChainerRL's, `examples/gym/train_acer_gym.py`: PFRL, its port to PyTorch, brings none for ACER but Atari's.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import tempfile
import time
import warnings
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before numpy and torch, as PFRL's examples do: each process has one core

import gymnasium
import numpy as np
import pfrl
import torch
from pfrl.agents.acer import ACER, ACERDiscreteActionHead
from pfrl.experiments import train_agent_async
from pfrl.utils.async_ import AbnormalExitWarning
from torch import multiprocessing, nn

ENVIRONMENT = "CartPole-v1"
EPISODES, EVALUATION_SEED = 100, 1_000_000
REWARD_SCALE = 0.01


class OldGym:
    """A gymnasium environment with the calls of the gym that PFRL knows, and the example's scaled reward."""

    def __init__(self, seed: int) -> None:
        self._environment = gymnasium.make(ENVIRONMENT)
        self._environment.reset(seed=seed)

    def reset(self) -> np.ndarray:
        return np.asarray(self._environment.reset()[0])

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, dict[str, bool]]:
        obs, reward, terminated, truncated, _ = self._environment.step(int(action))
        return obs, float(reward) * REWARD_SCALE, terminated, {"needs_reset": truncated}

    def close(self) -> None:
        self._environment.close()


class Evaluation:
    """A hook of every step: the process that counts `every` more plays 100 greedy episodes while the others wait."""

    def __init__(self, every: int, target: float, env_steps: int, limit_s: float) -> None:
        self.environments = gymnasium.make_vec(ENVIRONMENT, EPISODES, vectorization_mode="sync")
        self.every, self.target, self.most, self.limit_s = every, target, env_steps, limit_s
        self.stop, self._go = multiprocessing.Event(), multiprocessing.Event()
        self._go.set()
        self.env_steps = multiprocessing.Value("l", 0)
        self.start, self.end, self.paused_s, self.eval_return = (multiprocessing.Value("d", 0.0) for _ in range(4))

    def __call__(self, env: OldGym, agent: ACER, step: int) -> None:
        if step == 1:
            self.start.value = time.perf_counter()
        if step % self.every == 0 and not self.stop.is_set():
            self._go.clear()
            self._evaluate(copy.deepcopy(agent.shared_model), step)
            self._go.set()
        self._go.wait()

    def _evaluate(self, model: nn.Module, step: int) -> None:
        start = time.perf_counter()
        self.eval_return.value = greedy_return(model, self.environments)
        self.env_steps.value, self.end.value = step, time.perf_counter()
        self.paused_s.value += self.end.value - start
        if self.reached or step >= self.most or self.wall_s > self.limit_s:
            self.stop.set()

    @property
    def reached(self) -> bool:
        return bool(self.eval_return.value >= self.target)

    @property
    def wall_s(self) -> float:
        """First step to the end of the last evaluation."""
        return float(self.end.value - self.start.value)


def greedy_return(model: Any, environments: gymnasium.vector.VectorEnv) -> float:
    """Mean return of the first episode of each environment: its length, as every step is worth 1."""
    obs, _ = environments.reset(seed=EVALUATION_SEED)
    lengths, running = np.zeros(EPISODES), np.ones(EPISODES, dtype=bool)
    while running.any():
        with torch.no_grad():
            actions = model.pi(torch.as_tensor(obs)).probs.argmax(1).numpy()
        obs, _, terminated, truncated, _ = environments.step(actions)
        lengths += running
        running &= ~(terminated | truncated)
    return float(lengths.mean())


def make_network(head: nn.Module) -> nn.Sequential:
    """The example's network: 100 ReLU units, and outputs near 0 at first."""
    network = nn.Sequential(nn.Linear(4, 100), nn.ReLU(), nn.Linear(100, 2), head)
    network.apply(pfrl.initializers.init_chainer_default)
    pfrl.initializers.init_lecun_normal(network[2].weight, scale=1e-3)
    return network


def make_agent() -> ACER:
    """The example's agent."""
    pi = make_network(pfrl.policies.SoftmaxCategoricalHead())
    model = ACERDiscreteActionHead(pi, make_network(pfrl.q_functions.DiscreteActionValueHead()))
    return ACER(
        model,
        pfrl.optimizers.SharedRMSpropEpsInsideSqrt(model.parameters(), lr=7e-4, eps=1e-2, alpha=0.99),
        t_max=50,
        gamma=0.99,
        replay_buffer=pfrl.replay_buffers.EpisodicReplayBuffer(5_000),
        beta=1e-2,
        n_times_replay=4,
        replay_start_size=1_000,
        trust_region_delta=0.1,
        truncation_threshold=5,
        max_grad_norm=40,
    )


def train(evaluation: Evaluation, seed: int, processes: int) -> None:
    """One run; a process that dies is an error here, not PFRL's warning."""
    pfrl.utils.set_random_seed(seed)
    seeds = [seed * processes + index for index in range(processes)]
    warnings.simplefilter("error", AbnormalExitWarning)
    with tempfile.TemporaryDirectory() as folder:
        train_agent_async(
            folder,
            processes,
            lambda index, test: OldGym(seeds[index]),
            steps=evaluation.most,
            eval_interval=None,
            agent=make_agent(),
            global_step_hooks=[evaluation],
            random_seeds=seeds,
            stop_event=evaluation.stop,
        )


def main() -> None:
    """Trains once and prints the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--target", type=float, required=True)
    parser.add_argument("--every", type=int, required=True, help="steps between evaluations")
    parser.add_argument("--env-steps", type=int, required=True, help="at most")
    parser.add_argument(
        "--limit", type=float, default=float("inf"), help="seconds; the evaluation after them is the last"
    )
    arguments = parser.parse_args()
    multiprocessing.set_start_method("fork")  # PFRL's processes run closures
    torch.set_num_threads(1)
    evaluation = Evaluation(arguments.every, arguments.target, arguments.env_steps, arguments.limit)
    train(evaluation, arguments.seed, arguments.processes)
    record = {
        "peer": "pfrl_acer",
        "seed": arguments.seed,
        "env_steps": evaluation.env_steps.value,
        "train_s": round(evaluation.wall_s - evaluation.paused_s.value, 3),
        "wall_s": round(evaluation.wall_s, 3),
        "eval_return": round(evaluation.eval_return.value, 2),
        "reached": evaluation.reached,
    }
    print(json.dumps(record))


if __name__ == "__main__":
    main()
