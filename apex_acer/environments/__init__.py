"""Vector environments: how their spaces are understood, wrappers for them, and pictures of them.

May import: config, protocol, system.
"""
