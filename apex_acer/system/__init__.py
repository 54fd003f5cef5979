"""The operating system: files, signals, processes and streams.

May import: nothing of the package.
"""
