"""What processes say to each other: plain data, and the inbox that checks it.

May import: nothing of the package.
"""
