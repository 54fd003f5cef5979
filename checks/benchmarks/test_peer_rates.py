"""The comparison of rates, without the peers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from apex_acer.config.runfile import load_run, presets
from checks.benchmarks import peer_rates
from checks.benchmarks.peer_programs import OURS, Record, Venv
from checks.benchmarks.updates import Updates, box_spec, sized

PRESETS = [f"pendulum-{name}" for name in peer_rates.ALGORITHMS if f"pendulum-{name}" in presets()]


@pytest.mark.parametrize("preset", PRESETS)
def test_updates_are_made_without_end_from_a_batch_queue(preset: str) -> None:
    config = sized(load_run(preset), hidden=(8, 8), batch_size=16, env_steps=200, threads=1)
    updates = Updates(config, box_spec(obs=5, actions=2))
    assert updates.make(150) > 0  # more than the replay is worth at once
    assert updates.count == 150


def test_rates_are_compared_by_medians_with_the_same_threads(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rounds: dict[tuple[str, str], list[float]] = {
        (OURS, "0"): [30.0, 90.0, 80.0],
        (OURS, "1"): [50.0, 60.0, 70.0],
        (f"{OURS}_float32", "0"): [15.0, 16.0, 17.0],
        (f"{OURS}_float32", "1"): [45.0, 44.0, 46.0],
        ("sb3", "0"): [40.0, 20.0, 10.0],
        ("sb3", "1"): [30.0, 30.0, 31.0],
    }

    def answer(command: list[str], variables: dict[str, str]) -> Record:
        assert command[command.index("--obs") + 1] == "17"
        is_ours = "checks.benchmarks.updates" in command
        assert bool(variables) == is_ours
        name = "sb3" if not is_ours else f"{OURS}_float32" if "float32" in command else OURS
        return {"updates_per_s": rounds[name, command[command.index("--threads") + 1]].pop(0), "computes": "cpu"}

    monkeypatch.setattr(peer_rates, "last_json", answer)
    monkeypatch.setattr(Venv, "make", lambda self: None)
    monkeypatch.setattr(peer_rates, "versions", dict)
    path = tmp_path / "rates.json"
    assert peer_rates.main("continuous", rounds=3, seconds=1.0, cases=("HalfCheetah-v5 sac",), out=path) == 0
    written = json.loads(path.read_text())
    rates = {OURS: 80.0, f"{OURS}_float32": 16.0, "sb3": 20.0}
    rates |= {f"{OURS}_1_thread": 60.0, f"{OURS}_float32_1_thread": 45.0, "sb3_1_thread": 30.0}
    times = {OURS: 4.0, f"{OURS}_1_thread": 2.0, f"{OURS}_float32": 0.8, f"{OURS}_float32_1_thread": 1.5}
    assert written["cases"] == {"HalfCheetah-v5 sac": {"updates_per_s": rates, "times": times}}
    assert written["runs"][0] == {"case": "HalfCheetah-v5 sac", "peer": OURS, "updates_per_s": 30.0, "computes": "cpu"}
    assert [run["peer"] for run in written["runs"]] == list(rates) * 3
    assert capsys.readouterr().out.count("\n") == 19
