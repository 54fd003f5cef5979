"""The learner and its parts: batches, updates, checkpoints and metrics.

May import: algorithms, replay, networks, storage, config, protocol, system.
"""
