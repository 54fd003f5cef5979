"""Made-up folders of runs, for what shows and lists them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from apex_acer.config import RunConfig
from apex_acer.config.runfile import dump_run


def made_up_rows(seed: int, level: float, num: int = 100, actors: int = 2) -> list[dict[str, Any]]:
    """Rows of every source: returns climb to `level`, the rest is noise; 100 steps and half a second between them."""
    random = np.random.default_rng(seed)
    rows: list[dict[str, Any]] = []
    best: dict[str, float] = {}
    for i in range(num):
        at = {"env_steps": 100 * (i + 1), "wall_s": 0.5 * (i + 1)}
        score = level * (1 - np.exp(-4 * i / num)) + random.normal(0, level / 15)
        if i % 5 == 4:
            best["best_return"] = max(score, best.get("best_return", score))
        names: tuple[str, ...] = ("loss", "policy_loss", "q_loss", "entropy", "average_policy_kl", "trust_region_share")
        names += ("grad_norm", "value", "q_ret", "policy_lag", "updates_per_s")
        names += ("time_learning", "time_taking", "time_saving", "time_waiting")
        rows.append({"source": "learner", **at, **{name: random.random() for name in names}, **best})
        for actor in range(actors):
            shares = {name: random.random() / 3 for name in ("time_environment", "time_policy", "time_waiting")}
            row = {"episode_return": 0.8 * score + actor, "policy_lag": int(random.integers(9))}
            rows.append({"source": f"actor_{actor}", **at, **row, **shares})
        if i % 5 == 4:
            rows.append({"source": "evaluator", **at, "eval_return": score})
    return rows


def make_up(folder: Path, config: RunConfig, rows: list[dict[str, Any]], end: dict[str, Any] | None = None) -> Path:
    """Writes a run's files; returns its folder."""
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(dump_run(config))
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (folder / "log.txt").touch()
    if end is not None:
        (folder / "result.json").write_text(json.dumps(end))
    return folder
