"""What it costs to observe an environment by its pictures: `python -m checks.benchmarks.pictures [ID…]`, on one thread."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from apex_acer.config import EnvironmentConfig
from apex_acer.environments.vector import make_environments
from apex_acer.environments.wrappers import shrink

STEPS, WARM_UP = 1000, 50


def milliseconds(call: Callable[[], Any]) -> float:
    """Processor time of a call, which other programs lengthen less than wall time."""
    for _ in range(WARM_UP):
        call()
    start = time.process_time()
    for _ in range(STEPS):
        call()
    return round(1000 * (time.process_time() - start) / STEPS, 3)


def step_ms(config: EnvironmentConfig) -> float:
    """A step of one environment by random actions, resets included."""
    environments = make_environments(config, 1, training=True)
    rng = np.random.default_rng(0)
    environments.reset(0)
    time_ms = milliseconds(lambda: environments.step(environments.spec.actions.sample(rng, 1)))
    environments.close()
    return time_ms


def measure(name: str) -> dict[str, Any]:
    """Milliseconds of steps without and with pictures, and of drawing and shrinking one."""
    kwargs: dict[str, Any] = {"render_mode": "rgb_array"}
    without = step_ms(EnvironmentConfig(name))
    with_pictures = step_ms(EnvironmentConfig(name, kwargs, ("apex_acer.wrappers:pixels",)))
    env: Any = gymnasium.make(name, **kwargs)
    env.reset(seed=0)
    env.step(env.action_space.sample())  # Pendulum draws its torque, too
    frame = env.render()
    shrink_ms = milliseconds(lambda: shrink(frame, 84))
    draw_ms = milliseconds(env.render)
    env.close()
    return {
        "id": name,
        "frame": list(frame.shape),
        "step_ms": without,
        "step_with_pictures_ms": with_pictures,
        "draw_ms": draw_ms,
        "shrink_ms": shrink_ms,
    }


def main(names: list[str]) -> int:
    """Prints a line for each environment."""
    for name in names or ["Pendulum-v1"]:
        print(json.dumps(measure(name)), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
