"""Replay memory: its storage, its sampling and the replay ratio.

May import: networks, config, protocol.
"""
