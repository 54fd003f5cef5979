"""Environment steps per second of other trainers on Pong with the networks of our presets; a script of `make bench-peers`.

PFRL's ACER: its Atari example's settings, t_max 20 and 4 replays per update. Stable-Baselines3's PPO: its RL Zoo's.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before numpy and torch, as PFRL's examples do: each process has one core

import ale_py
import gymnasium
import numpy as np
import torch
from torch import multiprocessing, nn

ENVIRONMENT = "ALE/Pong-v5"
WIDTHS = {"a3c": 256, "nature": 512}
REPLAY_START = 500  # of each process: less than its first game has
WARM_UP_STEPS = 3000  # in all processes; by then replay is used

gymnasium.register_envs(ale_py)


def torso(network: str) -> nn.Sequential:
    """Two convolutions and 256 units (Mnih et al. 2016, and PFRL's own example), or three and 512 (Mnih et al. 2015)."""
    layers = [nn.Conv2d(4, 16, 8, 4), nn.ReLU(), nn.Conv2d(16, 32, 4, 2), nn.ReLU()]
    if network == "nature":
        layers = [
            nn.Conv2d(4, 32, 8, 4),
            nn.ReLU(),
            nn.Conv2d(32, 64, 4, 2),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3),
            nn.ReLU(),
        ]
    return nn.Sequential(
        *layers, nn.Flatten(), nn.Linear({"a3c": 2592, "nature": 3136}[network], WIDTHS[network]), nn.ReLU()
    )


def make_pong(seed: int) -> gymnasium.Env:
    """Pong with frame skip 4, 84 x 84 grey planes, four of them stacked."""
    environment = gymnasium.make(ENVIRONMENT, frameskip=1, repeat_action_probability=0.0)
    environment = gymnasium.wrappers.AtariPreprocessing(environment, noop_max=30, frame_skip=4)
    environment = gymnasium.wrappers.FrameStackObservation(environment, 4)
    environment.reset(seed=seed)
    return environment


class OldGym:
    """The calls of the gym that PFRL knows; rewards clipped."""

    def __init__(self, seed: int) -> None:
        self._environment = make_pong(seed)

    def reset(self) -> np.ndarray:
        return np.asarray(self._environment.reset()[0])

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, dict[str, bool]]:
        obs, reward, terminated, truncated, _ = self._environment.step(int(action))
        return np.asarray(obs), float(np.sign(float(reward))), terminated, {"needs_reset": truncated}

    def close(self) -> None:
        self._environment.close()


def pfrl_acer(network: str, seconds: float, processes: int) -> tuple[int, float]:
    """Steps of all processes after the warm-up, and the seconds they took."""
    import pfrl
    from pfrl.agents.acer import ACER, ACERDiscreteActionHead
    from pfrl.experiments import train_agent_async

    multiprocessing.set_start_method("fork")  # PFRL's processes run closures
    torch.set_num_threads(1)
    pi = nn.Sequential(nn.Linear(WIDTHS[network], 6), pfrl.policies.SoftmaxCategoricalHead())
    q = nn.Sequential(nn.Linear(WIDTHS[network], 6), pfrl.q_functions.DiscreteActionValueHead())
    model = nn.Sequential(torso(network), ACERDiscreteActionHead(pi, q))
    agent = ACER(
        model,
        pfrl.optimizers.SharedRMSpropEpsInsideSqrt(model.parameters(), lr=7e-4, eps=4e-3, alpha=0.99),
        t_max=20,
        gamma=0.99,
        replay_buffer=pfrl.replay_buffers.EpisodicReplayBuffer(100_000),
        n_times_replay=4,
        replay_start_size=REPLAY_START,
        beta=1e-2,
        max_grad_norm=40,
        phi=lambda obs: np.asarray(obs, dtype=np.float32) / 255,
    )
    stop, last = multiprocessing.Event(), multiprocessing.Value("l", 0)
    began, ended = multiprocessing.Value("d", 0.0), multiprocessing.Value("d", 0.0)

    def count(env: OldGym, agent: ACER, step: int) -> None:
        if step == WARM_UP_STEPS:
            began.value = time.monotonic()
        if began.value and not stop.is_set():
            last.value, ended.value = max(step, last.value), time.monotonic()
            if ended.value - began.value > seconds:
                stop.set()

    with tempfile.TemporaryDirectory() as folder:
        train_agent_async(
            folder,
            processes,
            lambda index, test: OldGym(index),
            steps=10**9,
            eval_interval=None,
            agent=agent,
            global_step_hooks=[count],
            random_seeds=list(range(processes)),
            stop_event=stop,
        )
    return last.value - WARM_UP_STEPS, ended.value - began.value


def sb3_ppo(network: str, seconds: float, processes: int) -> tuple[int, float]:
    """Steps of whole iterations after the first, and the seconds they took; environments in `processes` processes."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
    from stable_baselines3.common.vec_env import SubprocVecEnv

    torch.set_num_threads(processes)

    class Features(BaseFeaturesExtractor):
        def __init__(self, space: gymnasium.Space[Any]) -> None:
            super().__init__(space, WIDTHS[network])
            self.torso = torso(network)

        def forward(self, obs: torch.Tensor) -> torch.Tensor:
            features: torch.Tensor = self.torso(obs)
            return features

    class Clock(BaseCallback):
        def __init__(self) -> None:
            super().__init__()
            self.marks: list[tuple[int, float]] = []

        def _on_rollout_start(self) -> None:
            self.marks.append((self.num_timesteps, time.monotonic()))

        def _on_step(self) -> bool:
            return len(self.marks) < 2 or self.marks[-1][1] - self.marks[1][1] < seconds

    environments = SubprocVecEnv([lambda index=index: make_pong(index) for index in range(8)])
    policy = {"features_extractor_class": Features, "net_arch": []}
    settings = {"n_steps": 128, "n_epochs": 4, "batch_size": 256, "learning_rate": 2.5e-4, "ent_coef": 0.01}
    clock = Clock()
    PPO("CnnPolicy", environments, policy_kwargs=policy, device="cpu", **settings).learn(10**9, callback=clock)
    environments.close()
    (first, start), (last, end) = clock.marks[1], clock.marks[-1]
    return last - first, end - start


def main() -> None:
    """Trains for a while and prints the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trainer", choices=["pfrl_acer", "sb3_ppo"])
    parser.add_argument("--network", choices=WIDTHS, default="a3c")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    train = {"pfrl_acer": pfrl_acer, "sb3_ppo": sb3_ppo}[arguments.trainer]
    steps, seconds = train(arguments.network, arguments.seconds, arguments.processes)
    print(json.dumps({"peer": arguments.trainer, "env_steps_per_s": round(steps / seconds, 1)}))


if __name__ == "__main__":
    main()
