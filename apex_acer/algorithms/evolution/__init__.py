"""Search in the space of parameters, by whole episodes of members: CEM. `settings.py` imports no torch.

May import: algorithms, networks, functional, config, protocol.
"""
