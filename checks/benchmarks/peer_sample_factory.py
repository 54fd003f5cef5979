"""Environment steps per second of Sample Factory's APPO on Pong; a script of `make bench-peers`.

The settings are its Atari example's (4 epochs of minibatches of 256 steps, rollouts of 128), with 16 environments in as many
workers as there are cores, and the networks of our presets.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time

os.environ["OMP_NUM_THREADS"] = "1"  # before numpy and torch: each process has one core

import gymnasium
import numpy as np
from sample_factory.algo.runners.runner import AlgoObserver
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner
from sf_examples.atari.atari_params import atari_override_defaults

ENVIRONMENT = "ALE/Pong-v5"
NETWORKS = {"a3c": ("convnet_impala", 256), "nature": ("convnet_atari", 512)}  # convolutions, and the width after them
FRAME_SKIP = 4
WARM_UP_S = 20.0
LIMIT_S = 240.0


def make_pong(name: str, cfg: object = None, env_config: object = None, render_mode: object = None) -> gymnasium.Env:
    """Pong as in peer_pong.py, by the calls of gymnasium 0.29."""
    if ENVIRONMENT not in gymnasium.registry:  # the workers are fresh processes
        given = {"game": "pong", "obs_type": "rgb", "max_num_frames_per_episode": 108_000}
        gymnasium.register(ENVIRONMENT, "ale_py.env:AtariEnv", kwargs=given)
    environment = gymnasium.make(ENVIRONMENT, frameskip=1, repeat_action_probability=0.0)
    environment = gymnasium.wrappers.AtariPreprocessing(environment, noop_max=30, frame_skip=FRAME_SKIP)
    return gymnasium.wrappers.TransformObservation(  # type: ignore[call-arg]  # of its own gymnasium
        gymnasium.wrappers.FrameStack(environment, 4), np.asarray
    )


class Clock(AlgoObserver):
    """Notes how many steps have been learned from, and when; ends the run after so many seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._began = seconds, 0.0
        self.marks: list[tuple[int, float]] = []

    def on_training_step(self, runner: object, training_iteration_since_resume: int) -> None:
        """Called after each iteration; after the warm-up, the first one is the start."""
        now = time.monotonic()
        self._began = self._began or now
        if now - self._began < WARM_UP_S:
            return
        self.marks.append((runner.env_steps.get(0, 0) // FRAME_SKIP, now))  # type: ignore[attr-defined]
        if now - self.marks[0][1] >= self._seconds:
            raise KeyboardInterrupt


def main() -> int:
    """Prints a record."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--network", choices=NETWORKS, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        flags = ["--env=pong", "--algo=APPO", "--device=cpu", f"--train_dir={folder}", "--experiment=pong"]
        flags += [f"--num_workers={os.cpu_count()}", f"--num_envs_per_worker={16 // (os.cpu_count() or 1)}"]
        flags += ["--worker_num_splits=2", "--num_batches_per_epoch=8"]
        flags += [f"--train_for_seconds={LIMIT_S:.0f}", "--save_every_sec=100000"]
        convolutions, width = NETWORKS[given.network]
        flags += [f"--encoder_conv_architecture={convolutions}", f"--encoder_conv_mlp_layers={width}"]
        register_env("pong", make_pong)
        settings, _ = parse_sf_args(flags)
        atari_override_defaults("pong", settings)
        _, runner = make_runner(parse_full_cfg(settings, flags))
        clock = Clock(given.seconds)
        runner.register_observer(clock)
        runner.init()
        with contextlib.suppress(KeyboardInterrupt):
            runner.run()
    (first, began), (last, ended) = clock.marks[0], clock.marks[-1]
    print(json.dumps({"env_steps_per_s": round((last - first) / (ended - began), 1)}))
    return 0


if __name__ == "__main__":
    sys.stdout.flush()
    code = main()
    sys.stdout.flush()
    os._exit(code)
