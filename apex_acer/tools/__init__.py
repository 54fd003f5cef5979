"""Work on whole runs: listing them, and exporting what they trained.

May import: manager, actor, networks, storage, config, protocol, system.
"""
