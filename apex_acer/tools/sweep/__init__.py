"""Many runs side by side, and what they add up to.

May import: views, environments, storage, config, system.
"""
