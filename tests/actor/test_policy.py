"""A policy and its file: how it acts on one observation and on many, and what of a file is refused."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import apex_acer
from apex_acer.actor.policy import Policy, load_policy
from apex_acer.cli import main
from apex_acer.config import ConfigError, EnvironmentConfig, NetworkConfig, RunConfig, UnreadConfig
from apex_acer.config.runfile import from_dict
from apex_acer.manager.manager import train
from apex_acer.networks.metadata import describe
from apex_acer.networks.weights import named_tensors, pack, unpack, write
from apex_acer.protocol.planes import to_planes
from apex_acer.system import imports
from tests.conftest import COUNTDOWN, config_error, play, run_config
from tests.environments_for_tests import Clock, register
from tests.runs import CARTPOLE, tiny_run

RANDOM = np.random.default_rng(0)
CARTPOLE_RUN = run_config(id="CartPole-v1")
RECURRENT_RUN = dataclasses.replace(CARTPOLE_RUN, network=NetworkConfig(lstm=16))


def image_config(stack: int = 1, **kwargs: Any) -> RunConfig:
    kwargs = {"shape": [12, 10, 3], "dtype": "uint8", "num_actions": 4} | kwargs
    return run_config(id=COUNTDOWN, stack=stack, kwargs=json.dumps(kwargs))


def saved(folder: Path, config: RunConfig, sharpness: float = 300.0, **changes: Any) -> tuple[Path, Policy]:
    """A weights file and the policy that is in it, whose actions depend on what it sees."""
    environments, policy = play(config, 1, sharpness=sharpness)
    environments.close()
    path = folder / "weights.safetensors"
    metadata = describe(config, policy.spec, env_steps=123, updates=4) | changes
    write(path, pack(named_tensors(policy.network, "network"), metadata))
    return path, policy


def logits(policy: Policy, obs: Any) -> Any:
    return policy.network(torch.as_tensor(obs)).pi_logits


def test_a_policy_comes_back_from_its_file(tmp_path: Path) -> None:
    config = dataclasses.replace(CARTPOLE_RUN, seed=9, out=str(tmp_path), load="else")
    path, policy = saved(tmp_path, config)
    loaded = apex_acer.load_policy(str(path))
    assert loaded.spec == policy.spec
    assert loaded.config == dataclasses.replace(config, out="", load="")
    assert loaded.metadata["env_steps"] == 123
    assert str(tmp_path) not in json.dumps(loaded.metadata)
    assert not loaded.network.training
    output: Any = loaded.network(torch.randn(5, 4))
    assert output._fields == ("pi_logits", "q_values")
    assert output.pi_logits.shape == output.q_values.shape == (5, 2)


def test_a_policy_is_loaded_in_a_process_that_was_forked(tmp_path: Path) -> None:
    """Whose threads of torch, which the process before it has used, are not there."""
    path, _ = saved(tmp_path, CARTPOLE_RUN)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    torch.linalg.qr(torch.rand(500, 500))
    if not (child := os.fork()):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)
        code = 1
        with contextlib.suppress(BaseException):
            load_policy(path)
            code = torch.get_num_threads()
        os._exit(code)
    torch.set_num_threads(threads)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2


class Doubles(Clock):
    """Computes in float64, and has torch do so."""

    def __init__(self) -> None:
        super().__init__()
        torch.set_default_dtype(torch.float64)


register("Doubles-v0", Doubles, checked=True)


@pytest.mark.parametrize("settings", [{"network__lstm": 4}, {"algorithm__name": "ppo"}])
def test_torch_s_default_type_is_the_environment_s_own(tmp_path: Path, settings: dict[str, Any]) -> None:
    config = tiny_run(tmp_path, environment__id="Doubles-v0", evaluation__every=100, stop__env_steps=200, **settings)
    try:
        assert train(config).updates > 0
        assert torch.get_default_dtype() == torch.float64
        policy = load_policy(tmp_path / "weights.safetensors")
        assert {parameter.dtype for parameter in policy.network.parameters()} == {torch.float32}
        policy.act(np.zeros(1, np.float32))
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("stack", [1, 3])
@pytest.mark.parametrize(("shape", "dtype"), [((4, 3), "float32"), ((12, 10, 3), "uint8"), ((3, 12, 10), "uint8")])
def test_acts_on_what_the_environment_itself_gives(
    shape: tuple[int, ...], dtype: str, stack: int, tmp_path: Path
) -> None:
    """One observation or a batch, as planes or as it is, with the numbers that the environment's actions have."""
    path, policy = saved(tmp_path, image_config(stack, shape=shape, dtype=dtype, first_action=7))
    loaded = load_policy(path)
    # some are bright, some dark: noise alone looks all the same to a convolution
    bright = RANDOM.uniform(0, 1, (20, *[1] * len(shape), shape[-1]))
    given = (RANDOM.integers(0, 255, (20, stack, *shape)) * bright).astype(dtype)
    planes = to_planes(policy.spec, given, 20, stack).reshape(20, *policy.spec.obs_shape)
    expected = [7 + action for action in logits(policy, planes).argmax(-1).tolist()]
    batch = given if stack > 1 else given[:, 0]
    actions = loaded.act(batch)
    assert actions.dtype == np.int64
    assert actions.tolist() == loaded.act(planes).tolist() == expected
    assert [loaded.act(one) for one in batch] == [loaded.act(one.tolist()) for one in planes] == expected
    assert len(set(expected)) > 1
    assert type(loaded.act(batch[0])) is int
    drawn = set(loaded.act(batch[[0] * 200], greedy=False).tolist())
    assert drawn == {7, 8, 9, 10} or (dtype != "uint8" and drawn < {7, 8, 9, 10})  # whose numbers are large


