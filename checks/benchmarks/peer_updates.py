"""Updates per second of Stable-Baselines3's SAC, TD3 or DDPG, from a full buffer; a script of `make bench-peers`.

An update is one of `train(gradient_steps)`: drawing the batch, and a step of each optimizer that has its turn.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box
from stable_baselines3 import DDPG, SAC, TD3
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

ALGORITHMS: dict[str, type[OffPolicyAlgorithm]] = {"sac": SAC, "td3": TD3, "ddpg": DDPG}
CHUNK, WARM_UP = 10, 50


class Spaces(gymnasium.Env):
    """Only the spaces of an environment: vectors of `obs` numbers, and `actions` numbers in [-1, 1]."""

    def __init__(self, obs: int, actions: int) -> None:
        self.observation_space = Box(-np.inf, np.inf, (obs,), np.float32)
        self.action_space = Box(-1.0, 1.0, (actions,), np.float32)


def make_agent(
    algorithm: str, spaces: Spaces, hidden: list[int], batch_size: int, env_steps: int
) -> OffPolicyAlgorithm:
    """The agent, whose buffer is full of noise."""
    settings: dict[str, Any] = {"policy_kwargs": {"net_arch": hidden}, "batch_size": batch_size}
    agent = ALGORITHMS[algorithm]("MlpPolicy", spaces, buffer_size=env_steps, seed=0, device="cpu", **settings)
    agent.set_logger(Logger(None, []))
    rng = np.random.default_rng(0)
    shape, action_shape = spaces.observation_space.shape or (), spaces.action_space.shape or ()
    for _ in range(env_steps):
        obs, next_obs = (rng.normal(size=(1, *shape)).astype(np.float32) for _ in range(2))
        action = rng.uniform(-1, 1, (1, *action_shape)).astype(np.float32)
        agent.replay_buffer.add(obs, next_obs, action, rng.normal(size=1), np.zeros(1), [{}])
    return agent


def main() -> None:
    """Prints the rate as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("algorithm", choices=ALGORITHMS)
    parser.add_argument("--obs", type=int, default=17)
    parser.add_argument("--actions", type=int, default=6)
    parser.add_argument("--hidden", type=int, nargs="+", default=[256, 256])
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--env-steps", type=int, default=100_000, help="steps in the buffer")
    parser.add_argument("--threads", type=int, default=0, help="torch's; 0: its default, one per core")
    parser.add_argument("--seconds", type=float, default=10.0)
    given = parser.parse_args()
    torch.set_num_threads(given.threads or torch.get_num_threads())
    agent = make_agent(
        given.algorithm, Spaces(given.obs, given.actions), given.hidden, given.batch_size, given.env_steps
    )
    agent.train(WARM_UP, given.batch_size)
    made, start = 0, time.perf_counter()
    while time.perf_counter() - start < given.seconds:
        agent.train(CHUNK, given.batch_size)
        made += CHUNK
    print(json.dumps({"updates_per_s": round(made / (time.perf_counter() - start), 1)}))


if __name__ == "__main__":
    main()
