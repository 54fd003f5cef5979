"""Suggests a key for an unknown name, which may be misspelt, in the wrong section, or from another library."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Collection, Mapping
from typing import Any

from apex_acer.config.checks import field_types

OTHERS = {
    "stop.env_steps": "total_timesteps timesteps num_timesteps max_timesteps total_steps max_steps num_env_steps",
    "stop.minutes": "time max_time time_limit",
    "stop.at_return": "target reward_threshold target_reward stop_reward",
    "environment.id": "env env_id env_name gym_id environment task game",
    "environment.kwargs": "env_kwargs env_config",
    "environment.stack": "frame_stack n_stack num_stack framestack",
    "actors.count": "num_workers n_workers workers num_actors n_actors num_env_runners num_rollout_workers",
    "actors.environments": "n_envs num_envs n_env num_env num_envs_per_worker num_envs_per_env_runner",
    "learner.device": "device cuda gpu use_gpu",
    "learner.count": "num_learners n_learners",
    "optimizer.name": "optimizer optim optimizer_class",
    "optimizer.learning_rate": "lr alpha step_size",
    "optimizer.schedule": "lr_schedule anneal_lr",
    "network.hidden_sizes": "net_arch hidden_size hidden_sizes hidden_layers hidden_dim fcnet_hiddens",
    "network.lstm": "use_lstm lstm_hidden_size recurrent rnn",
    "network.layer_norm": "layernorm use_layer_norm norm_type",
    "optimizer.beta1": "b1 betas adam_b1 adam_beta1",
    "replay.capacity": "buffer_size replay_size memory_size replay_buffer_size",
    "replay.start": "learning_starts warmup_steps min_replay_size",
    "algorithm.name": "algo algorithm alg agent",
    "algorithm.gamma": "discount discount_factor",
    "algorithm.unroll_length": "rollout_length rollout_fragment_length rollout_steps num_rollout_steps horizon",
    "algorithm.entropy_cost": "ent_coef entropy_coef entropy_coeff entropy_beta",
    "algorithm.value_cost": "vf_coef value_coef value_loss_coef vf_loss_coeff critic_coef",
    "algorithm.ema_decay": "tau polyak polyak_tau",
    "algorithm.policy_every": "policy_delay policy_frequency",
    "algorithm.batch_norm": "batchnorm use_batch_norm bn crossq",
    "algorithm.epochs": "n_epochs num_epochs update_epochs num_sgd_iter",
    "algorithm.minibatches": "num_minibatches n_minibatches",
    "algorithm.clip": "clip_range clip_coef clip_param clip_ratio clip_eps",
    "algorithm.epsilon": "eps_start epsilon_start start_e exploration_initial_eps",
    "algorithm.epsilon_final": "eps_finish epsilon_end end_e exploration_final_eps",
    "algorithm.epsilon_fraction": "eps_decay epsilon_decay exploration_fraction",
    "algorithm.q_lambda": "lambda lambda_ td_lambda",
    "algorithm.target_every": "target_update_interval target_network_update_freq target_network_frequency",
    "algorithm.replay_ratio": "train_freq gradient_steps train_frequency update_every utd_ratio",
    "self_play.pool": "window",
    "self_play.every": "save_steps",
    "self_play.newest": "play_against_latest_model_ratio",
    "evaluation.every": "eval_freq eval_every eval_interval evaluation_interval",
    "evaluation.episodes": "n_eval_episodes eval_episodes num_eval_episodes",
    "checkpoint.every": "save_freq save_every save_interval checkpoint_freq checkpoint_frequency",
    "logging.trackers": "track wandb mlflow report_to",
    "out": "log_dir logdir save_dir output output_dir run_dir save_path",
    "load": "load_path checkpoint_path model_path pretrained",
}
"""Other libraries' names of a key."""


def nearest(name: str, keys: Collection[str]) -> str:
    """The dotted key in `keys` that `name` most likely means; empty if there is none."""
    name = name.lower().replace("-", "_")
    section, _, last = name.rpartition(".")
    inside = [key for key in keys if key.rpartition(".")[0] == section]
    known = [key for key, names in OTHERS.items() if key in keys and last in names.split()]
    same = [key for key in keys if key.rpartition(".")[2] == last]
    if candidates := [*(key for key in same if key in inside), *known, *same]:
        return candidates[0]
    if not inside:  # its section is misspelt
        return _similar(name, {key: key for key in keys}, 0.6)
    return _similar(last, _by_last(inside), 0.6) or _similar(last, _by_last(keys), 0.9)


def _by_last(keys: Collection[str]) -> dict[str, str]:
    return {key.rpartition(".")[2]: key for key in keys}


def _similar(word: str, keys: Mapping[str, str], cutoff: float) -> str:
    near = difflib.get_close_matches(word, keys, n=1, cutoff=cutoff)
    return keys[near[0]] if near else ""


def types_of(section: Any, prefix: str = "") -> dict[str, Any]:
    """The types of the values of a configuration, or of its class, by dotted key that begins with `prefix`."""
    types: dict[str, Any] = {}
    for name, hint in field_types(section if isinstance(section, type) else type(section)).items():
        value = hint if isinstance(section, type) else getattr(section, name)
        types |= types_of(value, f"{prefix}{name}.") if dataclasses.is_dataclass(value) else {prefix + name: hint}
    return types
