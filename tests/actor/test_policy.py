from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import apex_acer
from apex_acer.actor.policy import Policy, load_policy
from apex_acer.cli import main
from apex_acer.config import ConfigError, EnvironmentConfig, NetworkConfig, RunConfig, UnreadConfig
from apex_acer.environments.vector import make_environments
from apex_acer.manager.manager import train
from apex_acer.networks.metadata import FORMAT, describe
from apex_acer.networks.weights import named_tensors, pack, unpack, write
from apex_acer.protocol.planes import to_planes
from apex_acer.system import imports
from tests.conftest import COUNTDOWN, config_error, play, run_config
from tests.environments_for_tests import Clock
from tests.runs import CARTPOLE, tiny_run


def image_config(stack: int = 1, **kwargs: Any) -> RunConfig:
    kwargs = {"shape": [12, 10, 3], "dtype": "uint8", "num_actions": 4} | kwargs
    return run_config(id=COUNTDOWN, stack=stack, kwargs=json.dumps(kwargs))


def saved(folder: Path, config: RunConfig, **changes: Any) -> tuple[Path, Policy]:
    """A weights file and the policy that is in it, whose actions depend on what it sees."""
    _, policy = play(config, 1, sharpness=300.0)
    path = folder / "weights.safetensors"
    metadata = describe(config, policy.spec, env_steps=123, updates=4) | changes
    write(path, pack(named_tensors(policy.network, "network"), metadata))
    return path, policy


@pytest.fixture
def pixels() -> np.ndarray:
    """64 images as the environment gives them, channels last."""
    return np.random.default_rng(0).integers(256, size=(64, 12, 10, 3), dtype=np.uint8)


def test_a_policy_comes_back_from_its_file(tmp_path: Path) -> None:
    config = dataclasses.replace(run_config(id="CartPole-v1"), seed=9, out="somewhere", load="else")
    path, policy = saved(tmp_path, config)
    loaded = apex_acer.load_policy(str(path))
    assert loaded.spec == policy.spec
    assert loaded.config == dataclasses.replace(config, out="", load="")
    assert loaded.metadata["env_steps"] == 123
    obs = torch.randn(5, 4)
    for one, other in zip(loaded.network(obs), policy.network(obs), strict=True):
        assert torch.equal(one, other)


def test_a_policy_is_loaded_in_a_process_that_was_forked(tmp_path: Path) -> None:
    """Whose threads of torch, which the process before it has used, are not there."""
    path, _ = saved(tmp_path, run_config(id="CartPole-v1"))
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


gymnasium.register("Doubles-v0", Doubles)


@pytest.mark.parametrize(
    "settings", [{}, {"network__lstm": 4}, {"algorithm__name": "ppo"}, {"algorithm__name": "apex_dqn"}]
)
def test_torch_s_default_type_is_the_environment_s_own(tmp_path: Path, settings: dict[str, Any]) -> None:
    config = tiny_run(tmp_path, environment__id="Doubles-v0", evaluation__every=200, stop__env_steps=400, **settings)
    try:
        assert train(config).updates > 0
        assert torch.get_default_dtype() == torch.float64
        policy = load_policy(tmp_path / "weights.safetensors")
        assert {parameter.dtype for parameter in policy.network.parameters()} == {torch.float32}
        policy.act(np.zeros(1, np.float32))
    finally:
        torch.set_default_dtype(torch.float32)


def test_acting_on_one_observation_and_on_a_batch(tmp_path: Path) -> None:
    path, policy = saved(tmp_path, run_config(id="CartPole-v1"))
    loaded = load_policy(path)
    obs = np.random.default_rng(1).normal(size=(100, 4)).astype(np.float32)
    actions = loaded.act(obs)
    likeliest = policy.network(torch.from_numpy(obs)).pi_logits.argmax(-1)
    assert actions.dtype == np.int64
    assert set(actions) == {0, 1}
    np.testing.assert_array_equal(actions, likeliest.numpy())
    singles = [loaded.act(one) for one in obs]
    assert type(singles[0]) is int
    assert singles == actions.tolist()
    assert loaded.act(obs[0].tolist()) == singles[0]


