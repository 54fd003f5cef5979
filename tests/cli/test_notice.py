"""What commands say on a terminal while they work."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import pytest

from apex_acer.cli import main
from apex_acer.tools.doctor import run as doctor_run

RATES = {"environment": 1e5, "acting": 1e4, "update": 1e4}


class Screen(io.StringIO):
    """A terminal's line."""

    def isatty(self) -> bool:
        return True

    @property
    def texts(self) -> list[str]:
        """What it was made to show, one after the other."""
        return [text for text in re.split(r"\r *\r", self.getvalue()) if text]


def make_screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    """In the place of standard error; of the doctor's measurements nothing is left but their rates."""
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(doctor_run, "measure", lambda *args, **named: RATES)
    return screen


def test_doctor_of_a_runs_folder_says_what_it_is_doing(
    finished_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    screen = make_screen(monkeypatch)
    assert main(["doctor", str(finished_run)]) == 0
    assert screen.texts == ["loading torch ...", "making environments ...", "measuring the speed, half a minute ..."]
    assert screen.getvalue().endswith("\r")
    out = capsys.readouterr().out
    assert "CartPole-v1" in out
    assert re.search(r"; 1,000 steps in 0 s$", out, re.MULTILINE)


def test_a_notice_goes_before_the_result_and_with_an_error(finished_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = make_screen(monkeypatch)
    assert main(["evaluate", str(finished_run / "weights.safetensors"), "--episodes", "2"]) == 0
    assert screen.texts == ["playing 2 episodes ..."]
    assert screen.getvalue().endswith("\r")
    assert main(["doctor", "absent"]) == 2
    assert screen.texts[-2] == "loading torch ..."
    assert screen.texts[-1].startswith("apex-acer: run: 'absent' is neither a preset nor a file; ")


def test_with_json_and_without_a_terminal_nothing_is_said(finished_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = make_screen(monkeypatch)
    weights = str(finished_run / "weights.safetensors")
    for arguments in (["doctor", str(finished_run)], ["evaluate", weights, "--episodes", "1"]):
        assert main([*arguments, "--json"]) == 0
        monkeypatch.setattr(Screen, "isatty", lambda self: False)
        assert main(arguments) == 0
        monkeypatch.setattr(Screen, "isatty", lambda self: True)
    assert not screen.getvalue()
