"""Tools for whole runs: listing them, and exporting trained policies.

May import: manager, actor, networks, storage, config, protocol, system.
"""