def test_a_loaded_policy_plays_its_environment(tmp_path: Path) -> None:
    path, _ = saved(tmp_path, image_config(first_action=1))
    loaded = load_policy(path)
    single = gymnasium.make(COUNTDOWN, **loaded.config.environment.keyword_arguments())
    obs, _ = single.reset(seed=0)
    for _ in range(5):
        obs, *_ = single.step(loaded.act(obs, greedy=False))  # raises for actions outside 1 to 4
    single.close()


def test_images_with_channels_first_or_last(tmp_path: Path, pixels: np.ndarray) -> None:
    path, _ = saved(tmp_path, image_config())
    loaded = load_policy(path)
    first = np.moveaxis(pixels, -1, 1)
    actions = loaded.act(first)
    assert len(set(actions)) > 1
    np.testing.assert_array_equal(loaded.act(pixels), actions)
    assert [loaded.act(image) for image in pixels] == [loaded.act(image) for image in first] == actions.tolist()


def test_actions_begin_where_the_environment_s_do(tmp_path: Path, pixels: np.ndarray) -> None:
    path, policy = saved(tmp_path, image_config(first_action=7))
    loaded = load_policy(path)
    logits = policy.network(torch.from_numpy(np.ascontiguousarray(np.moveaxis(pixels, -1, 1)))).pi_logits
    np.testing.assert_array_equal(loaded.act(pixels), logits.argmax(-1).numpy() + 7)
    assert loaded.act(pixels[0]) == int(logits[0].argmax()) + 7
    assert set(loaded.act(np.repeat(pixels, 20, 0), greedy=False)) == {7, 8, 9, 10}


def test_sampling_follows_the_probabilities_and_the_seed(tmp_path: Path) -> None:
    path, policy = saved(tmp_path, run_config(id="CartPole-v1"))
    obs = np.tile(np.array([0.1, -0.2, 0.05, 0.3], np.float32), (4000, 1))
    with torch.no_grad():
        policy.network.pi_logits.weight.mul_(0.05)
    write(
        path,
        pack(named_tensors(policy.network, "network"), describe(policy.config, policy.spec, env_steps=1, updates=1)),
    )
    drawn, again = load_policy(path).act(obs, greedy=False), load_policy(path).act(obs, greedy=False)
    np.testing.assert_array_equal(drawn, again)
    probability = policy.network(torch.from_numpy(obs[:1])).pi_logits.softmax(-1)[0, 1].item()
    assert 0.1 < probability < 0.9
    assert abs(drawn.mean() - probability) < 4 * (0.25 / 4000) ** 0.5
    assert len(set(load_policy(path).act(obs))) == 1


def test_the_network_gives_logits_and_q_values_by_name(tmp_path: Path) -> None:
    path, _ = saved(tmp_path, image_config(stack=2))
    loaded = load_policy(path)
    assert loaded.spec.obs_shape == (6, 12, 10)
    output = loaded.network(torch.zeros(5, 6, 12, 10, dtype=torch.uint8))
    assert output._fields == ("pi_logits", "q_values")
    assert output.pi_logits.shape == output.q_values.shape == (5, 4)
    assert not loaded.network.training


@pytest.mark.parametrize("shape", [(3,), (5,), (2, 2, 4), (4, 1), ()])
def test_observations_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    _, policy = play(run_config(id="CartPole-v1"), 1)
    with pytest.raises(ValueError, match=r"require observations of shape \[4\] or \[B, …\] of them, got") as caught:
        policy.act(np.zeros(shape, np.float32))
    assert str(caught.value).endswith(f"got {list(shape)}")


@pytest.mark.parametrize("shape", [(12, 3, 10), (10, 12, 3), (12, 10), (1, 1, 12, 10, 3)])
def test_images_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    _, policy = play(image_config(), 1)
    with pytest.raises(ValueError, match=r"require observations of shape \[3, 12, 10\]"):
        policy.act(np.zeros(shape, np.uint8))


