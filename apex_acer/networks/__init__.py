"""Networks (torsos and heads), their preprocessing, their devices, and weights files.

May import: functional, config, protocol, system.
"""
