"""Exports a policy as ONNX, its network with the preprocessing, for programs without torch."""

from __future__ import annotations

import json
import logging
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
import onnxscript  # noqa: F401 - torch's exporter needs it
import torch
from torch import Tensor, nn

from apex_acer.actor.policy import Policy
from apex_acer.config import ConfigError
from apex_acer.networks.metadata import describe
from apex_acer.networks.policies import as_given, greedy
from apex_acer.networks.weights import METADATA
from apex_acer.protocol.composite import flatten
from apex_acer.protocol.specification import Array, EnvironmentSpec
from apex_acer.system import files

BATCHES = 1, 5  # batch sizes on which the outputs are compared
LOGITS = "pi_logits", "scores"  # outputs that begin with logits of each choice
TOLERANCE = 1e-4  # times the largest output, or times 1 if that is larger


class Export(NamedTuple):
    """Inputs and outputs of an ONNX file with their shapes, and how far its results are from torch's."""

    inputs: dict[str, list[Any]]
    outputs: dict[str, list[Any]]
    difference: float
    """Largest absolute difference of any output."""


class OnnxPolicy(nn.Module):
    """The network to export, with observations and actions as the environment has them."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.network, self.spec = policy.network, policy.spec
        obs_dtype = torch.uint8 if self.spec.parts else torch.float32
        output, state = self.network.step(torch.zeros(1, *policy.spec.obs_shape, dtype=obs_dtype), {})
        self.heads = [f"normalised_{name}" if name == "action" else name for name in output._fields]
        """Names of the network's outputs; the first says the greedy action."""
        self.actions = list(as_given(self.spec.actions, self.greedy(output[0])))
        """Names of the outputs that are the greedy action, or a part of it."""
        self.state = list(state)
        """Names of the recurrent state's parts."""
        self.boxes = {f"obs.{name}": box for name, box in self.spec.boxes.items()} or {"obs": self.spec}
        """The specification of each input that is an observation or a part of one."""
        self.inputs = [*self.boxes, *self.state]
        """Names of the inputs of `forward`."""
        probabilities = ["probabilities"] if self.heads[0] in LOGITS else []
        self.outputs = [*self.heads, *probabilities, *self.actions, *(f"next_{name}" for name in self.state)]
        """Names of the outputs of `forward`."""

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Maps observations `[B, …]` and state to heads, probabilities `[B, A]` of logits, greedy actions, next state."""
        tensors = dict(zip(self.inputs, inputs, strict=True))
        planes = [_planes(tensors[name], box) for name, box in self.boxes.items()]
        obs: Any = dict(zip(self.spec.boxes, planes, strict=True)) if self.spec.parts else planes[0]
        output, after = self.network.step(obs, {name: tensors[name] for name in self.state})
        probabilities = [self._probabilities(output[0])] if "probabilities" in self.outputs else []
        action = as_given(self.spec.actions, self.greedy(output[0]))
        return *output, *probabilities, *action.values(), *after.values()

    def _probabilities(self, logits: Tensor) -> Tensor:
        branches = list(self.spec.actions.branches)
        parts = [part.softmax(-1) for part in torch.split(logits[..., : sum(branches)], branches, -1)]
        return torch.cat(parts, -1) if len(parts) > 1 else parts[0]

    def greedy(self, output: Tensor) -> Tensor:
        """The greedy actions `[B, …]` according to the first output."""
        return greedy(self.spec.actions, output, is_joint=self.heads[0] not in LOGITS)


def export_onnx(policy: Policy, path: Path) -> Export:
    """Writes `policy` to `path`; raises `ConfigError` and writes nothing if onnxruntime's results differ from torch's."""
    module = OnnxPolicy(policy).eval()
    data = _convert(module, policy)
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    difference = max(_difference(module, session, _random_inputs(policy, module.state, num)) for num in BATCHES)
    files.write(path, data)
    sides = session.get_inputs(), session.get_outputs()
    inputs, outputs = ({value.name: value.shape for value in values} for values in sides)
    return Export(inputs, outputs, difference)


def _convert(module: OnnxPolicy, policy: Policy) -> bytes:
    """The contents of an ONNX file, with the policy's metadata."""
    example, batch = _random_inputs(policy, module.state, 2), {0: torch.export.Dim("batch")}
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it warns that torchvision is missing
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they concern torch's own code
        program = torch.onnx.export(
            module,
            tuple(example),
            input_names=module.inputs,
            output_names=module.outputs,
            dynamic_shapes=(tuple(batch for _ in example),),
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    model = program.model_proto
    graph = model.graph
    for part in (graph, *graph.node, *graph.value_info, *graph.input, *graph.output):
        del part.metadata_props[:]  # the exporter's stack traces, which name folders of this machine
    metadata = policy.metadata or describe(policy.config, policy.spec)
    model.metadata_props.add(key=METADATA, value=json.dumps(metadata, sort_keys=True))
    data: bytes = model.SerializeToString(deterministic=True)
    return data


def _random_inputs(policy: Policy, names: list[str], num: int) -> list[Tensor]:
    random = np.random.default_rng(num)
    obs = [_random_obs(box, random, num) for box in (policy.spec.boxes or {"obs": policy.spec}).values()]
    parts = [part for name, part in policy.initial_state(num).items() if name in names]
    states = [torch.from_numpy(random.normal(size=part.shape)).to(part) for part in parts]
    return [*map(torch.from_numpy, obs), *states]


def _random_obs(spec: EnvironmentSpec, random: np.random.Generator, num: int) -> Array:
    shape = (num, *input_shape(spec))
    if spec.choices:
        flat = random.integers(spec.choices, size=(num * spec.stack, len(spec.choices))) + np.asarray(spec.first)
        chosen: Array = flat.reshape(shape)
        return chosen
    is_float = spec.dtype.startswith("float")
    values = random.normal(size=shape) if is_float else random.integers(256, size=shape)
    obs: Array = values.astype(spec.dtype)
    return obs


def input_shape(spec: EnvironmentSpec) -> tuple[int, ...]:
    """Shape of an observation as the environment has it, without the batch.

    With `environment.stack` S above 1 it is the newest S, oldest first: `[S, …]`, or images joined along their channels.
    """
    if spec.stack == 1:
        return spec.given_shape
    if not spec.is_image:
        return (spec.stack, *spec.given_shape)
    return (*spec.obs_shape[1:], spec.obs_shape[0]) if spec.channels_last else spec.obs_shape


def _planes(obs: Tensor, spec: EnvironmentSpec) -> Tensor:
    """Observations `[B, *input_shape]` as `[B, *obs_shape]`."""
    if spec.choices:
        pairs = zip(obs.reshape(-1, spec.stack, len(spec.choices)).unbind(-1), spec.choices, spec.first, strict=True)
        vectors = [(chosen - first).unsqueeze(-1) == torch.arange(count) for chosen, count, first in pairs]
        return torch.cat(vectors, -1).flatten(1).to(getattr(torch, spec.dtype))
    if spec.channels_last:
        return obs.reshape(-1, *spec.obs_shape[1:], spec.obs_shape[0]).movedim(-1, 1)
    return obs.reshape(-1, *spec.obs_shape)


def _difference(module: OnnxPolicy, session: onnxruntime.InferenceSession, inputs: list[Tensor]) -> float:
    """The largest difference between torch and onnxruntime; raises `ConfigError` if it is too large."""
    arrays = {name: value.numpy() for name, value in zip(module.inputs, inputs, strict=True)}
    outputs = dict(zip(module.outputs, session.run(module.outputs, arrays), strict=True))
    with torch.inference_mode():
        expected = {name: output.numpy() for name, output in zip(module.outputs, module(*inputs), strict=True)}
    names = outputs.keys() - {*module.actions}  # two actions that are nearly equally likely may be confused
    difference = max(float(np.abs(outputs[name] - expected[name]).max()) for name in names)
    scale = max(1.0, *(float(np.abs(expected[name]).max()) for name in names))
    if not difference <= TOLERANCE * scale or not _acts_by_its_output(module, outputs):
        raise ConfigError(f"export: onnxruntime differs from torch by {difference:.2g}; nothing was written")
    return difference


def _acts_by_its_output(module: OnnxPolicy, outputs: dict[str, Array]) -> bool:
    """Whether the actions in `outputs` are the greedy ones according to the first output in it."""
    actions, best = module.spec.actions, module.greedy(torch.from_numpy(outputs[module.heads[0]])).numpy()
    tolerance = TOLERANCE if actions.dim else 0.0
    pairs = zip((outputs[name] for name in module.actions), flatten(actions.to_environment(best)), strict=True)
    return all(np.allclose(a, b, rtol=tolerance, atol=tolerance * np.abs(b).max()) for a, b in pairs)
