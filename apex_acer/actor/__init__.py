"""Policies that act in environments: actors, which send unrolls to the learner, and the evaluator.

May import: algorithms, networks, environments, remote, storage, config, protocol, system.
"""
