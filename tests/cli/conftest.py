"""What the tests of several commands share."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from apex_acer.cli import main

Refused = Callable[..., str]


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Refused:
    """Runs a command that must refuse its input with one line, nothing beside it, and code 2; the line."""

    def run(*arguments: str) -> str:
        capsys.readouterr()
        code, (out, error) = main(arguments), capsys.readouterr()
        assert (code, out, error.count("\n")) == (2, "", 1), f"{arguments}: {code} {out} {error}"
        assert error.startswith("apex-acer: ")
        return error

    return run


def assert_refused(refused: Refused, table: dict[str, str]) -> None:
    """Each key of `table`, a command, is refused in a line that holds the parts that ` … ` separates."""
    wrong = {}
    for command, parts in table.items():
        line = refused(*command.split())
        if missing := [part for part in parts.split(" … ") if part not in line]:
            wrong[command] = f"{missing} not in {line!r}"
    assert not wrong, "\n".join(f"{command}: {text}" for command, text in wrong.items())
