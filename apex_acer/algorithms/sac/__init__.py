"""Soft actor-critic. `settings.py` imports no torch.

May import: algorithms, networks, functional, config, protocol.
"""
