"""The command line, from its first moment to its exit code.

Before `main` is ready for a Ctrl-C, it imports nothing that takes time.

May import: tools, tools/capacity, tools/doctor, tools/sweep, manager, engines, actor, learner, views, networks,
environments, config, protocol, system.
"""

from __future__ import annotations

import os
import sys

from apex_acer.system.path import look_here_last

TYPE_CHECKING = False  # that of `typing`, which takes time to import
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TextIO

PROGRAM = "apex-acer"
EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one verb; returns the exit code."""
    try:
        look_here_last()  # a user's environment is often a module in the folder they stand in
        _open_streams()
        code = _run(list(sys.argv[1:] if arguments is None else arguments))
    except KeyboardInterrupt:
        print(f"{PROGRAM}: interrupted", file=sys.stderr)
        code = EXIT_INTERRUPTED
    return _flush(code)


def _run(given: list[str]) -> int:
    import errno
    import traceback

    from apex_acer.cli.verbs import run
    from apex_acer.config import ConfigError
    from apex_acer.system.output import printable, printable_lines, say

    try:
        return run(given)
    except ConfigError as error:
        say(f"{PROGRAM}: {printable(str(error))}", sys.stderr)
        return EXIT_USAGE
    except SystemExit as left:  # after help
        return int(left.code or 0)
    except Exception as error:
        if isinstance(error, OSError) and not _can_be_written(sys.stdout):
            return 0  # `_flush` judges that
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            say(_full(error), sys.stderr)
            return EXIT_FAILED
        say(printable_lines(traceback.format_exc().rstrip()), sys.stderr)
        return EXIT_FAILED


def _open_streams() -> None:
    """Has the standard streams that are closed lead nowhere: no file that is opened may take their place."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free is this one
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def _can_be_written(stream: TextIO) -> bool:
    import select

    try:
        stream.flush()
    except OSError:
        return False
    poll = select.poll()
    try:
        poll.register(stream.fileno(), 0)
    except OSError:  # it is none of the system's, and takes everything
        return True
    return not poll.poll(0)


def _flush(code: int) -> int:
    """Writes what is still to be written; returns the exit code.

    A reader who has left, as `head` does, has read enough; on a full disk there is something missing.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # or Python would try again, and complain
            if not isinstance(error, BrokenPipeError):
                print(_full(error), file=sys.stderr)
                code = code or EXIT_FAILED
    return code


def _full(error: OSError) -> str:
    return f"{PROGRAM}: {error.filename or 'what it prints'} cannot be written: {error.strerror}"
