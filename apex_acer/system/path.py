"""Where modules are looked for. Imports only what Python has loaded before it looks anywhere."""

import os
import sys


def look_here_last() -> None:
    """Puts the folder one stands in at the end of the path: a user's module is found there, but none in place of Python's.

    `python -m` puts it first, where a `random.py` would be taken for Python's own.
    """
    try:
        here = os.getcwd()
    except OSError:  # it was removed
        return
    sys.path[:] = [*(entry for entry in sys.path if entry not in ("", here)), here]
