"""Clients from elsewhere: the protocol of docs/remote.md, and the server that speaks it. Torch-free.

May import: config, protocol, system.
"""
