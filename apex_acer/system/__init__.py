"""What the package needs of the operating system: files, signals, processes and streams.

May import: nothing of the package.
"""

# nothing else: before `look_here_last`, only what the interpreter has loaded anyway may be imported
import os
import sys


def look_here_last() -> None:
    """Moves the current folder to the end of the path: a user's modules are found there, but never instead of Python's own.

    `python -m` puts it first, where a `random.py` would be taken for Python's.
    """
    try:
        here = os.getcwd()
    except OSError:  # the current folder was removed
        return
    sys.path[:] = [*(entry for entry in sys.path if entry not in ("", here)), here]
