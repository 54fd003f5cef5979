"""The examples of docs/: each runs, and the pages show them as they are."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from apex_acer.actor.policy import load_policy
from apex_acer.config.runfile import load_run
from apex_acer.manager.manager import resume, train
from tests import ROOT
from tests.algorithms.learning import loss_of
from tests.algorithms.segments import CPU, random_segments
from tests.algorithms.windows import spec
from tests.conftest import config_error
from tests.runs import tiny_run

DOCS = ROOT / "docs"
EXAMPLES = DOCS / "examples"
OWN = {"network__torso": "residual:Residual", "optimizer__name": "residual:make_optimizer"}
SHOWN = {
    "corridor.py": "own-environment.md",
    "tic_tac_toe.py": "own-environment.md",
    "expected_sarsa.py": "own-algorithm.md",
    "expected_sarsa.toml": "own-algorithm.md",
}


@pytest.fixture(autouse=True)
def _examples_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)


def test_pages_show_the_examples() -> None:
    """Their other code is run by test_code_blocks.py."""
    for name, page in SHOWN.items():
        text = (EXAMPLES / name).read_text(encoding="utf-8")
        assert f"\n{text}```\n" in (DOCS / page).read_text(encoding="utf-8"), name


@pytest.mark.parametrize("engine", ["serial", pytest.param("local", marks=pytest.mark.slow)])
def test_an_environment_of_one_s_own_is_learned(tmp_path: Path, engine: str, capfd: pytest.CaptureFixture[str]) -> None:
    """3 steps are enough, which pay 0.7; chance takes 20, and pays below 0."""
    config = tiny_run(
        tmp_path,
        engine=engine,
        environment__id="corridor:Corridor-v0",
        environment__kwargs='{"length": 7}',
        environment__wrappers=["corridor:hurry"],
        evaluation__every=500,
        evaluation__greedy=False,
        optimizer__learning_rate=3e-3,
        stop__env_steps=20_000,
        stop__at_return=0.5,
        learner__callback="watching:watch_norms",
    )
    result = train(config)
    assert result.reason == "at_return"
    # a function looks at the network in the learner's process
    said = capfd.readouterr().out if engine == "serial" else (tmp_path / "log.txt").read_text()
    assert re.search(r"\d+ steps, entropy 0\.\d+: {'.*weight': \d+\.\d+", said)
    policy = load_policy(result.weights)
    assert [policy.act([x / 3]) for x in range(3)] == [1] * 3


def expected_sarsa(**settings: Any) -> Any:
    """The algorithm of docs/examples, the same weights each time."""
    from expected_sarsa import ExpectedSarsa

    algorithm = {"name": "expected_sarsa:ExpectedSarsa", "unroll_length": 8} | settings
    torch.manual_seed(0)
    return ExpectedSarsa.make(load_run("cartpole", network={"normalise": False}, algorithm=algorithm), spec(), CPU)


def test_an_algorithm_of_one_s_own_shapes_rewards_as_all_do_and_has_dummy_steps_in_no_mean() -> None:
    batch, _ = random_segments(stack=1, dtype=torch.float32)
    mask = batch.mask
    shaped = batch.reward.clamp(-0.5, 0.5) - 0.25 * batch.terminated
    assert not mask.all()
    assert (shaped != batch.reward)[mask].any()
    algorithm = expected_sarsa(reward_clip=0.5, terminal_penalty=0.25)
    found = loss_of(algorithm, batch)
    with torch.no_grad():
        q = torch.stack([algorithm.network(obs).q_values for obs in batch.obs])
    value = (q.softmax(-1) * q).sum(-1)
    target = shaped + 0.99 * value[1:] * ~batch.terminated
    error = target - q[:-1].gather(-1, batch.action.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(found.metrics["value"], value[:-1][mask].mean())
    torch.testing.assert_close(found.priorities, (error.abs() * mask).sum(0) / mask.sum(0))
    other = loss_of(algorithm, dataclasses.replace(batch, reward=torch.where(mask, batch.reward, 9.0)))
    assert torch.equal(found.loss, other.loss)
    plain = loss_of(expected_sarsa(), dataclasses.replace(batch, reward=shaped))
    assert torch.equal(found.loss, plain.loss)


def test_an_algorithm_of_one_s_own_explores_at_its_actors_temperatures_and_refuses_an_lstm() -> None:
    from expected_sarsa import ExpectedSarsa

    algorithm = {"name": "expected_sarsa:ExpectedSarsa", "temperature": 0.5}
    config = load_run("cartpole", algorithm=algorithm, actors={"count": 2, "temperature_high": 4.0})
    agent = ExpectedSarsa.agent_class(config, spec())
    torch.manual_seed(0)
    for parameter in agent.network.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    obs, generator = torch.ones(5000, *spec().obs_shape), torch.Generator().manual_seed(0)
    for actor, temperature in ((None, 0.5), (0, 0.5), (1, 2.0)):
        exploration = agent.exploration(len(obs), actor)
        action = agent.act(obs, {}, greedy=False, exploration=exploration, generator=generator, updates=1).action
        expected = (agent.network(obs[:1]).q_values[0] / temperature).softmax(-1)
        torch.testing.assert_close(action.bincount(minlength=len(expected)) / len(obs), expected, rtol=0, atol=0.03)
    message = config_error(lambda: load_run("cartpole-memory", algorithm=algorithm))
    assert message.endswith("network.lstm: 64 is not allowed; expected_sarsa:ExpectedSarsa has no memory; give 0")


def test_a_torso_and_an_optimizer_of_one_s_own_go_on_exactly_after_a_resume(tmp_path: Path) -> None:
    """Bit for bit the run that was not stopped."""
    own: dict[str, Any] = OWN | {"network__lstm": 8, "checkpoint__replay": True, "checkpoint__every": 600}
    whole = train(tiny_run(tmp_path / "whole", **own, stop__env_steps=1200))
    train(tiny_run(tmp_path / "parts", **own, stop__env_steps=600))
    parts = resume(tmp_path / "parts", {"env_steps": 1200})
    one, other = (load_policy(result.weights).network for result in (whole, parts))
    assert type(one.torso).__name__ == "Residual"
    assert whole.updates == parts.updates > 100
    for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.slow
def test_a_torso_an_optimizer_and_a_wrapper_of_one_s_own_are_used_in_every_process(tmp_path: Path) -> None:
    steps = {"evaluation__every": 500, "stop__env_steps": 5000}  # long enough for the evaluator to have played
    wrapped = {"environment__id": "Pendulum-v1", "environment__wrappers": ["torques:fine"]}
    config = tiny_run(tmp_path, engine="local", learner__precision="bfloat16", **OWN, **wrapped, **steps)
    result = train(config)
    assert result.updates > 50
    assert result.eval_return is not None
    assert result.policy.spec.num_actions == 11
    assert type(load_policy(result.weights, True).network.torso).__name__ == "Residual"
