"""The messages between processes: plain data, and the learner's inbox, which checks them.

May import: nothing of the package.
"""
