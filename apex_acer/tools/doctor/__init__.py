"""Checks whether this machine has what a run needs, and how fast the run would be.

May import: tools/capacity, views, engines, learner, environments, networks, config, system.
"""