@pytest.mark.parametrize("stack", [1, 3])
@pytest.mark.parametrize(
    ("shape", "dtype"), [((12, 10), "uint8"), ((4, 3), "float32"), ((12, 10, 3), "uint8"), ((3, 12, 10), "uint8")]
)
def test_acts_on_what_the_environment_itself_gives(
    shape: tuple[int, ...], dtype: str, stack: int, tmp_path: Path
) -> None:
    path, policy = saved(tmp_path, image_config(stack, shape=shape, dtype=dtype))
    loaded = load_policy(path)
    given = np.random.default_rng(1).integers(0, 255, (5, stack, *shape)).astype(dtype)
    planes = to_planes(policy.spec, given, 5, stack).reshape(5, *policy.spec.obs_shape)
    expected = policy.network(torch.from_numpy(planes)).pi_logits.argmax(-1).tolist()
    batch = given if stack > 1 else given[:, 0]
    assert loaded.act(batch).tolist() == loaded.act(planes).tolist() == expected
    assert [loaded.act(one) for one in batch] == [loaded.act(one) for one in planes] == expected


def test_a_file_whose_environment_cannot_be_is_refused(tmp_path: Path) -> None:
    path, policy = saved(tmp_path, image_config())
    tensors, spec = unpack(path.read_bytes()), dataclasses.asdict(policy.spec)
    write(path, pack(tensors, describe(policy.config, policy.spec) | {"spec": spec | {"given_shape": [12, 10]}}))
    assert "given_shape" in config_error(lambda: load_policy(path))
    vectors = dataclasses.asdict(CARTPOLE) | {"channels_last": True}
    write(path, pack(tensors, describe(policy.config, policy.spec) | {"spec": vectors}))
    assert "channels_last" in config_error(lambda: load_policy(path))


def test_files_that_do_not_fit_are_refused_by_path(tmp_path: Path) -> None:
    path, policy = saved(tmp_path, run_config(id="CartPole-v1"))
    tensors, facts = unpack(path.read_bytes()), describe(policy.config, policy.spec)
    three = {"n": 3, "start": 0}
    cases: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        (tensors, facts | {"format": 99}, "format 99"),
        (tensors, {}, "format"),
        (tensors, {"format": FORMAT}, "config"),
        (tensors, facts | {"config": facts["config"] | {"speed": 1}}, "unknown key speed"),
        (tensors, facts | {"spec": facts["spec"] | {"colour": 1}}, "colour"),
        (
            tensors,
            facts | {"spec": facts["spec"] | {"actions": three}},
            "tensor network.pi_logits.bias is [2]",
        ),
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


def test_metadata_has_neither_folders_nor_times(tmp_path: Path) -> None:
    config = run_config(id="CartPole-v1")
    environments = make_environments(config.environment, 1, training=False)
    one = describe(dataclasses.replace(config, out=str(tmp_path), load="x"), environments.spec, updates=3)
    assert one == describe(config, environments.spec, updates=3)
    assert json.loads(json.dumps(one))["updates"] == 3
    assert str(tmp_path) not in json.dumps(one)


def remembering(folder: Path) -> tuple[Policy, Policy]:
    """A recurrent policy from its file and the one that was written; the likeliest action depends on the memory."""
    config = dataclasses.replace(run_config(id="CartPole-v1"), network=NetworkConfig(lstm=16))
    path, policy = saved(folder, config)
    return load_policy(path), policy


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
    loaded, policy = remembering(tmp_path)
    obs = observations(12, 9)
    expected = likeliest(policy, obs)
    forgetful = [likeliest(policy, batch[None])[0] for batch in obs]
    assert expected != forgetful
    for _ in range(2):
        assert [loaded.act(batch).tolist() for batch in obs] == expected
        loaded.reset()
    for batch, actions in zip(obs, forgetful, strict=True):
        assert loaded.act(batch).tolist() == actions
        loaded.reset()


def test_a_recurrent_policy_remembers_single_observations(tmp_path: Path) -> None:
    loaded, policy = remembering(tmp_path)
    obs = observations(60, 1)
    expected = [actions[0] for actions in likeliest(policy, obs)]
    assert [loaded.act(one[0]) for one in obs] == expected
    assert [likeliest(policy, one[None])[0][0] for one in obs] != expected


def test_a_recurrent_policy_forgets_when_the_number_of_observations_changes(tmp_path: Path) -> None:
    loaded, policy = remembering(tmp_path)
    obs = observations(8, 30)
    for batch in obs[:4]:
        loaded.act(batch[:7])
    assert [loaded.act(batch).tolist() for batch in obs[4:]] == likeliest(policy, obs[4:])


