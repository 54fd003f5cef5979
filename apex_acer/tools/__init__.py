"""Tools for whole runs: listing them, and exporting trained policies.

May import: manager, actor, networks, functional, storage, config, protocol, system.
"""
