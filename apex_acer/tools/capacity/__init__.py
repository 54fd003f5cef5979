"""Measures what the components of a run cost on this machine, and predicts its speed on other machines.

May import: engines/local, actor, learner, algorithms, replay, networks, environments, config, protocol, system.
"""