def test_a_recurrent_network_itself_remembers_nothing(tmp_path: Path) -> None:
    loaded, policy = remembering(tmp_path)
    obs = torch.from_numpy(observations(5))
    assert {name: tuple(value.shape) for name, value in loaded.initial_state(3).items()} == {
        "hidden": (3, 16),
        "cell": (3, 16),
    }
    first, _ = policy.network.step(obs, policy.initial_state(5))
    for _ in range(2):
        for one, other in zip(loaded.network(obs), first, strict=True):
            torch.testing.assert_close(one, other)


TORSO = """
import torch
print("the module of the torso runs")
class Plain(torch.nn.Linear):
    def __init__(self, config, spec):
        super().__init__(spec.obs_shape[0], 8)
"""


def test_the_module_of_a_torso_in_a_file_is_imported_only_where_it_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "torso_of_a_file.py").write_text(TORSO)
    monkeypatch.syspath_prepend(tmp_path)
    config = dataclasses.replace(run_config(id="CartPole-v1"), network=NetworkConfig("torso_of_a_file:Plain"))
    path, policy = saved(tmp_path, config)
    monkeypatch.delitem(sys.modules, "torso_of_a_file")
    capsys.readouterr()

    refusal = config_error(lambda: load_policy(path))
    named = "network.torso: 'torso_of_a_file:Plain' is not allowed; importing torso_of_a_file would run it"
    assert refusal.startswith(f"{path}: {named}")
    assert "torso_of_a_file" not in sys.modules
    assert capsys.readouterr().out == ""

    obs = torch.from_numpy(observations(5))
    trusted = load_policy(path, import_modules=True)
    assert capsys.readouterr().out == "the module of the torso runs\n"
    for loaded in (trusted, load_policy(path)):  # the second time it is imported already
        assert torch.equal(loaded.network(obs).pi_logits, policy.network(obs).pi_logits)


NAMED = {
    "algorithm.name": {"algorithm": UnreadConfig(name="evil_of_a_file:Own")},
    "network.torso": {"network": NetworkConfig("evil_of_a_file:Plain")},
    "environment.id": {"environment": EnvironmentConfig("evil_of_a_file:CartPole-v1")},
    "environment.wrappers": {"environment": EnvironmentConfig("CartPole-v1", wrappers=("evil_of_a_file:wrap",))},
}
EVIL = f"""{TORSO}
from apex_acer.algorithms.acer.acer import Acer

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
    path, _ = saved(tmp_path, dataclasses.replace(run_config(id="CartPole-v1"), **NAMED[key]))
    sys.modules.pop("evil_of_a_file", None)
    capsys.readouterr()
    assert main(["evaluate", str(path), "--card"]) == 0
    assert "evil_of_a_file" in capsys.readouterr().out
    verbs = [["evaluate", str(path), "--episodes", "1"], ["play", str(path), "--video", str(tmp_path / "game.gif")]]
    verbs += [["export", str(path), "--onnx"]] if not key.startswith("environment") else []  # it needs no environment
    for arguments in verbs:
        assert main(arguments) == 2
        refusal = capsys.readouterr().err
        assert f"{key}: 'evil_of_a_file:" in refusal
        assert "give --import-modules" in refusal
    assert "evil_of_a_file" not in sys.modules
    assert main([*verbs[0], "--import-modules"]) == 0
    assert "evil_of_a_file" in sys.modules
    monkeypatch.delitem(sys.modules, "evil_of_a_file")


def test_what_the_program_is_made_of_needs_no_trust_and_python_s_own_modules_do(tmp_path: Path) -> None:
    wrappers = ("gymnasium.wrappers:FlattenObservation", "apex_acer.wrappers:DiscreteActions")
    for name in (*wrappers, "ale_py:ALE/Pong-v5", "CartPole-v1", f"{__name__}:Plain"):
        imports.require_known("key", name)
    for name in ("subprocess:Popen", "os:_exit", "gymnasium_of_mine:x"):
        with pytest.raises(ConfigError, match="give --import-modules"):
            imports.require_known("key", name)
