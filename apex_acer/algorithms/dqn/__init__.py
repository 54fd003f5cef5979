"""Ape-X DQN and R2D2. `settings.py` imports no torch.

May import: algorithms, networks, functional, config.
"""
