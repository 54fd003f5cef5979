"""What of this machine a run needs, whether it is there, and how fast the run would be.

May import: tools/capacity, views, engines, environments, networks, config.
"""
