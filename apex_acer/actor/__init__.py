"""Policies that act in environments: the actors, which ship what they did, and the evaluator.

May import: algorithms, networks, environments, config, protocol.
"""
