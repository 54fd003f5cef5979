"""Records moving pictures: the live view of a run, and a trained agent. `python -m docs.pictures live agent` writes them."""

from __future__ import annotations

import io
import re
import tempfile
from pathlib import Path

from PIL import Image, ImageSequence

from apex_acer import Callbacks, RunConfig, live_view, load_run, train
from apex_acer.cli import main as apex_acer
from apex_acer.protocol.messages import Status
from apex_acer.views.console import recorded
from apex_acer.views.progress import Progress

IMAGES = Path(__file__).parent / "images"
COMMAND = "apex-acer train cartpole --actors 3 --steps 40000 --until 1000"
SIZE = 96, 24  # columns, and lines at most
FRAMES, FRAME_S, LAST_S = 16, 0.5, 3.0
AGENT = "lunarlander-ppo"
AGENT_FPS, AGENT_WIDTH, AGENT_COLOURS = 16, 360, 48  # a delay is a number of hundredths of a second


def live() -> None:
    """Trains by COMMAND in a folder that is gone afterwards, and writes images/live.svg."""
    with tempfile.TemporaryDirectory() as folder:
        changes = {"actors": {"count": 3}, "stop": {"env_steps": 40_000, "at_return": 1000.0}}
        shown = progress_of(load_run("cartpole", out=folder, **changes))
    last = len(shown) - 1
    pictures = [recorded(shown[round(last * i / (FRAMES - 1))], *SIZE) for i in range(FRAMES)]
    frames = [each.export_svg(title=COMMAND, unique_id=f"frame{i}") for i, each in enumerate(pictures)]
    (IMAGES / "live.svg").write_text(animated(frames), encoding="utf-8")


def progress_of(config: RunConfig) -> list[Progress]:
    """The progress at each status of a whole run while all of its processes were running."""
    shown = []
    with live_view(config, io.StringIO()) as view:

        def look(status: Status) -> None:
            view.update(status)
            if set(status["states"].values()) == {"running"}:
                shown.append(view.progress)

        train(config, Callbacks(on_status=look))
    return shown


def animated(frames: list[str]) -> str:
    """One SVG that shows the SVGs `frames` in turn, for FRAME_S each, the last for LAST_S, without end.

    Fonts that the frames would load are left out, because a picture in a page may load nothing.
    """
    total = FRAME_S * (len(frames) - 1) + LAST_S
    styles, groups = [], []
    for number, frame in enumerate(frames):
        begin, end = (100 * FRAME_S * n / total for n in (number, number + 1))
        hidden = f"{end:.2f}% {{ visibility: hidden }}" if number < len(frames) - 1 else ""
        styles.append(
            f"@keyframes show{number} {{ 0% {{ visibility: {'hidden' if number else 'visible'} }} "
            f"{begin:.2f}% {{ visibility: visible }} {hidden} }}\n"
            f"#picture{number} {{ animation: show{number} {total}s step-end infinite }}"
        )
        body = re.sub(r"@font-face \{.*?\}", "", frame, flags=re.DOTALL)
        groups.append(f'<g id="picture{number}">{body}</g>')
    head = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="{} {} {} {}">'.format(*_box(frames[-1]))
    return "\n".join([head, f"<style>{' '.join(styles)}</style>", *groups, "</svg>\n"])


def _box(svg: str) -> list[str]:
    match = re.search(r'viewBox="([^"]+)"', svg)
    assert match
    return match[1].split()


def agent() -> None:
    """Trains AGENT and writes one of its games as images/agent.gif, smaller and with fewer colours than a video."""
    with tempfile.TemporaryDirectory() as folder:
        result = train(AGENT, out=f"{folder}/run", progress=True)
        play(result.weights, Path(folder) / "game.gif")


def play(weights: str, video: Path) -> None:
    """Plays one game with `weights` and writes it as images/agent.gif; `video` is a file in between."""
    assert apex_acer(["play", weights, "--video", str(video), "--seed", "1"]) == 0
    with Image.open(video) as game:
        every = round(1000 / game.info["duration"] / AGENT_FPS)
        size = AGENT_WIDTH, AGENT_WIDTH * game.height // game.width
        images = [frame.convert("RGB").resize(size) for frame in ImageSequence.Iterator(game)][::every]
    reduced = [image.quantize(AGENT_COLOURS, dither=Image.Dither.NONE) for image in images]
    reduced[0].save(
        IMAGES / "agent.gif",
        save_all=True,
        append_images=reduced[1:],
        duration=10 * (100 // AGENT_FPS),
        loop=0,
        optimize=True,
    )
