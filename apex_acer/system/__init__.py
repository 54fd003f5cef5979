"""What the package needs of the operating system: files, signals, processes and streams.

May import: nothing of the package.
"""
