"""Tools for whole runs: listing them, and exporting trained policies.

May import: manager, actor, learner, networks, environments, storage, config, protocol, system.
"""
