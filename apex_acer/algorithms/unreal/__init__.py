"""UNREAL: actor-critic with auxiliary losses on replayed sequences. `settings.py` imports no torch.

May import: algorithms, algorithms/on_policy, networks, functional, config.
"""
