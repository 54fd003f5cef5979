"""The command line: `main` runs one verb and returns the exit code.

Modules that take time to import are imported only once `main` can handle Ctrl-C.

May import: tools, tools/capacity, tools/doctor, tools/sweep, tools/tune, manager, engines, actor, learner, views, networks,
environments, remote, config, protocol, system.
"""

from __future__ import annotations

import os
import sys

from apex_acer.cli.notice import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE, PROGRAM
from apex_acer.system import look_here_last

TYPE_CHECKING = False  # instead of importing `typing`, which takes time
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TextIO


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one verb; returns the exit code."""
    try:
        look_here_last()  # a user's environment is often a module in the folder they stand in
        _open_streams()
        from apex_acer.system.signals import interrupting

        with interrupting():
            code = _run(list(sys.argv[1:] if arguments is None else arguments))
    except KeyboardInterrupt as interrupt:
        print(f"{PROGRAM}: {'; '.join(['interrupted', *getattr(interrupt, '__notes__', ())])}", file=sys.stderr)
        code = 128 + interrupt.args[0] if interrupt.args else EXIT_INTERRUPTED
    return _flush(code)


def _run(arguments: list[str]) -> int:
    import errno
    import traceback

    from apex_acer.cli.verbs import run
    from apex_acer.config import ConfigError
    from apex_acer.system.output import printable, printable_lines, say

    try:
        _require_current_folder()
        return run(arguments)
    except ConfigError as error:
        say(f"{PROGRAM}: {printable(str(error))}", sys.stderr)
        return EXIT_USAGE
    except (Exception, SystemExit) as error:  # the latter of an environment, which evaluates in this process
        # an error of a file has its name
        if isinstance(error, OSError) and error.filename is None and not _can_be_written(sys.stdout):
            return 0  # `_flush` decides on the exit code
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            say(_write_error(error), sys.stderr)
        else:
            say(printable_lines(traceback.format_exc().rstrip()), sys.stderr)
        return EXIT_FAILED


def _require_current_folder() -> None:
    """Raises `ConfigError` if the current folder is gone: libraries that a run loads would end its processes."""
    from apex_acer.config import ConfigError

    try:
        os.getcwd()
    except OSError as error:
        raise ConfigError(f"the current folder cannot be used ({error.strerror}); cd to one that exists") from None


def _open_streams() -> None:
    """Opens closed standard streams on /dev/null, so that no other file gets their descriptors."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # gets the lowest free number: this one
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def _can_be_written(stream: TextIO) -> bool:
    """Whether a stream can be flushed and, if it is a pipe, has a reader; an error may have emptied the buffer."""
    import select

    try:
        stream.flush()
    except OSError:
        return False
    poll = select.poll()
    try:
        poll.register(stream.fileno(), 0)
    except OSError:  # it has no descriptor, so it accepts everything
        return True
    return not poll.poll(0)


def _flush(code: int) -> int:
    """Flushes the output; returns the exit code: `code` if all readers are there or have left, 1 if output is missing."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as error:
            # otherwise Python would flush again at exit and complain
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            if not isinstance(error, BrokenPipeError):
                print(_write_error(error), file=sys.stderr)
                code = code or EXIT_FAILED
    return code


def _write_error(error: OSError) -> str:
    return f"{PROGRAM}: {error.filename or 'the output'} cannot be written: {error.strerror}"
