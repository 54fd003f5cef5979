"""The local engine: forked processes on one machine, which talk over ZeroMQ on ipc.

May import: engines, actor, learner, storage, config, protocol, system.
"""
