"""The ray engine: every role runs inside an actor of Ray, on one machine or on many.

May import: engines, learner, storage, config, protocol, system.
"""
