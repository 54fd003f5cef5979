"""Shows runs to users: the live table, curves and figures.

May import: storage, config, protocol, system.
"""
