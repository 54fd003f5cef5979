"""The plain data that processes send each other: messages, unrolls, specifications and metrics.

May import: nothing of the package.
"""
