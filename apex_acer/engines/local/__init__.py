"""The local engine: a process for each role on one machine; they talk over ZeroMQ on ipc sockets.

May import: engines, learner, storage, config, protocol, system.
"""