def test_sampling_follows_the_probabilities_and_the_seed(tmp_path: Path) -> None:
    path, policy = saved(tmp_path, CARTPOLE_RUN, sharpness=15.0)
    obs = np.tile(np.array([0.1, -0.2, 0.05, 0.3], np.float32), (4000, 1))
    drawn, again = load_policy(path).act(obs, greedy=False), load_policy(path).act(obs, greedy=False)
    np.testing.assert_array_equal(drawn, again)
    probability = logits(policy, obs[:1]).softmax(-1)[0, 1].item()
    assert 0.1 < probability < 0.9
    assert abs(drawn.mean() - probability) < 4 * (0.25 / 4000) ** 0.5
    assert len(set(load_policy(path).act(obs))) == 1


@pytest.mark.parametrize(
    ("config", "own", "shapes"),
    [
        (CARTPOLE_RUN, [4], [(3,), (2, 2, 4), (4, 1), ()]),
        (image_config(), [3, 12, 10], [(12, 3, 10), (12, 10), (1, 1, 12, 10, 3)]),
    ],
)
def test_observations_of_another_shape_are_refused(
    config: RunConfig, own: list[int], shapes: list[tuple[int, ...]]
) -> None:
    _, policy = play(config, 1)
    for shape in shapes:
        with pytest.raises(ValueError, match=re.escape(f"require observations of shape {own}")) as caught:
            policy.act(np.zeros(shape, np.float32))
        assert str(caught.value).endswith(f"or [B, …] of them, got {list(shape)}")


def test_files_that_do_not_fit_are_refused_by_path(tmp_path: Path) -> None:
    path, policy = saved(tmp_path, CARTPOLE_RUN)
    tensors, facts, spec = unpack(path.read_bytes()), describe(policy.config, policy.spec), dataclasses.asdict(CARTPOLE)
    cases: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        (tensors, facts | {"format": 99}, "format 99"),
        (tensors, facts | {"config": facts["config"] | {"speed": 1}}, "unknown key speed"),
        (tensors, facts | {"spec": spec | {"channels_last": True}}, "channels_last"),
        (tensors, facts | {"spec": spec | {"given_shape": [12, 10]}}, "given_shape"),
        (tensors, facts | {"spec": spec | {"actions": {"n": 3, "start": 0}}}, "tensor network.pi_logits.bias is [2]"),
        ({k: v for k, v in tensors.items() if "q_values" not in k}, facts, "tensor network.q_values.bias is missing"),
    ]
    for given, metadata, part in cases:
        write(path, pack(given, metadata))
        message = config_error(lambda: load_policy(path))
        assert message.startswith(f"{path}: ")
        assert part in message
    path.write_bytes(path.read_bytes()[:-10])
    assert config_error(lambda: load_policy(path)).startswith(f"{path}: not a whole safetensors file")
    path.unlink()
    assert config_error(lambda: load_policy(path)).startswith(f"{path}: No such file")


def observations(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).normal(0, 5, size=(*shape, 4)).astype(np.float32)


def likeliest(policy: Policy, obs: np.ndarray) -> list[list[int]]:
    """The actions for consecutive batches `[L, B, 4]` since an episode's start, by steps of the network itself."""
    actions, state = [], policy.initial_state(obs.shape[1])
    for batch in torch.from_numpy(obs):
        output, state = policy.network.step(batch, state)
        actions.append(output.pi_logits.argmax(-1).tolist())
    return actions


