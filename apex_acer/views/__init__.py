"""What a user sees of runs: the live table, curves and figures.

May import: storage, config, protocol, system.
"""
