"""The tests, in folders as those of the package."""

from pathlib import Path

ROOT = Path(__file__).parent.parent
"""The checkout's."""
