"""Tuning: a study of many trials, each a setting that several seeds train with.

May import: tools/sweep, storage, config, system.
"""
