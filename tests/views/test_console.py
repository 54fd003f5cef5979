"""What is shown where there is no terminal, and in a notebook."""

from __future__ import annotations

import dataclasses
import io
import sys
import time
import types
from pathlib import Path

import pytest

from apex_acer.config import ActorsConfig, RunConfig
from apex_acer.manager.callbacks import Callbacks
from apex_acer.manager.manager import resume, train
from apex_acer.protocol.messages import Outcome
from apex_acer.views import console
from apex_acer.views.console import as_html, live_view
from apex_acer.views.progress import Progress
from tests.runs import a_status, tiny_run

CONFIG = RunConfig(actors=ActorsConfig(count=2))
ROWS = {
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


def test_a_file_gets_a_line_now_and_then_and_all_news(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as in a build's log: colours, but no terminal
    clock = [100.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: clock[0])
    stream = io.StringIO()
    with live_view(CONFIG, stream) as view:
        for second in range(8):
            clock[0] = 100.0 + second
            news = ["actor_1: killed by \x1b[1mSIGKILL"] if second == 3 else []
            view.update(a_status(env_steps=300, rows=ROWS, best=17.0, news=news))
        view.conclude(RESULT)
    assert stream.getvalue().splitlines() == [LINE, "actor_1: killed by \\x1b[1mSIGKILL", LINE, *END]


def test_continuous_actions_have_their_spread_in_the_line() -> None:
    learner = {"updates": 50.0, "entropy": -0.9, "action_std": 0.3, "q_loss": 0.25}
    stream = io.StringIO()
    with live_view(CONFIG, stream) as view:
        time.sleep(1.0)
        view.update(a_status(rows={"learner": learner}))
    assert stream.getvalue().endswith(" | action std 0.300, Q loss 0.25\n")


def test_updates_that_were_skipped_are_told_while_it_runs_and_at_the_end() -> None:
    stream = io.StringIO()
    rows = {**ROWS, "learner": ROWS["learner"] | {"skipped_updates": 83.0}}
    with live_view(CONFIG, stream) as view:
        time.sleep(1.0)
        view.update(a_status(env_steps=300, rows=rows, best=17.0))
        view.conclude(dataclasses.replace(RESULT, updates=65, skipped_updates=83))
    line, *end = stream.getvalue().splitlines()
    assert "| 50 updates (7/s), 83 skipped |" in line
    assert end[-1].startswith("83 of 148 updates were skipped because they were not finite")


def test_a_run_whose_every_update_was_skipped_says_that_nothing_was_learned() -> None:
    stream, result = io.StringIO(), dataclasses.replace(RESULT, updates=0, skipped_updates=83)
    with live_view(CONFIG, stream) as view:
        view.conclude(result)
    last = stream.getvalue().splitlines()[-1]
    assert last.startswith("nothing was learned: all 83 updates were skipped because they were not finite")
    assert result.exit_code == 1
    assert dataclasses.replace(result, updates=1).exit_code == 0
    assert dataclasses.replace(result, reason="SIGINT").exit_code == 130


def test_a_run_that_made_no_update_says_that_nothing_was_learned() -> None:
    stream = io.StringIO()
    with live_view(CONFIG, stream) as view:
        view.conclude(dataclasses.replace(RESULT, updates=0))
    assert stream.getvalue().splitlines()[-1].startswith("nothing was learned: no update was made")


def test_letters_that_a_stream_lacks_do_not_end_a_run() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    with live_view(CONFIG, stream) as view:
        view.update(a_status(news=["actor_0: größer ▁"]))
    assert stream.buffer.getvalue() == b"actor_0: gr??er ?\n"


def test_a_run_that_fails_has_no_last_lines() -> None:
    stream = io.StringIO()
    with pytest.raises(AttributeError, match="items"), live_view(CONFIG, stream) as view:
        view.update({**a_status(), "rows": None})
    assert stream.getvalue() == ""


def test_from_python_it_follows_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tiny_run(tmp_path / "run", stop__env_steps=4000, logging__every_seconds=0.01)
    with live_view(config) as view:
        view.conclude(train(config, Callbacks(on_status=view.update)))
    assert capsys.readouterr().out.splitlines()[-2].startswith("the step budget is used up: ")
    assert view.progress.rows.keys() >= {"learner"}


@pytest.mark.parametrize("again", [False, True], ids=["train", "resume"])
def test_from_python_a_run_shows_itself_if_it_is_asked_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], again: bool
) -> None:
    """Beside the caller's own callbacks."""
    config = tiny_run(tmp_path / "run", stop__env_steps=2000, logging__every_seconds=0.01)
    heard = Callbacks(on_status=lambda status: print("mine"))
    result = train(config, heard, progress=not again)
    if again:
        assert set(capsys.readouterr().out.splitlines()) == {"mine"}
        result = resume(tmp_path / "run", {"env_steps": 4000}, heard, progress=True)
    first, *others, how, where = capsys.readouterr().out.splitlines()
    assert first.startswith("2 actors of 4 environments")
    assert "mine" in others
    assert f"the step budget is used up: {result.env_steps:,} env steps, {result.updates:,} updates" in how
    assert where == f"weights: {result.weights}"


def test_in_a_notebook_the_cell_keeps_the_last_table(
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
        view.update(a_status(env_steps=300, rows=ROWS, best=17.0))
        view.conclude(RESULT)
    assert "300 of 100,000 env steps" in shown[0]
    for words in ("400 of 100,000 env steps", "ended  60 updates", "18.0"):
        assert words in shown[-1]
    assert capsys.readouterr().out.splitlines() == END


def test_a_notebook_s_table_is_escaped_html() -> None:
    with live_view(CONFIG, io.StringIO()) as view:
        view.update(a_status(env_steps=300, rows=ROWS, news=["actor_0: <script>"]))
    html = as_html(view.progress)
    assert html.startswith("<pre")
    assert "actor 1" in html
    assert "&lt;script&gt;" in html
    assert "<script>" not in html
    assert "\x1b" not in html


def test_remote_clients_are_counted_in_the_line_and_waited_for_in_the_table() -> None:
    stream, rows = io.StringIO(), {"actor_0": {"clients": 0.0}}
    with live_view(CONFIG, stream) as view:
        time.sleep(1.0)
        view.update(a_status(env_steps=300, rows=rows))
    assert " steps | 0/s | 0 clients | " in stream.getvalue()
    progress = Progress.before(CONFIG).after(a_status(rows=rows, states={"actor_0": "running", "actor_1": "running"}))
    assert progress.states == {"actor_0": "waiting: for a client", "actor_1": "running"}
