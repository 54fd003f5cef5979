"""Torsos, heads and weights files, preprocessing, and the device.

May import: functional, config, protocol, system.
"""
