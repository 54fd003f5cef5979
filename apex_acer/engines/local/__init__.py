"""The local engine: spawned processes on one machine, talking over ZeroMQ on ipc."""
