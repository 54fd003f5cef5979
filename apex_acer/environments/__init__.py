"""Vector environments: what their spaces mean here, wrappers, and pictures of them.

May import: config, protocol, system.
"""
