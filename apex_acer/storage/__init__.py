"""A run's folder: checkpoints, metrics, TensorBoard files and the log.

May import: config, protocol, system.
"""
