"""What makes a run of the benchmark count."""

from __future__ import annotations

import pytest

from checks.benchmarks.bench import cores, judge

RATES = {"acting": 1000.0, "forward": 9000.0, "update": 3000.0, "environment": 1.0, "replay": 1e6}


@pytest.mark.parametrize(("factor", "void"), [(1.0, []), (1.04, []), (0.9, ["update"]), (1.2, ["update"])])
def test_a_run_is_void_if_the_machine_changed_around_it(factor: float, void: list[str]) -> None:
    after = RATES | {"update": factor * RATES["update"]}
    found = judge({"env_steps_per_s": 100.0}, "pong", 4.0, "cpu", (RATES, after))
    assert list(found["void"]) == void
    assert found["achieved"] == pytest.approx(100.0 / found["ceiling"])
    steady = judge({"env_steps_per_s": 100.0}, "pong", 4.0, "cpu", (RATES, RATES))
    assert (found["ceiling"] > steady["ceiling"]) == (factor > 1)


def test_the_cores_in_use_are_counted_until_a_process_ends() -> None:
    spent = [(10.0, {"actor_0": 1.0, "idle": 4.0}), (14.0, {"actor_0": 3.0, "idle": 5.0}), (15.0, {"idle": 6.0})]
    assert cores(spent) == {"actor_0": 0.5, "idle": 0.25}
