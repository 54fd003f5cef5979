"""Several learners: each in a process of its own, connected by gloo."""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from apex_acer.config import RunConfig
from apex_acer.learner.learner import Learner
from apex_acer.learner.ranks import ALONE, LearnerLost, Ranks
from apex_acer.protocol.messages import Peer
from apex_acer.protocol.unroll import Unroll
from tests.ranks import Group, connected
from tests.runs import CARTPOLE, RUN_ID, Speaker, numbered_unroll, speakers, tiny_run

STEPS = 400  # of the loop, at most
Found = dict[str, Any]


def several(folder: Path, **changes: Any) -> RunConfig:
    return tiny_run(
        folder,
        **{"engine": "ray", "learner__count": 2, "learner__batch_size": 8, "stop__env_steps": 10_000, **changes},
    )


def make(config: RunConfig, ranks: Ranks, *, resume: bool = False) -> Learner:
    if ranks.rank == 0:
        Path(config.out).mkdir(exist_ok=True)
    return Learner(config, CARTPOLE, Path(config.out), RUN_ID, 0.0, resume=resume, ranks=ranks)


def unroll_of(config: RunConfig, number: int) -> Unroll:
    """Some end episodes, some steps are dummies: learners have different numbers of samples."""
    unroll = numbered_unroll(config, number)
    mask = np.random.default_rng(number).random(unroll.mask.shape) < 0.8
    return numbered_unroll(config, number, mask=mask)


def give(learner: Learner, speaker: Speaker, config: RunConfig, number: int) -> None:
    speaker.say(unroll=unroll_of(config, number), acting_s=0.0)


def go_on(learner: Learner, ranks: Ranks, limit: int = STEPS) -> bool:
    """Until nobody has anything to do; False where the run ended."""
    for _ in range(limit):
        if not learner.step(0.0):
            return False
        if not ranks.gather([not learner.idle]).any():
            return True
    raise AssertionError("still busy")


def facts(learner: Learner) -> Found:
    figures = learner._queue.figures()
    return {
        "tensors": {name: tensor.clone().numpy() for name, tensor in learner._trainer.algorithm.tensors().items()},
        "updates": learner.counters.updates,
        "env_steps": learner.counters.env_steps,
        "ratio": figures["replay_ratio"],
        "held": figures["replay_steps"],
    }


def train_on(ranks: Ranks, config: RunConfig, numbers: list[list[int]], poisoned: int | None = None) -> Found:
    """Each learner is given its own of the unrolls `numbers`, round by round."""
    learner = make(config, ranks)
    (speaker,) = speakers(learner, 1)
    for round_, everybodys in enumerate(numbers):
        for number in everybodys[ranks.rank :: ranks.count]:
            give(learner, speaker, config, number)
        if round_ == poisoned and ranks.rank == 1:
            # and it stays so: what is not finite times 0 is not, too
            learner._trainer.optimizer.gradient.fill_(float("nan"))
            with torch.no_grad():
                next(iter(learner._trainer.algorithm.network.parameters())).fill_(float("nan"))
        assert go_on(learner, ranks)
    found = facts(learner)
    learner.close()
    return found


def assert_close(a: Found, b: Found, *, exactly: bool = False) -> None:
    assert a["tensors"].keys() == b["tensors"].keys()
    for name, tensor in a["tensors"].items():
        if exactly:
            np.testing.assert_array_equal(tensor, b["tensors"][name], name)
        else:
            np.testing.assert_allclose(tensor, b["tensors"][name], rtol=2e-4, atol=2e-6, err_msg=name)


def test_two_learners_make_the_updates_of_one(pair: Group, tmp_path: Path) -> None:
    changes = {"algorithm__replay_ratio": 0.0, "optimizer__max_grad_norm": 0.1, "network__lstm": 8}
    rounds = [[2 * number, 2 * number + 1] for number in range(12)]
    first, second = pair.run(train_on, several(tmp_path / "two", **changes), rounds)
    assert_close(first, second, exactly=True)
    alone = train_on(ALONE, several(tmp_path / "one", engine="serial", learner__count=1, **changes), rounds)
    assert first["updates"] == alone["updates"] == 12
    assert first["env_steps"] == alone["env_steps"] > 300
    assert_close(first, alone)


def test_they_replay_as_much_as_one_does(pair: Group, tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "algorithm__replay_ratio": 3.0,
        "replay__start": 100,
        "algorithm__normalise_rewards": True,
        "network__normalise": True,
    }
    rounds = [[2 * number, 2 * number + 1] for number in range(30)]
    first, second = pair.run(train_on, several(tmp_path / "two", **changes), rounds)
    assert_close(first, second, exactly=True)
    alone = train_on(ALONE, several(tmp_path / "one", engine="serial", learner__count=1, **changes), rounds)
    assert first["held"] == second["held"] == alone["held"]
    assert first["updates"] == second["updates"]
    assert abs(first["updates"] - alone["updates"]) <= 3  # what a batch holds depends on what was drawn
    assert first["ratio"] == pytest.approx(3.0, abs=0.3)


