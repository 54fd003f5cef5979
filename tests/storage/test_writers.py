from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from apex_acer.config.runfile import parse_run
from apex_acer.storage.writers import Writers
from tests.boards import histograms, lines, scalars, session_starts, texts
from tests.runs import tiny_run

NAN, INFINITE = float("nan"), float("inf")


def test_rows_are_lines_and_boards(tmp_path: Path) -> None:
    writers = Writers(tmp_path)
    writers.write("learner", 100, 1.23456, {"loss": 0.5, "updates": 3})
    assert len(lines(tmp_path)) == 1
    writers.write("actor_0", 100, 1.5, {"episode_return": 20.0, "wall_s": 0.5, "source": 0.5})  # a user's own names
    writers.close()
    writers = Writers(tmp_path)  # another process
    writers.write("evaluator", 200, 2.0, {"loss": NAN, "value": -INFINITE})
    writers.close()
    assert lines(tmp_path) == [
        {"source": "learner", "env_steps": 100, "wall_s": 1.235, "loss": 0.5, "updates": 3},
        {"source": "actor_0", "env_steps": 100, "wall_s": 1.5, "episode_return": 20.0},
        {"source": "evaluator", "env_steps": 200, "wall_s": 2.0, "loss": None, "value": None},
    ]
    assert sorted(path.name for path in (tmp_path / "tb").iterdir()) == ["actor_0", "evaluator", "learner"]
    assert scalars(tmp_path, "learner") == {"loss": [(100, 0.5)], "updates": [(100, 3.0)]}
    assert scalars(tmp_path, "actor_0")["episode_return"] == [(100, 20.0)]
    found = scalars(tmp_path, "evaluator")
    assert found["value"] == [(200, -INFINITE)]
    assert math.isnan(found["loss"][0][1])


# ── a run that goes on ──


def write_up_to(writers: Writers, *env_steps: int) -> None:
    for steps in env_steps:
        writers.write("learner", steps, steps / 100, {"updates": float(steps)})
        writers.write("evaluator", steps - 50, steps / 100, {"eval_return": float(steps)})


def test_rows_written_since_the_checkpoint_are_dropped_and_boards_do_not_double_back(tmp_path: Path) -> None:
    """Also rows at its very step, and of evaluations that will come again."""
    before = Writers(tmp_path)
    write_up_to(before, 100, 200)
    length, kept = before.length, lines(tmp_path)
    assert length == (tmp_path / "metrics.jsonl").stat().st_size
    before.write("learner", 200, 2.5, {"updates": 250.0})  # from replay, without a further step
    before.write("evaluator", 150, 2.5, {"eval_return": 3.0})
    write_up_to(before, 300, 400)
    before.close()
    after = Writers(tmp_path, 200, length)  # in the same second, perhaps
    assert after.length == length
    assert lines(tmp_path) == kept
    after.write("learner", 200, 2.0, {"updates": 240.0})
    write_up_to(after, 201, 250)
    after.close()
    assert [line["env_steps"] for line in lines(tmp_path)] == [100, 50, 200, 150, 200, 201, 151, 250, 200]
    assert scalars(tmp_path, "learner")["updates"] == [(100, 100.0), (200, 240.0), (201, 201.0), (250, 250.0)]
    # TensorBoard hides what came at or after the step at which a run went on
    assert session_starts(tmp_path, "evaluator") == [201]
    assert session_starts(tmp_path, "learner") == [200]
    assert [step for step, _ in scalars(tmp_path, "evaluator")["eval_return"]][-2:] == [151, 200]


def test_a_folder_without_rows_or_with_fewer_is_gone_on_with(tmp_path: Path) -> None:
    writers = Writers(tmp_path, 200, 1000)
    writers.write("learner", 300, 0.0, {"loss": 1.0})
    writers.close()
    path = tmp_path / "metrics.jsonl"
    path.write_text(path.read_text() + '{"source": "lear')  # all that reached the disk before a power cut
    writers = Writers(tmp_path, 300, 1000)
    writers.write("learner", 400, 0.0, {"loss": 1.0})
    writers.close()
    assert [line["env_steps"] for line in lines(tmp_path)] == [300, 400]


# ── what a dashboard shows beside rows ──


def test_a_run_is_described_where_it_begins_and_where_it_goes_on(tmp_path: Path) -> None:
    config = tiny_run(tmp_path, algorithm__gamma=0.75, network__hidden_sizes=(32, 16))
    for resumed_at in (None, 200):
        writers = Writers(tmp_path, resumed_at, 10**6)
        writers.describe(config)
        write_up_to(writers, 300)
        writers.close()
    shown = texts(tmp_path, "learner")
    assert {tag: [step for step, _ in events] for tag, events in shown.items()} == {
        "custom_scalars__config__": [0, 200],
        "config/text_summary": [0, 200],
    }
    for _, text in shown["config/text_summary"]:
        assert text.startswith(b"```toml\n")
        assert text.endswith(b"```")
        assert parse_run(text[8:-3].decode(), "text") == dataclasses.replace(config, out="")


def test_histograms_count_every_weight_and_gradient_that_is_finite(tmp_path: Path) -> None:
    torch.manual_seed(1)
    first = nn.Linear(50, 20)
    network = nn.Sequential(first, nn.Linear(20, 2))
    first.weight.grad = torch.full((20, 50), 0.25)
    first.bias.grad = torch.full((20,), NAN)
    writers = Writers(tmp_path)
    writers.write_histograms(70, network)
    writers.close()
    found = histograms(tmp_path, "learner")
    layers = {f"weights/{layer}.{kind}" for layer in (0, 1) for kind in ("weight", "bias")}
    assert found.keys() == layers | {"gradients/0.weight"}
    ((at, shown),) = found["weights/0.weight"]
    weights = first.weight.detach().numpy()
    expected, edges = np.histogram(weights, len(shown.bucket))
    assert (at, shown.num, shown.min, shown.max) == (70, 1000, weights.min(), weights.max())
    np.testing.assert_allclose(shown.bucket_limit, edges[1:], rtol=1e-5)
    np.testing.assert_allclose(shown.bucket, expected, atol=1)  # float32 rounds an edge otherwise
    assert (shown.sum, shown.sum_squares) == pytest.approx((weights.sum(), (weights**2).sum()), rel=1e-4)
    ((_, equal),) = found["gradients/0.weight"]
    assert (equal.min, equal.max, sum(equal.bucket)) == (0.25, 0.25, 1000)
