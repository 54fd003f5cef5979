"""Games of MountainCar that a rule plays, as unrolls that a run can start from."""

from __future__ import annotations

import gymnasium
import numpy as np

from apex_acer import Unroll


def recorded_game(seed: int, k: int) -> list[Unroll]:
    """One game as unrolls of k steps; it pushes the car in the direction in which it rolls, or at random."""
    env, random = gymnasium.make("MountainCar-v0"), np.random.default_rng(seed)
    random_share, ended, unrolls = random.uniform(0, 0.5), False, []
    observation, _ = env.reset(seed=seed)
    while not ended:
        obs, episode_step = np.zeros((k + 1, 1, 2), np.float32), np.zeros((k + 1, 1), np.int32)
        action, reward = np.zeros((k, 1), np.int64), np.zeros((k, 1), np.float32)
        terminated, truncated, mask = np.zeros((3, k, 1), bool)  # steps after the end stay masked
        obs[0], episode_step[0] = observation, k * len(unrolls)
        for t in range(k):
            action[t] = random.integers(3) if random.random() < random_share else 2 * (observation[1] > 0)
            observation, reward[t], terminated[t], truncated[t], _ = env.step(int(action[t, 0]))
            obs[t + 1], episode_step[t + 1], mask[t] = observation, episode_step[t] + 1, True
            if ended := bool(terminated[t, 0] or truncated[t, 0]):
                break
        extras = {"priority": mask.astype(np.float32)}  # the same first priority for all steps
        unrolls.append(Unroll(obs, episode_step, action, reward, terminated, truncated, mask, extras, {}))
    return unrolls
