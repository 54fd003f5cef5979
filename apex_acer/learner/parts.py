"""The parts of a run's learner, as its configuration says: the batch queue, and its storage and sampler."""

from __future__ import annotations

import torch

from apex_acer.config import ConfigError, RunConfig
from apex_acer.learner.batch_queue import BatchQueue
from apex_acer.learner.ranks import ALONE, Ranks
from apex_acer.networks.device import CPU
from apex_acer.protocol.unroll import Layout
from apex_acer.replay.compressed import CompressedStorage
from apex_acer.replay.rate_limiter import RateLimiter
from apex_acer.replay.sampler import PrioritizedSampler, RewardedSampler, Sampler
from apex_acer.replay.storage import Storage
from apex_acer.system.seeds import derive_seed


def make_batch_queue(config: RunConfig, layout: Layout, device: torch.device, ranks: Ranks = ALONE) -> BatchQueue:
    """The batch queue of a learner on `device`, with its share of replay; raises `ConfigError` if a GPU has no room."""
    replay_device = device if config.replay.device == "learner" else CPU
    storage = make_storage(config, layout, capacity(config) // ranks.count, replay_device)
    sampler = make_sampler(config, storage, ranks.rank)
    seed, replays = derive_seed(config.seed, "learner", 2), config.algorithm.sampling.replays
    limiter = RateLimiter(config.algorithm.replay_ratio, seed, replays, config.replay.start)
    return BatchQueue(config, storage, sampler, limiter, device if replay_device != device else None, ranks)


def capacity(config: RunConfig) -> int:
    """Environment steps that all learners hold.

    Without replay these are the batch that is computed, the next one, which a single learner may have whole, and the
    unroll that completes it.
    """
    if config.algorithm.replay_ratio:
        return config.replay.capacity
    sequences = 2 * config.learner.batch_size + config.actors.environments
    return sequences * config.algorithm.unroll_length * config.learner.count


def make_storage(config: RunConfig, layout: Layout, env_steps: int, device: torch.device = CPU) -> Storage:
    """A storage of `env_steps` environment steps on `device`; raises `ConfigError` if it has no room for them."""
    num_sequences, n_steps = env_steps // config.algorithm.unroll_length, config.algorithm.sampling.n_steps
    if config.replay.compress and config.algorithm.replay_ratio and device == CPU:
        return CompressedStorage(layout, num_sequences, n_steps)
    try:
        return Storage(layout, num_sequences, n_steps, device)
    except torch.OutOfMemoryError:
        what = f"{device} has no room for {env_steps:,} steps; give cpu, or a smaller replay.capacity"
        raise ConfigError(f"replay.device: {what}") from None


def make_sampler(config: RunConfig, storage: Storage, rank: int = 0) -> Sampler:
    """The sampler of `storage` that `config` asks for; each learner, of number `rank`, draws with its own generator."""
    seed = derive_seed(config.seed, "learner", 1, *([rank] if rank else []))
    if config.replay.sampling == "prioritized":
        return PrioritizedSampler(storage, seed, config.replay)
    return (RewardedSampler if config.replay.sampling == "rewarded" else Sampler)(storage, seed)
