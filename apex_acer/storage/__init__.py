"""The files in a run's folder: checkpoints, metrics, TensorBoard files and the log.

May import: config, protocol, system.
"""
