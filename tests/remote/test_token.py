"""The file of the token, as scripts see it that wait for it."""

from __future__ import annotations

import re
import stat
import threading
from pathlib import Path

import pytest

from apex_acer.config import ListenConfig
from apex_acer.remote.token import make_token, read_token
from tests.conftest import config_error


def test_the_file_has_its_token_as_soon_as_it_is_there(tmp_path: Path) -> None:
    """Carts that waited for the file once read it before the token stood in it."""
    folders = [tmp_path / str(number) for number in range(30)]
    seen: list[str] = []

    def wait_for_each() -> None:
        for folder in folders:
            while not (folder / "token").exists():
                pass
            seen.append((folder / "token").read_text().strip())

    waiting = threading.Thread(target=wait_for_each)
    waiting.start()
    for folder in folders:
        folder.mkdir()
    made = [make_token(ListenConfig(), folder) for folder in folders]
    waiting.join(60)
    assert seen == made


def test_only_its_owner_reads_it_and_it_is_made_once(tmp_path: Path) -> None:
    made = make_token(ListenConfig(), tmp_path)
    assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600
    assert make_token(ListenConfig(), tmp_path) == ""
    assert read_token(ListenConfig(), tmp_path) == made


def test_a_program_takes_no_token_for_a_flag(tmp_path: Path) -> None:
    """One in 64 began with a dash, and a client that was given it on its command line did not start."""
    assert re.fullmatch("[0-9a-f]{48}", make_token(ListenConfig(), tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["token"]


@pytest.mark.parametrize("mode", [0o640, 0o602])
def test_a_file_that_others_may_use_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "mine"
    path.write_text("open sesame")
    path.chmod(mode)
    message = config_error(lambda: read_token(ListenConfig(token_file=str(path)), tmp_path))
    assert message == f"serve.token_file: '{path}' has mode {mode:o}, so others may use it; run chmod 600 on it"
    path.chmod(0o400)
    assert read_token(ListenConfig(token_file=str(path)), tmp_path) == "open sesame"
