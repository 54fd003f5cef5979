"""How fast a run could be: what its components cost here, and what that means for other machines.

May import: engines, engines/local, actor, learner, algorithms, replay, networks, environments, config, protocol, system.
"""
