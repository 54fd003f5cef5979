"""What is shown where there is no terminal, and in a notebook."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import sys
import types
from pathlib import Path

import pytest

from apex_acer.config import ActorsConfig, RunConfig
from apex_acer.manager.callbacks import Callbacks
from apex_acer.manager.manager import resume, train
from apex_acer.protocol.messages import Outcome, Row
from apex_acer.views.console import live_view
from tests.runs import a_status, tiny_run

CONFIG = RunConfig(actors=ActorsConfig(count=2))
ROWS: dict[str, Row] = {
    "actor_0": {"env_steps_per_s": 800.0, "episode_return": 20.0},
    "actor_1": {"env_steps_per_s": 200.0, "episode_return": 30.0},
    "learner": {"updates": 50.0, "updates_per_s": 7.0, "entropy": 0.5, "q_loss": 0.25},
    "evaluator": {"eval_return": 15.0},
}
LINE = "300/100,000 steps | 1,000/s | 50 updates (7/s) | return 25.0 | evaluation 15.0 (best 17.0)"
LINE += " | entropy 0.500, Q loss 0.25"
RESULT = Outcome("at_return", 400, 60, 2.0, 1.0, 18.0, "runs/mine/weights.safetensors", "runs/mine")
END = [
    "the target return is reached: 400 env steps, 60 updates in 2.0 s (start-up 1.0 s), evaluation 18.00",
    "weights: runs/mine/weights.safetensors",
]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that views go by."""
    now = [100.0]
    monkeypatch.setattr("apex_acer.views.console.time.monotonic", lambda: now[0])
    return now


