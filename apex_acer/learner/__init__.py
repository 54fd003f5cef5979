"""The learner and its parts: batches, gradients, steps, what it saves and what it logs.

May import: algorithms, replay, networks, storage, config, protocol.
"""
