"""The token that clients must send: made once for a run, kept in a file that only its owner can read."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from apex_acer.config import ConfigError, ListenConfig, require, writing
from apex_acer.system import files

LONGEST = 4096  # bytes of a token file
OTHERS = stat.S_IRWXG | stat.S_IRWXO


def token_file(settings: ListenConfig, folder: Path) -> Path:
    """The file with the token; `folder` is the run's."""
    return Path(settings.token_file or folder / "token")


def make_token(settings: ListenConfig, folder: Path) -> str:
    """Writes a new token to the run's `folder`, unless there is one; returns the new one, or an empty string.

    Raises `ConfigError` if the file that the settings name has no token.
    """
    path = token_file(settings, folder)
    if settings.token_file or path.exists():
        read_token(settings, folder)
        return ""
    token = secrets.token_hex(24)  # never begins with a dash, which programs take for a flag
    with writing("out", path), files.replacing(path) as beside:  # some wait for the file and read it at once
        beside.touch(mode=0o600)
        beside.write_text(f"{token}\n")
    return token


def read_token(settings: ListenConfig, folder: Path) -> str:
    """The token; raises `ConfigError` if the file has none, or if others than its owner may use it."""
    path = token_file(settings, folder)
    key = f"{settings.section}.token_file"
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            token = file.read(LONGEST).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigError(f"{key}: {str(path)!r}: {reason}; give a file with a token") from None
    if mode & OTHERS:
        raise ConfigError(f"{key}: {str(path)!r} has mode {mode & 0o777:o}, so others may use it; run chmod 600 on it")
    require(bool(token), key, str(path), "give a file with a token")
    return token