def test_a_file_gets_a_line_now_and_then_and_all_news(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as in a build's log: colours, but no terminal
    stream = io.StringIO()
    with live_view(CONFIG, stream) as view:
        for second in range(8):
            clock[0] = 100.0 + second
            news = ["actor_1: killed by \x1b[1mSIGKILL"] if second == 3 else []
            view.update(a_status(env_steps=300, rows=ROWS, best=17.0, news=news))
        view.conclude(RESULT)
    assert stream.getvalue().splitlines() == [LINE, "actor_1: killed by \\x1b[1mSIGKILL", LINE, *END]


def test_some_runs_have_more_in_their_line(clock: list[float]) -> None:
    """Of continuous actions, skipped updates and remote clients."""
    learner = {"updates": 50.0, "skipped_updates": 83.0, "entropy": -0.9, "action_std": 0.3, "q_loss": 0.25}
    stream = io.StringIO()
    with live_view(CONFIG, stream) as view:
        clock[0] += 1.0
        actor = {"clients": 0.0, "refused_clients": 2.0}
        view.update(a_status(env_steps=300, rows={"learner": learner, "actor_0": actor}))
    assert stream.getvalue().startswith("300/100,000 steps | 0/s | 0 clients, 2 refused | 50 updates (")
    assert stream.getvalue().endswith("), 83 skipped | action std 0.300, Q loss 0.25\n")


def test_the_busiest_clients_are_in_the_line_and_count_once(clock: list[float]) -> None:
    rows: dict[str, Row] = {"actor_0": {"clients": 9.0, "env_steps_per_s": 800.0, "episode_return": 20.0}}
    rows["client_slow"] = {"clients": 1.0, "env_steps_per_s": 10.0}
    rows["client_robot"] = {"clients": 8.0, "env_steps_per_s": 700.0, "episode_return": 100.0, "refused_clients": 0.0}
    rows["client_@10.0.0.7"] = {"refused_clients": 5.0}
    rows["client_gone"] = {"clients": 0.0, "env_steps_per_s": 0.0, "episode_return": 7.0, "refused_clients": 1.0}
    stream = io.StringIO()
    with live_view(CONFIG, stream) as view:
        clock[0] += 1.0
        view.update(a_status(env_steps=300, rows=rows))
    assert stream.getvalue().startswith("300/100,000 steps | 800/s | 9 clients | 0 updates (0/s) | return 20.0 | ")
    ends = " | robot 700/s, return 100.0 | slow 10/s | gone return 7.0, 1 refused\n"
    assert stream.getvalue().endswith(ends)


def test_updates_that_were_not_made_are_told_at_the_end() -> None:
    for updates, skipped, line, exit_code in (
        (65, 83, "83 of 148 updates were skipped because they were not finite", 0),
        (0, 83, "nothing was learned: all 83 updates were skipped because they were not finite", 1),
        (0, 0, "nothing was learned: no update was made", 0),
    ):
        stream, result = io.StringIO(), dataclasses.replace(RESULT, updates=updates, skipped_updates=skipped)
        with live_view(CONFIG, stream) as view:
            view.conclude(result)
        assert stream.getvalue().splitlines()[-1].startswith(line)
        assert result.exit_code == exit_code
        assert dataclasses.replace(result, reason="SIGINT").exit_code == 130


class Screen(io.TextIOWrapper):
    """A terminal to what asks it, of which nothing more works."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("term", "encoding"), [("dumb", "utf-8"), ("xterm", "ascii")])
def test_a_terminal_that_cannot_show_the_table_gets_lines(
    term: str, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", term)
    stream = Screen(io.BytesIO(), encoding=encoding)
    with live_view(CONFIG, stream) as view:
        view.update(a_status(news=["actor_0: größer ▁"]))
    expected = {"utf-8": "größer ▁", "ascii": "gr??er ?"}[encoding]
    assert stream.buffer.getvalue().decode() == f"actor_0: {expected}\n"  # type: ignore[attr-defined]


def test_a_reader_that_stands_still_delays_no_run(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """As `less` does, whose pipe is full once nobody turns its pages."""
    monkeypatch.setattr("apex_acer.views.console.CONCLUDE_S", 0.1)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writing, b"." * 4096)
    os.set_blocking(writing, True)
    with os.fdopen(reading, "rb") as reader, os.fdopen(writing, "w") as stream:
        with live_view(CONFIG, stream) as view:
            view.update(a_status(news=["nobody sees this"]))
            view.conclude(RESULT)
        full = len(os.read(reader.fileno(), 1 << 20))
        with live_view(CONFIG, stream) as view:
            view.update(a_status(news=["read again"]))
        assert (full % 4096, os.read(reader.fileno(), 1 << 20)) == (0, b"read again\n")


def test_a_run_that_fails_has_no_last_lines() -> None:
    stream = io.StringIO()
    with pytest.raises(AttributeError, match="items"), live_view(CONFIG, stream) as view:
        view.update({**a_status(), "rows": None})
    assert stream.getvalue() == ""


def test_from_python_a_run_shows_itself_if_it_is_asked_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Beside the caller's own callbacks, and the same when it goes on."""
    config, heard = tiny_run(tmp_path / "run", stop__env_steps=300), Callbacks(on_status=lambda status: print("mine"))
    train(config, heard, progress=True)
    first, *others, how, where = capsys.readouterr().out.splitlines()
    assert first.startswith("2 actors of 4 environments")
    assert "mine" in others
    assert how.startswith("the step budget is used up: ")
    resume(tmp_path / "run", {"env_steps": 600}, heard)
    assert set(capsys.readouterr().out.splitlines()) == {"mine"}
    result = resume(tmp_path / "run", {"env_steps": 900}, heard, progress=True)
    *others, how, where = capsys.readouterr().out.splitlines()
    assert "mine" in others
    assert f"the step budget is used up: {result.env_steps:,} env steps, {result.updates:,} updates" in how
    assert where == f"weights: {result.weights}"


def test_in_a_notebook_the_cell_keeps_the_last_table_as_escaped_html(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """IPython is not needed for anything else: two names of it, made up here."""
    shown: list[str] = []
    cell = types.SimpleNamespace(update=shown.append)
    notebook = types.ModuleType("IPython.display")
    notebook.__dict__.update(HTML=str, display=lambda html, display_id: cell)
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", notebook)
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    with live_view(CONFIG) as view:
        view.update(a_status(env_steps=300, rows=ROWS, best=17.0, news=["actor_0: <script>"]))
        view.conclude(RESULT)
    assert shown[0].startswith("<pre")
    assert all(words in shown[0] for words in ("300 of 100,000 env steps", "actor 1", "&lt;script&gt;"))
    assert all(words in shown[-1] for words in ("400 of 100,000 env steps", "ended  60 updates", "18.0"))
    assert not any(words in html for html in shown for words in ("<script>", "\x1b"))
    assert capsys.readouterr().out.splitlines() == END
