"""Replay memory: what it keeps, how it draws, and how much of it is due.

May import: networks, config, protocol.
"""
