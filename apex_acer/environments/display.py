"""A window and a video file, both of which take frames `[H, W, 3]` uint8 one by one."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")  # it prints a greeting on standard output

import av
import numpy as np
import pygame
from av.container import OutputContainer
from av.filter import Graph
from av.video.format import VideoFormat

from apex_acer.config import ConfigError, require, writing
from apex_acer.protocol.specification import Array
from apex_acer.system import files

Show = Callable[[Array], None]
GIF_FPS = 50  # maximum: delays are in hundredths of a second, and browsers show one hundredth as ten
MP4_CRF = "18"  # constant rate factor: hardly distinguishable from the frames


class Closed(Exception):
    """The user has closed the window."""


@contextlib.contextmanager
def window(title: str, fps: int) -> Iterator[Show]:
    """Opens a window, and yields a function that shows a frame, at most `fps` a second.

    The function raises `Closed` once the user has closed the window. Raises `ConfigError` if there is no display.
    """
    _require_display()
    clock = pygame.time.Clock()

    def show(frame: Array) -> None:
        picture = pygame.surfarray.make_surface(frame.swapaxes(0, 1))
        surface = pygame.display.get_surface()
        if surface is None or surface.get_size() != picture.get_size():
            surface = pygame.display.set_mode(picture.get_size())
        surface.blit(picture, (0, 0))
        pygame.display.flip()
        clock.tick(fps)
        if pygame.event.get(pygame.QUIT):
            raise Closed

    try:
        pygame.display.set_caption(title)
        yield show
    finally:
        pygame.display.quit()


def _require_display() -> None:
    none = ConfigError("video: there is no display to open a window on; give --video out.mp4")
    named = any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"))
    if sys.platform.startswith("linux") and not named:
        raise none
    with contextlib.suppress(pygame.error):
        pygame.display.init()
    if not pygame.display.get_init() or pygame.display.get_driver() == "offscreen":
        raise none


@contextlib.contextmanager
def video(path: Path, fps: int) -> Iterator[Show]:
    """Writes a video to `path`, an .mp4 (H.264) or a .gif, and yields a function that adds a frame to it.

    The file appears at the end, complete, and not after an error; after a KeyboardInterrupt it has the frames up to there,
    which a note of the exception says. The function raises `ConfigError` for a frame of another size than the first. Odd
    sizes of an mp4 are padded by a row or column, because its colours are for four pixels each.
    """
    interrupt: KeyboardInterrupt | None = None
    with files.replacing(path) as beside, _opened(path, beside) as container:
        # environments that draw with pygame need no display
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        rate = min(fps, GIF_FPS) if path.suffix == ".gif" else fps
        encoder: _Encoder | None = None

        def show(frame: Array) -> None:
            nonlocal encoder
            encoder = encoder or _Encoder(container, path.suffix, rate, frame)
            encoder.encode(frame)

        try:
            yield show
        except KeyboardInterrupt as pressed:
            if not encoder:
                raise
            interrupt = pressed
        if encoder:
            encoder.finish()
    if interrupt:
        interrupt.add_note(f"video: {path}")
        raise interrupt


def _opened(path: Path, beside: Path) -> OutputContainer:
    with writing("video", path):
        return av.open(str(beside), "w", format=path.suffix[1:])


def check_video(path: Path) -> None:
    """Raises `ConfigError` if no video can be written to `path`."""
    require(path.suffix in (".mp4", ".gif"), "video", str(path), "give a name that ends in .mp4 or .gif")
    with writing("video", path):
        writable = path.parent.is_dir() and os.access(path.parent, os.W_OK) and not path.is_dir()
    require(writable, "video", str(path), "give a file in a folder that exists and is writable")


class _Encoder:
    """Encodes frames of one size into a container by ffmpeg's filters and encoder."""

    def __init__(self, container: OutputContainer, kind: str, fps: int, frame: Array) -> None:
        self._container, self._frame_time, self._num, self._shape = container, Fraction(1, fps), 0, frame.shape
        height, width = frame.shape[:2]
        self._filters = _filters(kind, width, height, self._frame_time)
        self._stream: Any = container.add_stream("gif" if kind == ".gif" else "libx264", rate=fps)
        if kind == ".gif":
            self._stream.width, self._stream.height, self._stream.pix_fmt = width, height, "pal8"
        else:
            self._stream.width, self._stream.height = width + width % 2, height + height % 2
            self._stream.pix_fmt, self._stream.options = "yuv420p", {"crf": MP4_CRF}

    def encode(self, frame: Array) -> None:
        if frame.shape != self._shape:  # ffmpeg would abort the process
            size, first = (f"{width} x {height}" for height, width, _ in (frame.shape, self._shape))
            raise ConfigError(f"video: a frame has {size} pixels, the first one had {first}; draw all in one size")
        picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")
        picture.pts, picture.time_base = self._num, self._frame_time
        self._num += 1
        self._filters.push(picture)
        self._write()

    def finish(self) -> None:
        self._filters.push(None)
        self._write()
        self._container.mux(self._stream.encode(None))

    def _write(self) -> None:
        with contextlib.suppress(BlockingIOError, EOFError):  # the filters need another frame, or are empty at the end
            while True:
                self._container.mux(self._stream.encode(self._filters.pull()))


def _filters(kind: str, width: int, height: int, frame_time: Fraction) -> Graph:
    graph = Graph()
    source = graph.add_buffer(width=width, height=height, format=VideoFormat("rgb24"), time_base=frame_time)
    sink = graph.add("buffersink")
    if kind == ".gif":  # with a palette of 256 colours for each frame
        split, colours = graph.add("split"), graph.add("palettegen", "stats_mode=single")
        use = graph.add("paletteuse", "new=1:dither=none")
        source.link_to(split)
        split.link_to(use, 0, 0)
        split.link_to(colours, 1, 0)
        colours.link_to(use, 0, 1)
        use.link_to(sink)
    else:
        graph.link_nodes(source, graph.add("pad", "ceil(iw/2)*2:ceil(ih/2)*2"), graph.add("format", "yuv420p"), sink)
    graph.configure()
    return graph
