"""What makes a run of the benchmark count."""

from __future__ import annotations

import pytest

from tests.benchmarks.bench import judge

RATES = {"acting": 1000.0, "forward": 9000.0, "update": 3000.0, "environment": 1.0, "replay": 1e6}


@pytest.mark.parametrize(("factor", "void"), [(1.0, []), (1.04, []), (0.9, ["update"]), (1.2, ["update"])])
def test_a_run_is_void_if_the_machine_changed_around_it(factor: float, void: list[str]) -> None:
    after = RATES | {"update": factor * RATES["update"]}
    found = judge({"env_steps_per_s": 100.0}, "pong", 4.0, "cpu", (RATES, after))
    assert list(found["void"]) == void
    assert found["achieved"] == pytest.approx(100.0 / found["ceiling"])
    steady = judge({"env_steps_per_s": 100.0}, "pong", 4.0, "cpu", (RATES, RATES))
    assert (found["ceiling"] > steady["ceiling"]) == (factor > 1)
