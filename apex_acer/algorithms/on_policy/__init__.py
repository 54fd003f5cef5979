"""Algorithms that learn from fresh data only: A2C, A3C, IMPALA, REINFORCE, PPO, TRPO and PQN.

`settings.py` imports no torch.

May import: algorithms, networks, functional, config, protocol.
"""
