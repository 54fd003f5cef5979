"""One training run: from the checks before its start to its one end. Imports no torch.

May import: engines, actor, views, networks, environments, remote, storage, config, protocol, system.
"""
