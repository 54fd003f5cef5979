"""Sweeps: many runs at the same time, and statistics over their results.

May import: views, environments, storage, config, system.
"""