def test_a_recurrent_policy_remembers_between_calls_until_it_is_reset(tmp_path: Path) -> None:
    path, policy = saved(tmp_path, RECURRENT_RUN)
    loaded, obs = load_policy(path), observations(12, 9)
    expected = likeliest(policy, obs)
    forgetful = [likeliest(policy, batch[None])[0] for batch in obs]
    assert expected != forgetful
    for _ in range(2):
        assert [loaded.act(batch).tolist() for batch in obs] == expected
        loaded.reset()
    for batch, actions in zip(obs, forgetful, strict=True):
        assert loaded.act(batch).tolist() == actions
        loaded.reset()
    loaded.act(obs[0])
    single = [actions[0] for actions in likeliest(policy, obs[:, :1])]
    assert [loaded.act(batch[0]) for batch in obs] == single  # another number of observations is another episode


def test_a_run_of_an_own_algorithm_without_hidden_layers_can_be_looked_at() -> None:
    """Whether the algorithm needs one is known to its settings, whose module is not imported."""
    data = {"algorithm": {"name": "evil_of_a_file:Own"}, "network": {"hidden_sizes": []}}
    assert from_dict(data, import_modules=False).network.hidden_sizes == ()


NAMED: dict[str, dict[str, Any]] = {
    "algorithm.name": {"algorithm": UnreadConfig(name="evil_of_a_file:Own")},
    "network.torso": {"network": NetworkConfig("evil_of_a_file:Plain")},
    "environment.id": {"environment": EnvironmentConfig("evil_of_a_file:CartPole-v1")},
    "environment.wrappers": {"environment": EnvironmentConfig("CartPole-v1", wrappers=("evil_of_a_file:wrap",))},
}
EVIL = """
import torch
from apex_acer.algorithms.acer.acer import Acer
print("the module of the file runs")

class Plain(torch.nn.Linear):
    def __init__(self, config, spec):
        super().__init__(spec.obs_shape[0], 8)

def wrap(environment):
    return environment

class Own(Acer):
    pass
"""


@pytest.mark.parametrize("key", NAMED)
def test_no_verb_imports_what_a_file_names_unless_it_is_told_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], key: str
) -> None:
    (tmp_path / "evil_of_a_file.py").write_text(EVIL)
    monkeypatch.syspath_prepend(tmp_path)
    path, policy = saved(tmp_path, dataclasses.replace(CARTPOLE_RUN, **NAMED[key]))
    sys.modules.pop("evil_of_a_file", None)
    capsys.readouterr()
    assert main(["evaluate", str(path), "--card"]) == 0
    assert "evil_of_a_file" in capsys.readouterr().out
    verbs = [["evaluate", str(path), "--episodes", "1"], ["play", str(path), "--video", str(tmp_path / "game.gif")]]
    verbs += [["export", str(path), "--onnx"]] if not key.startswith("environment") else []  # it needs no environment
    for arguments in verbs:
        assert main(arguments) == 2
        refusal = capsys.readouterr()
        assert f"{key}: 'evil_of_a_file:" in refusal.err
        assert "is not allowed; importing evil_of_a_file would run it" in refusal.err
        assert "give --import-modules" in refusal.err
        assert refusal.out == ""
    assert "evil_of_a_file" not in sys.modules
    trusted = load_policy(path, import_modules=True)
    assert ("evil_of_a_file" in sys.modules) != key.startswith("environment")
    assert main([*verbs[0], "--import-modules"]) == 0
    assert "evil_of_a_file" in sys.modules
    obs = observations(5)
    for loaded in (trusted, load_policy(path)):  # the second time it is imported already
        assert torch.equal(logits(loaded, obs), logits(policy, obs))
    monkeypatch.delitem(sys.modules, "evil_of_a_file")


def test_what_the_program_is_made_of_needs_no_trust_and_python_s_own_modules_do() -> None:
    wrappers = ("gymnasium.wrappers:FlattenObservation", "apex_acer.wrappers:DiscreteActions")
    for name in (*wrappers, "ale_py:ALE/Pong-v5", "CartPole-v1", f"{__name__}:Plain"):
        imports.require_known("key", name)
    for name in ("subprocess:Popen", "gymnasium_of_mine:x"):
        with pytest.raises(ConfigError, match="give --import-modules"):
            imports.require_known("key", name)