@pytest.mark.parametrize(
    "changes",
    [{}, {"algorithm__name": "apex_dqn", "algorithm__n_steps": 2, "replay__sampling": "prioritized"}],
    ids=["acer", "apex_dqn"],
)
def test_a_learner_short_of_data_holds_up_nobody(pair: Group, tmp_path: Path, changes: dict[str, Any]) -> None:
    rounds = [[number] for number in range(30)]  # all of them the first one's
    first, second = pair.run(train_on, several(tmp_path, **changes), rounds)
    assert first["env_steps"] == second["env_steps"] > 400
    assert first["updates"] == second["updates"] > 20
    assert first["ratio"] == pytest.approx(1.0, abs=0.35)
    assert_close(first, second, exactly=True)


def test_what_is_not_finite_on_one_is_skipped_by_all(pair: Group, tmp_path: Path) -> None:
    rounds = [[0, 1], [2, 3], [4, 5]]
    config = several(tmp_path, algorithm__replay_ratio=0.0)
    first, second = pair.run(train_on, config, rounds, 2)
    assert first["updates"] == second["updates"] == 2


def write_save_and_resume(ranks: Ranks, config: RunConfig) -> tuple[list[Found], tuple[bool, int]]:
    """Each one's actor sends rows; the first one's manager ends the run, which two other learners go on with."""
    learner = make(config, ranks)
    (speaker,) = speakers(learner, 1)
    speaker.peer = Peer("actor", ranks.rank, 0)
    learner.inbox.expect({speaker.peer.name: 0})
    speaker.say(unroll=unroll_of(config, ranks.rank), acting_s=0.0, rows=[{"episodes": 10.0 + ranks.rank}])
    for number in range(1, 8):
        give(learner, speaker, config, 2 * number + ranks.rank)
        assert go_on(learner, ranks)
    if ranks.rank == 0:
        learner.inbox.stop("SIGINT")
    ended = not go_on(learner, ranks)
    learner.save()
    copy = dataclasses.replace(config, out=f"{config.out}/copy")
    if ranks.rank == 0:
        shutil.copytree(f"{config.out}/checkpoint", f"{copy.out}/checkpoint")
    found = [facts(learner), facts(make(copy, ranks, resume=True))]
    result = learner.finish()
    assert ranks.rank or result.reason == "SIGINT"
    return found, (ended, result.env_steps)


def test_the_first_one_writes_everybody_s_rows_ends_the_run_and_saves_it_for_all(pair: Group, tmp_path: Path) -> None:
    config = several(tmp_path, logging__every_seconds=100.0, optimizer__name="adam")
    found = pair.run(write_save_and_resume, config)
    for (before, resumed), (ended, env_steps) in found:
        assert ended
        assert env_steps == before["env_steps"]
        assert_close(before, resumed, exactly=True)
        assert resumed["updates"] == before["updates"] > 4
        assert resumed["env_steps"] == before["env_steps"]
        assert resumed["held"] == 0
    assert len(list(tmp_path.glob("checkpoint/*"))) == 1
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert {row["source"]: row.get("episodes") for row in rows} == {"actor_0": 10.0, "actor_1": 11.0, "learner": None}


def test_weights_are_read_by_the_first_one_alone(pair: Group, tmp_path: Path) -> None:
    alone = make(several(tmp_path / "one", engine="serial", learner__count=1, seed=3), ALONE)
    saved, written = alone.save(), facts(alone)
    alone.close()
    first, second = pair.run(train_on, several(tmp_path / "two", seed=4, load=str(saved)), [])
    assert_close(first, written, exactly=True)
    assert_close(first, second, exactly=True)


# ── connections ──


def listening_addresses(ranks: Ranks) -> list[str]:
    connected(ranks)
    inodes = {Path(f"/proc/self/fd/{fd.name}").readlink().name for fd in Path("/proc/self/fd").iterdir() if fd.exists()}
    found = []
    for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == "0A" and f"socket:[{rest[5]}]" in inodes:
                found.append(local.partition(":")[0])
    return found


@pytest.mark.skipif(not Path("/proc/self/net/tcp").exists(), reason="asks Linux")
def test_nothing_listens_beyond_the_machine(pair: Group) -> None:
    first, second = pair.run(listening_addresses)
    assert len(first) >= 2  # where they meet, and where gloo's connection is made
    assert {*first, *second} == {"0100007F"}


def fall_silent(ranks: Ranks) -> str:
    if ranks.rank:
        time.sleep(1.5)
        return ""
    try:
        connected(ranks)
    except LearnerLost as error:
        return str(error)
    return "nothing"


def test_a_silent_learner_is_noticed_at_the_deadline(pair: Group) -> None:
    assert "imed out" in pair.run(fall_silent, timeout_s=1.0)[0]
    assert pair.run(connected) == [2, 2]
