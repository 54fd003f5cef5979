"""Torsos and heads: their preprocessing, weights files and the learner's device.

May import: functional, config, protocol, system.
"""
