"""One run from its first check to its one end. Imports no torch.

May import: engines, actor, views, environments, storage, config, protocol, system.
"""
