"""DDPG, TD3 and Ape-X DPG. `settings.py` imports no torch.

May import: algorithms, networks, functional, config, protocol.
"""
