"""An ONNX file gives what the policy gives, to whoever has no torch."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any, NamedTuple

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
from apex_acer.protocol.specification import EnvironmentSpec
from apex_acer.tools import export
from apex_acer.tools.export import export_onnx
from tests.conftest import COUNTDOWN, Refused, assert_refused, config_error
from tests.runs import CARTPOLE, tiny_run

IMAGES = {"shape": [12, 10, 3], "dtype": "uint8", "num_actions": 4, "first_action": 2}


def make_policy(config: RunConfig, spec: EnvironmentSpec, sharpness: float = 10.0) -> Policy:
    """A fresh policy whose actions depend on what it sees, and whose statistics are of something."""
    torch.manual_seed(2)
    policy = Policy(config, spec)
    with torch.no_grad():
        for weight in (parameter for parameter in policy.network.parameters() if parameter.ndim == 2):
            weight.mul_(sharpness)
        if policy.network.normaliser:
            moments: Any = policy.network.normaliser.moments
            moments.mean.uniform_(-1, 1)
            moments.variance.uniform_(0.5, 2)
    return policy


class Exported(NamedTuple):
    """A weights file, what the command printed of it, and the file that it wrote."""

    weights: Path
    out: str
    path: Path


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    folder, config = tmp_path_factory.mktemp("export"), tiny_run(network__normalise=True)
    policy, weights = make_policy(config, CARTPOLE), folder / "weights.safetensors"
    metadata = describe(config, CARTPOLE, env_steps=12, updates=3)
    write(weights, pack(named_tensors(policy.network, "network"), metadata))
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main(["export", str(weights), "--onnx"]) == 0
    return Exported(weights, out.getvalue(), folder / "weights.onnx")


def test_the_command_says_what_goes_in_and_out(exported: Exported) -> None:
    texts = ["obs            ['batch', 4]", "pi_logits      ['batch', 2]", "differ from torch's by at most"]
    assert all(text in exported.out for text in (*texts, str(exported.path)))
    model = onnx.load(exported.path)
    onnx.checker.check_model(model, full_check=True)
    (properties,) = [entry.value for entry in model.metadata_props if entry.key == METADATA]
    assert json.loads(properties) == load_policy(exported.weights).metadata
    assert b".py" not in exported.path.read_bytes()  # no traces with the folders of who exports


def test_without_a_memory_outputs_are_the_network_s(exported: Exported) -> None:
    policy, session = load_policy(exported.weights), onnxruntime.InferenceSession(exported.path)
    for num in (1, 40):
        obs = np.random.default_rng(num).normal(0, 3, (num, 4)).astype(np.float32)
        found = dict(zip((each.name for each in session.get_outputs()), session.run(None, {"obs": obs}), strict=True))
        with torch.inference_mode():
            expected = policy.network(torch.from_numpy(obs))
        np.testing.assert_allclose(found["pi_logits"], expected.pi_logits, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found["q_values"], expected.q_values, rtol=1e-4, atol=1e-6)
        np.testing.assert_array_equal(found["action"], policy.act(obs))
    assert len(set(found["action"])) == 2


@pytest.mark.parametrize("tensor", ["q_values.bias", "pi_logits.bias"])
def test_a_file_that_differs_is_not_written(
    exported: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tensor: str
) -> None:
    policy, data = load_policy(exported.weights), exported.path.read_bytes()
    monkeypatch.setattr(export, "_convert", lambda *_: data)
    assert export_onnx(policy, tmp_path / "same.onnx").difference < 1e-4
    with torch.no_grad():
        policy.network.get_parameter(tensor).add_(torch.tensor([0.05, 0.0]))
    message = config_error(lambda: export_onnx(policy, tmp_path / "other.onnx"))
    assert "onnxruntime differs from torch by 0.0" in message
    assert [path.name for path in tmp_path.iterdir()] == ["same.onnx"]


def test_a_memory_is_its_caller_s_and_images_are_joined_as_the_environment_joins_them(tmp_path: Path) -> None:
    """With statistics of observations, too."""
    config = tiny_run(
        environment__id=COUNTDOWN,
        environment__kwargs=json.dumps(IMAGES),
        environment__stack=2,
        network__normalise=True,
        network__lstm=8,
    )
    environments = make_environments(config.environment, 1, training=False)
    policy, path, random = make_policy(config, environments.spec), tmp_path / "policy.onnx", np.random.default_rng(1)
    environments.close()
    written = export_onnx(policy, path)
    session = onnxruntime.InferenceSession(path)
    for num in (1, 40):
        policy.reset()
        state = {name: np.zeros((num, 8), np.float32) for name in policy.initial_state(num)}
        for _ in range(3):
            # some are bright, some dark: noise alone looks all the same to a convolution, and actions would be ties
            bright = random.uniform(0, 255, (num, 12, 10, 6)) * random.uniform(0, 1, (num, 1, 1, 1))
            obs = bright.astype(np.uint8)
            outputs = dict(zip(written.outputs, session.run(None, {"obs": obs, **state}), strict=True))
            np.testing.assert_array_equal(outputs["action"], policy.act(obs))
            np.testing.assert_allclose(outputs["probabilities"].sum(-1), 1, atol=1e-5)
            state = {name: outputs[f"next_{name}"] for name in state}
    assert len(set(outputs["action"])) > 1
    assert written.inputs["obs"] == ["batch", 12, 10, 6]
    assert list(written.outputs)[:4] == ["pi_logits", "q_values", "probabilities", "action"]
    assert outputs["q_values"].shape == outputs["pi_logits"].shape == (40, 4)


PARTS = {
    "matrix": spaces.Box(-6, 6, (2, 3), np.float32),
    "bits": spaces.MultiBinary([3, 2]),
    "room": spaces.Discrete(4, start=2),
    "doors": spaces.MultiDiscrete(np.array([[2, 3]])),
    "grey": spaces.Box(0, 255, (12, 10), np.uint8),
    "colour": spaces.Box(0, 255, (12, 10, 3), np.uint8),
}
CHOICES: spaces.Space[Any] = spaces.MultiDiscrete(np.array([[3, 2], [4, 2]]), start=np.full((2, 2), 5))
CASES: dict[str, tuple[str, spaces.Space[Any], int]] = {
    "parts": ("ppo", spaces.Dict(PARTS), 1),
    "stacked, with Q values of joint actions": ("apex_dqn", PARTS["matrix"], 3),
    "with layer normalisation": ("pqn", spaces.Dict(PARTS), 1),
}


@pytest.mark.parametrize(("algorithm", "space", "stack"), CASES.values(), ids=CASES)
def test_inputs_and_actions_are_those_of_the_environment(
    tmp_path: Path, algorithm: str, space: spaces.Space[Any], stack: int
) -> None:
    given: dict[str, Any] = {"network__layer_norm": True, "algorithm__minibatches": 1} if algorithm == "pqn" else {}
    config = tiny_run(algorithm__name=algorithm, environment__stack=stack, **given)
    policy = make_policy(config, specify(config.environment, CHOICES, space, 1))
    export_onnx(policy, tmp_path / "policy.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx")
    space.seed(1)
    chosen = []
    for _ in range(20):
        seen = [space.sample() for _ in range(stack)]
        obs = np.stack(seen) if stack > 1 else seen[0]
        parts = {f"obs.{name}": part for name, part in obs.items()} if isinstance(obs, dict) else {"obs": obs}
        (action,) = session.run(["action"], {name: np.asarray(part)[None] for name, part in parts.items()})
        np.testing.assert_array_equal(action[0], policy.act(obs))
        assert (action.dtype, action.shape) == (np.int64, (1, 2, 2))
        chosen.append(action.tolist())
    assert len({str(action) for action in chosen}) > 3


def test_bad_input_gets_one_line(tmp_path: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("weights.safetensors").write_bytes(b"whatever they are")
    table = {
        "": "export: no format is given; give --onnx",
        "--onnx --out absent/p.onnx": "out … absent/p.onnx … folder that exists",
        f"--onnx --out {'x' * 254}.onnx": "out: 'xxx … File name too long … give a writable folder",
        "--onnx --out ./weights.safetensors": "it is the weights file; give another",
    }
    assert_refused(refused, {f"export weights.safetensors {flags}": parts for flags, parts in table.items()})
    Path("p.onnx").touch()
    assert_refused(refused, {"export . --onnx": "weights: '.' … give a weights file"})
    assert_refused(refused, {"export missing.safetensors --onnx --out p.onnx": "missing.safetensors … No such file"})
    assert Path("weights.safetensors").read_bytes() == b"whatever they are"
