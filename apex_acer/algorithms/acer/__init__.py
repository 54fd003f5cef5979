"""ACER for discrete and for continuous actions. `settings.py` imports no torch.

May import: algorithms, networks, functional, config, protocol.
"""
