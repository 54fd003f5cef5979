"""The live view as a user meets it: a real run in a real shell on a terminal."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import re
import signal
from pathlib import Path
from types import FrameType

import pytest
from rich.console import Console

from apex_acer.views.terminal import Terminal as View
from tests.programs import eventually
from tests.terminals import PROMPT, Terminal, terminal

ENDLESS = "apex-acer train cartpole --actors 2 --steps 100000000 --until 1000 --out run --logging.every-seconds 0.3"
ENDLESS += " --evaluation.every 300 --evaluation.episodes 2"
BAR = r"%.* of 100,000,000 env steps"
ROWS = (
    BAR,
    r"^ +state +restarts +steps/s +lag +waiting +last +best +returns",
    r"^actor 0 +running",
    r"^actor 1 +running",
)
SPARKS = "[▁▂▃▄▅▆▇█]{2,}"


SCRIPT = """
from apex_acer import Callbacks, train

calls = Callbacks(on_evaluation=lambda it: print("scored", it.env_steps))
stop = {"env_steps": 10**8, "at_return": 1000.0}
often = {"logging": {"every_seconds": 0.3}, "evaluation": {"every": 1000}}
train("cartpole", calls, progress=True, out="run", actors={"count": 2}, stop=stop, **often)
"""


def assert_ended(screen: Terminal, reason: str) -> None:
    """The last two lines follow the table, and then there is only the shell."""
    screen.wait_for(f"^{PROMPT.rstrip()}$", "^weights: ")
    end = next(index for index, line in enumerate(screen.lines) if line.startswith(reason))
    assert screen.lines[end + 1].startswith("weights: ")
    assert screen.lines[-1] == PROMPT.rstrip()
    assert_the_table_agrees_with(screen, screen.lines[end])
    screen.assert_as_before()


def test_a_run_is_seen_and_keys_do_no_harm(tmp_path: Path) -> None:
    """Also an actor that is killed: why, and that it comes back."""
    with terminal(tmp_path) as screen:
        screen.type(f"{ENDLESS}\r")
        screen.wait_for(*ROWS)
        screen.wait_for(f"^actor 0 .* {SPARKS}$", f"^evaluator +running .* {SPARKS}$", "^replay +━.*4,000 steps")
        screen.wait_for(
            r"^learner +running .* updates, .*/s +Q loss .* entropy", "bottleneck|balance", r" left .*steps/s"
        )
        assert not screen.echoes

        screen.type("junk\r\r\r\x1b[A\tjunk")
        os.kill(screen.program()["actor_0"], signal.SIGKILL)
        screen.wait_for("actor_0: killed by SIGKILL; restart 1 of 10")
        screen.wait_for("^actor 0 +running +1 ")
        assert len(screen.find("^waiting ")) == 1
        screen.type("\x03")
        assert_ended(screen, "interrupted: ")
        assert not screen.find("junk")
        screen.wait_for("SIGINT: saving")


@pytest.mark.slow
def test_a_script_is_suspended_resized_in_the_background_and_terminated(tmp_path: Path) -> None:
    """What it prints itself comes above the table."""
    (tmp_path / "mine.py").write_text(SCRIPT)
    with terminal(tmp_path) as screen:
        screen.type("python mine.py\r")
        screen.wait_for(*ROWS, "^scored ")
        screen.resize(60, 10)
        screen.wait_for("^ +state +steps/s +last +best +returns")
        screen.resize(120, 24)
        screen.wait_for(*ROWS)
        screen.wait_until(lambda: len(screen.find("^waiting ")) == 1)

        screen.type("\x1a")
        screen.wait_for(f"^{PROMPT.rstrip()}$")
        screen.assert_as_before()
        roles = screen.program().keys() - {"manager", "launcher"}
        assert len(roles) >= 2
        screen.wait_until(lambda: stopped(screen) == {"manager", *roles})

        screen.type("clear; bg; echo still here\r")
        screen.wait_for("^still here")
        logged = (tmp_path / "run" / "metrics.jsonl").stat().st_size
        screen.wait_until(lambda: (tmp_path / "run" / "metrics.jsonl").stat().st_size > logged + 2000)
        assert not screen.find(BAR)
        screen.assert_as_before()
        screen.type("fg\r")
        screen.wait_for("^still here", *ROWS)
        assert len(screen.find("^waiting ")) == 1
        assert not screen.echoes
        assert stopped(screen) == set()

        screen.wait_for("^scored ")
        os.kill(screen.program()["manager"], signal.SIGTERM)
        assert_ended(screen, "terminated: ")
        (bar,) = screen.find(BAR)
        table = screen.lines.index(bar)
        assert all(screen.lines.index(line) < table for line in screen.find("^scored "))


def stopped(screen: Terminal) -> set[str]:
    """The processes of the run that Ctrl-Z has stopped."""
    states = {name: Path(f"/proc/{pid}/stat").read_text() for name, pid in screen.program().items()}
    return {name for name, stat in states.items() if stat.rpartition(")")[2].split()[0] == "T"}


def assert_the_table_agrees_with(screen: Terminal, summary: str) -> None:
    """The last picture shows the end of the run and nothing older."""
    numbers = re.search(r"([\d,]+) env steps, ([\d,]+) updates [^,]+(?:, evaluation ([\d.]+))?", summary)
    assert numbers, summary
    steps, updates, evaluation = numbers.groups()
    patterns = [rf" {steps} of .* env steps", rf"^learner +ended  {updates} updates"]
    patterns += [rf"^evaluator +ended .* {float(evaluation):.1f} "] if evaluation else []
    for pattern in patterns:
        assert len(screen.find(pattern)) == 1, "\n".join([pattern, *screen.lines])


class Printed(io.TextIOWrapper):
    """A terminal's file; Ctrl-Z is pressed while a score is written."""

    def write(self, text: str) -> int:
        if "scored" in text:
            os.kill(os.getpid(), signal.SIGTSTP)
        return super().write(text)


def test_a_program_that_is_stopped_while_it_prints_leaves_the_terminal_as_before() -> None:
    """It has the console's lock then, which the thread that draws may wait for."""
    controller, fd = pty.openpty()
    os.set_blocking(controller, False)
    seen, stopped = bytearray(), list[bytes]()

    def shows(text: bytes) -> bool:
        with contextlib.suppress(BlockingIOError):
            seen.extend(os.read(controller, 65536))
        return text in seen

    def stop(number: int, frame: FrameType | None) -> None:
        eventually(lambda: shows(b"\x1b[?25h"), 10.0)  # the kernel hands over what was written a little later
        stopped.append(bytes(seen))
        seen.clear()

    before = signal.signal(signal.SIGTSTP, stop)
    try:
        with Printed(open(fd, "wb"), "utf-8") as file, View(Console(file=file), lambda: "table"):
            eventually(lambda: shows(b"table"), 10.0)
            print("scored 1")
            eventually(lambda: stopped, 10.0)
            assert stopped[0].endswith(b"\x1b[?25h"), "the cursor is shown"
            eventually(lambda: shows(b"table"), 10.0)
    finally:
        signal.signal(signal.SIGTSTP, before)
        os.close(controller)
    assert len(stopped) == 1
