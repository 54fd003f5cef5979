"""`make soak MINUTES=30`: whether the memory and the open files of every process of a long run stay flat.

Trains for so long, looks at each process once a second, writes `build/soak/` (`samples.json`, `memory.png`, `files.png`)
and ends with 1 where a process grew after the first third of the run.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import theilslopes

from apex_acer.config.runfile import dump_run, load_run
from apex_acer.views.curves import Line, Panel
from apex_acer.views.plots import plot_curves
from tests.processes import processes, resident_mb

OUT = Path("build/soak")
WARM_UP = 1 / 3  # of the run: replay fills, torch and malloc take what they keep
MAX_MB_PER_MINUTE = 1.0
BIN_S = 10.0  # samples are taken together by their median, so that a moment's peak is no growth
END_S = 60.0

Sample = tuple[float, float, int]
"""Seconds since the start, MB resident, open files."""


def main() -> int:
    """Runs the soak; 0 where everything stayed flat."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--run", default="cartpole", help="a preset or a run file")
    arguments = parser.parse_args()
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    samples = train_and_watch(arguments.run, 60 * arguments.minutes)
    figures = {name: judge(series) for name, series in samples.items() if len(series) > 30}
    (OUT / "samples.json").write_text(json.dumps({"figures": figures, "samples": samples}, indent=1))
    draw(OUT, samples)
    for name, figure in figures.items():
        print(f"{name:<24}", "  ".join(f"{key} {value}" for key, value in figure.items()))
    grown = [name for name, figure in figures.items() if not figure["flat"]]
    print(f"grew: {', '.join(grown)}" if grown else "all flat")
    return 1 if grown or not figures else 0


def train_and_watch(run: str, seconds: float) -> dict[str, list[Sample]]:
    """Trains for `seconds`; what was seen of each process, by name and pid."""
    config = load_run(run)
    stop = dataclasses.replace(config.stop, env_steps=10**12, minutes=None, at_return=None)
    save = dataclasses.replace(config.checkpoint, every=20_000)
    config = dataclasses.replace(config, out=str(OUT / "run"), stop=stop, checkpoint=save, engine="local")
    (OUT / "run.toml").write_text(dump_run(config))
    command = [sys.executable, "-m", "apex_acer", "train", str(OUT / "run.toml")]
    samples: dict[str, list[Sample]] = {}
    start = time.monotonic()
    with (OUT / "output.txt").open("w") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        try:
            while (now := time.monotonic() - start) < seconds and process.poll() is None:
                for name, pid in processes(process.pid).items():
                    look(samples.setdefault(f"{name} ({pid})", []), now, pid)
                time.sleep(max(0.0, 1.0 - (time.monotonic() - start - now)))
            if process.poll() is not None:
                sys.exit(f"the run ended early: {(OUT / 'output.txt').read_text()[-2000:]}")
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
    return samples


def look(series: list[Sample], now: float, pid: int) -> None:
    """Adds what `/proc` says of a process."""
    with contextlib.suppress(OSError):
        series.append((now, resident_mb(pid), len(list(Path(f"/proc/{pid}/fd").iterdir()))))


def judge(series: Sequence[Sample]) -> dict[str, Any]:
    """Slopes after the warm-up (Theil and Sen's, with its 95 % interval), and whether they are flat."""
    seconds, megabytes, files = binned(series)
    kept = seconds >= seconds[0] + WARM_UP * (seconds[-1] - seconds[0])
    slope, _, low, high = theilslopes(megabytes[kept], seconds[kept] / 60)
    half = np.flatnonzero(kept)[: kept.sum() // 2], np.flatnonzero(kept)[kept.sum() // 2 :]
    before, after = (int(files[part].max()) for part in half)
    return {
        "MB": round(float(megabytes[-1]), 1),
        "MB/min": round(float(slope), 3),
        "from": round(float(low), 3),
        "to": round(float(high), 3),
        "files": before,
        "files later": after,
        "flat": bool(slope <= MAX_MB_PER_MINUTE and after <= before),
    }


def binned(series: Sequence[Sample]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Seconds and medians of the samples in each `BIN_S`."""
    seconds, megabytes, files = np.array(series).T
    bins = (seconds // BIN_S).astype(int)
    groups = [bins == number for number in np.unique(bins)]
    return tuple(np.array([np.median(values[group]) for group in groups]) for values in (seconds, megabytes, files))  # type: ignore[return-value]


def draw(folder: Path, samples: dict[str, list[Sample]]) -> None:
    """Two figures: memory and open files."""
    for file, label, column in (("memory", "MB resident", 1), ("files", "open files", 2)):
        lines = []
        for name, series in samples.items():
            values = np.array(series)
            lines.append(Line(name, values[:, 0] / 60, values[:, column], values[:, column], values[:, column]))
        (folder / f"{file}.png").write_bytes(plot_curves("soak", label, [Panel("minutes", lines)]))


if __name__ == "__main__":
    sys.exit(main())
