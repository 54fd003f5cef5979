"""An ONNX file gives what the policy gives, to whoever has no torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from gymnasium import spaces

from apex_acer.actor.policy import Policy, load_policy
from apex_acer.cli import main
from apex_acer.config import RunConfig
from apex_acer.environments.spaces import specify
from apex_acer.environments.vector import make_environments
from apex_acer.networks.metadata import describe
from apex_acer.networks.weights import METADATA, named_tensors, pack, write
from apex_acer.tools import export
from apex_acer.tools.export import export_onnx
from tests.conftest import COUNTDOWN, config_error
from tests.learning.test_choices import DIALS
from tests.runs import tiny_run

IMAGES = {"shape": [12, 10, 3], "dtype": "uint8", "num_actions": 4, "first_action": 2}
RUNS: dict[str, dict[str, Any]] = {
    "vector": {},
    "normalised": {"network__normalise": True},
    "stacked, float64": {
        "environment__stack": 3,
        "environment__id": COUNTDOWN,
        "environment__kwargs": '{"dtype": "float64"}',
    },
    "images": {"environment__id": COUNTDOWN, "environment__kwargs": json.dumps(IMAGES), "environment__stack": 2},
    "recurrent": {"network__lstm": 8},
    "atari": {
        "environment__id": "ALE/Pong-v5",
        "environment__stack": 4,
        "network__normalise": True,
        "network__lstm": 8,
    },
}


FAST = ("vector", "recurrent", "atari")  # which has all of them together


def make_policy(config: RunConfig) -> Policy:
    """A fresh policy whose actions depend on what it sees, and whose statistics are of something."""
    environments = make_environments(config.environment, 1, training=False)
    torch.manual_seed(2)
    policy = Policy(config, environments.spec)
    with torch.no_grad():
        policy.network.pi_logits.weight.mul_(100)
        if policy.network.normaliser:
            moments = policy.network.normaliser.moments
            moments.mean.uniform_(-1, 1)
            moments.variance.uniform_(0.5, 2)
    environments.close()
    return policy


def observations(policy: Policy, num: int) -> np.ndarray:
    """As the environment gives them, the newest S if they are stacked, but images joined along their channels.

    Some are bright, some dark: noise alone looks all the same to a convolution, and actions would be ties.
    """
    spec, random = policy.spec, np.random.default_rng(num)
    shape = (spec.stack, *spec.given_shape) if spec.stack > 1 else spec.given_shape
    if spec.is_image and spec.stack > 1:
        shape = (*spec.obs_shape[1:], spec.obs_shape[0]) if spec.channels_last else spec.obs_shape
    scale = random.uniform(0, 1, (num, *(1 for _ in shape)))
    low, high = (0, 255) if spec.dtype == "uint8" else (-6, 6)
    return (random.uniform(low, high, (num, *shape)) * scale).astype(spec.dtype)


@pytest.mark.parametrize(
    "changes",
    [pytest.param(run, id=name, marks=[] if name in FAST else pytest.mark.slow) for name, run in RUNS.items()],
)
def test_it_acts_as_the_policy_does(tmp_path: Path, changes: dict[str, Any]) -> None:
    policy, path = make_policy(tiny_run(**changes)), tmp_path / "policy.onnx"
    written = export_onnx(policy, path)
    assert written.difference < 1e-4
    session = onnxruntime.InferenceSession(path)
    for num in (1, 40):
        policy.reset()
        state = {name: np.zeros((num, 8), np.float32) for name in policy.initial_state(num)}
        for _ in range(3):  # a recurrent policy's memory is its caller's
            obs = observations(policy, num)
            outputs = dict(zip(written.outputs, session.run(None, {"obs": obs, **state}), strict=True))
            np.testing.assert_array_equal(outputs["action"], policy.act(obs))
            np.testing.assert_allclose(outputs["probabilities"].sum(-1), 1, atol=1e-5)
            state = {name: outputs[f"next_{name}"] for name in state}
    assert len(set(outputs["action"])) > 1
    assert written.inputs["obs"] == ["batch", *obs.shape[1:]]
    assert list(written.outputs)[:4] == ["pi_logits", "q_values", "probabilities", "action"]
    assert outputs["q_values"].shape == outputs["pi_logits"].shape == (40, policy.spec.num_actions)


PARTS = {
    "matrix": spaces.Box(-6, 6, (2, 3), np.float32),
    "bits": spaces.MultiBinary([3, 2]),
    "room": spaces.Discrete(4, start=2),
    "doors": spaces.MultiDiscrete([[2, 3]]),
    "grey": spaces.Box(0, 255, (12, 10), np.uint8),
    "colour": spaces.Box(0, 255, (12, 10, 3), np.uint8),
}
SPACES = {"matrix": (PARTS["matrix"], 1), "stacked": (PARTS["matrix"], 3), "parts": (spaces.Dict(PARTS), 1)}


@pytest.mark.parametrize(("space", "stack"), SPACES.values(), ids=SPACES)
def test_inputs_are_what_the_environment_gives(tmp_path: Path, space: spaces.Space[Any], stack: int) -> None:
    config = tiny_run(algorithm__name="ppo", environment__stack=stack)
    torch.manual_seed(2)
    policy = Policy(config, specify(config.environment, spaces.Discrete(5), space, 1))
    with torch.no_grad():
        for weight in (parameter for parameter in policy.network.parameters() if parameter.ndim == 2):
            weight.mul_(10)
    export_onnx(policy, tmp_path / "policy.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx")
    space.seed(1)
    actions = []
    for _ in range(20):
        seen = [space.sample() for _ in range(stack)]
        obs = np.stack(seen) if stack > 1 else seen[0]
        parts = {f"obs.{name}": part for name, part in obs.items()} if isinstance(obs, dict) else {"obs": obs}
        (action,) = session.run(["action"], {name: np.asarray(part)[None] for name, part in parts.items()})
        assert action[0] == policy.act(obs)
        actions.append(int(action[0]))
    assert len(set(actions)) > 1


@pytest.mark.parametrize("algorithm", ["acer", pytest.param("apex_dqn", marks=pytest.mark.slow), "ppo"])
def test_several_choices_are_those_of_the_policy(tmp_path: Path, algorithm: str) -> None:
    dials = json.dumps({"nvec": [[3, 2], [4, 2]], "start": 5})
    config = tiny_run(environment__id=DIALS, environment__kwargs=dials, algorithm__name=algorithm)
    environments = make_environments(config.environment, 1, training=False)
    torch.manual_seed(2)
    policy, path = Policy(config, environments.spec), tmp_path / "policy.onnx"
    with torch.no_grad():
        for head in (parameter for parameter in policy.network.parameters() if parameter.ndim == 2):
            head.mul_(10)
    export_onnx(policy, path)
    obs = observations(policy, 40)
    (action,) = onnxruntime.InferenceSession(path).run(["action"], {"obs": obs})
    np.testing.assert_array_equal(action, policy.act(obs))
    assert (action.dtype, action.shape) == (np.int64, (40, 2, 2))
    assert len(np.unique(action, axis=0)) > 5


def test_without_a_memory_logits_and_q_values_are_the_network_s(tmp_path: Path) -> None:
    policy, path = make_policy(tiny_run(network__normalise=True)), tmp_path / "policy.onnx"
    export_onnx(policy, path)
    obs = observations(policy, 9)
    logits, q_values = onnxruntime.InferenceSession(path).run(["pi_logits", "q_values"], {"obs": obs})
    with torch.inference_mode():
        expected = policy.network(torch.from_numpy(obs))
    np.testing.assert_allclose(logits, expected.pi_logits, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(q_values, expected.q_values, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("tensor", ["q_values.bias", "pi_logits.bias"])
def test_a_file_that_differs_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tensor: str) -> None:
    policy, path = make_policy(tiny_run()), tmp_path / "policy.onnx"
    data = export._convert(export.OnnxPolicy(policy).eval(), policy)
    monkeypatch.setattr(export, "_convert", lambda *_: data)
    with torch.no_grad():
        policy.network.get_parameter(tensor).add_(torch.tensor([0.01, 0.0]))
    message = config_error(lambda: export_onnx(policy, path))
    assert "onnxruntime differs from torch by 0.0" in message
    assert list(tmp_path.iterdir()) == []


def weights_file(folder: Path) -> Path:
    config = tiny_run()
    policy = make_policy(config)
    path = folder / "weights.safetensors"
    metadata = describe(config, policy.spec, env_steps=12, updates=3)
    write(path, pack(named_tensors(policy.network, "network"), metadata))
    return path


@pytest.mark.slow
def test_the_command_says_what_goes_in_and_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = weights_file(tmp_path)
    assert main(["export", str(weights), "--onnx"]) == 0
    path = tmp_path / "weights.onnx"
    out = capsys.readouterr().out
    for text in (
        "obs            ['batch', 4]",
        "pi_logits      ['batch', 2]",
        "the outputs differ from torch's by at most",
        str(path),
    ):
        assert text in out
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    (properties,) = [entry.value for entry in model.metadata_props if entry.key == METADATA]
    assert json.loads(properties) == load_policy(weights).metadata
    assert main(["export", str(weights), "--onnx", "--out", str(tmp_path / "other.onnx")]) == 0
    assert (tmp_path / "other.onnx").read_bytes() == path.read_bytes()
    assert b".py" not in path.read_bytes()  # no traces with the folders of who exports


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("", ["onnx", "give --onnx"]),
        ("--onnx --out absent/p.onnx", ["out", "absent/p.onnx", "folder that exists"]),
        (
            f"--onnx --out {'x' * 254}.onnx",
            ["out: 'xxx", "cannot be written (File name too long); give a writable folder"],
        ),
    ],
)
def test_bad_input_gets_one_line(
    flags: str, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["export", "weights.safetensors", *flags.split()]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert all(word in error for word in words)


@pytest.mark.parametrize("package", ["onnx", "onnxruntime", "onnxscript"])
def test_the_missing_extra_is_named(tmp_path: Path, package: str) -> None:
    program = (
        f"import sys; sys.modules['{package}'] = None; from apex_acer.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", program, "export", "x.safetensors", "--onnx"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1, done.stderr
    assert f"{package} is not installed; pip install 'apex-acer[onnx]'" in done.stderr


def test_weights_are_not_replaced_by_their_own_export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "weights.safetensors"
    path.write_bytes(b"whatever they are")
    assert main(["export", str(path), "--onnx", "--out", str(tmp_path / "." / path.name)]) == 2
    assert "it is the weights file; give another" in capsys.readouterr().err
    assert path.read_bytes() == b"whatever they are"
