"""The policy of actors, evaluators and `load_policy`: a network with its preprocessing and its exploration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from apex_acer.algorithms import make_agent
from apex_acer.algorithms.algorithm import Action
from apex_acer.config import ConfigError, RunConfig, reading
from apex_acer.config.runfile import from_dict
from apex_acer.environments.check import require_fit
from apex_acer.networks.device import CPU, in_float32, one_thread
from apex_acer.networks.frames import stack_planes
from apex_acer.networks.memory import State, reset_state
from apex_acer.networks.metadata import require_format, written_by
from apex_acer.networks.weights import check_tensors, load_tensors, read
from apex_acer.protocol.planes import is_legal, pack, parts_of, to_planes, with_mask
from apex_acer.protocol.specification import MASK, Array, EnvironmentSpec
from apex_acer.protocol.unroll import Unroll
from apex_acer.system import imports


class Policy:
    """Acts in an environment of `spec` with the network of `config`."""

    @in_float32()
    def __init__(self, config: RunConfig, spec: EnvironmentSpec, device: torch.device = CPU) -> None:
        """`device` is the network's; observations and actions are always on the CPU."""
        self.config, self.spec, self.device = config, spec, device
        self._agent = make_agent(config, spec)
        self.network = self._agent.network.eval().to(device)
        self.sampling = config.algorithm.sampling
        """How the algorithm consumes data."""
        self.metadata: dict[str, Any] = {}
        """Metadata of the weights file (`metadata.py`); empty if the policy was not loaded from a file."""
        self.version = -1
        """Updates that the weights have had; −1: there are no weights yet."""
        self.may_import = True
        """Whether making the environment may import modules that were not imported before."""
        self._generator = torch.Generator(device).manual_seed(config.seed)
        self._state: State = {}

    def load(self, tensors: Mapping[str, Tensor], version: int) -> None:
        """Replaces the weights by `tensors` of a weights file, after `version` updates.

        Raises `ConfigError` that names the first tensor with another name or shape.
        """
        load_tensors(self.network, "network", tensors)
        self.version = version

    def require_known_environment(self) -> None:
        """Raises `ConfigError` if making the environment would import a module that only a weights file names."""
        if not self.may_import:
            imports.require_known("environment.id", self.config.environment.id)
            for name in self.config.environment.wrappers:
                imports.require_known("environment.wrappers", name)

    @in_float32()
    def compute_as_the_learner(self) -> None:
        """Switches the network from float32 to `learner.precision`."""
        self.network.compute_in(self.config.learner.precision, self.device)

    @in_float32()
    def initial_state(self, num: int) -> State:
        """The recurrent state of `num` environments at the start of an episode; empty for feed-forward networks."""
        return {name: torch.zeros(num, *shape, device=self.device) for name, shape in self._agent.state.items()}

    def reset(self) -> None:
        """Begins a new episode for `act`: clears the state of a recurrent network. Other networks need no call."""
        self._state = {}

    @in_float32()
    def act(self, obs: Any, greedy: bool = True, mask: npt.ArrayLike | None = None) -> Any:
        """The action for one observation, or an array of actions for a batch, as the environment takes it.

        An action is an int if the actions are `Discrete`, otherwise an array of choices or between the bounds of a `Box`, or
        the `Dict` or `Tuple` of them.

        `obs` is an observation of the environment or has `spec.obs_shape`: images with their channels first. With
        `environment.stack` S above 1 it is the newest S observations, oldest first: `[S, …]`, or joined along the channels.
        This holds for each array of a `Dict` or `Tuple` observation.

        `mask` is `info["action_mask"]`, if the environment has one there: `[n]`, or `[Σ n]` for several choices, with the
        leading axes of `obs`.

        A recurrent network remembers the observations since `reset()`; another batch size resets it. Raises ValueError for
        another shape.
        """
        obs = self._with_mask(obs, mask)
        batch, single = self._packed(obs) if self.spec.parts else _batch(self.spec, np.asarray(obs))
        tensor = torch.from_numpy(np.ascontiguousarray(batch)).to(self.device)
        if any(len(value) != len(tensor) for value in self._state.values()):
            self.reset()
        with torch.inference_mode():
            chosen = self._agent.act(
                tensor,
                self._state,
                greedy=greedy,
                exploration=self.exploration(len(tensor)),
                generator=self._generator,
                updates=self.version,
            )
        self._state = chosen.state
        action = self.spec.actions.to_environment(chosen.action.cpu().numpy())
        return self.spec.actions.for_user(action) if single else action

    @in_float32()
    def step(
        self,
        planes: Array,
        episode_step: Array,
        state: State,
        *,
        greedy: bool,
        exploration: Tensor,
        generator: torch.Generator,
    ) -> Action:
        """Acts on the newest planes `[S, N, *plane]` of N environments; resets `state` in those that begin an episode."""
        with torch.inference_mode():
            steps = torch.from_numpy(episode_step).to(self.device)
            obs = stack_planes(torch.from_numpy(planes).to(self.device), steps, self.spec.stack)[0]
            state = reset_state(state, steps[-1] == 0)
            chosen = self._agent.act(
                obs, state, greedy=greedy, exploration=exploration, generator=generator, updates=self.version
            )
        extras = {name: part.cpu() for name, part in chosen.extras.items()}
        return Action(chosen.action.cpu(), extras, chosen.state)

    @in_float32()
    def exploration(self, num: int, actor: int | None = None, env_steps: int = 0) -> Tensor:
        """Exploration of each of `num` environments (`Agent.exploration`), on the network's device."""
        return self._agent.exploration(num, actor, env_steps).to(self.device)

    @property
    def looks_ahead(self) -> bool:
        """Whether `complete` needs the extras of the step after an unroll."""
        return self._agent.gives_priorities

    @in_float32()
    def complete(self, unroll: Unroll, ahead: dict[str, Array]) -> Unroll:
        return self._agent.complete(unroll, ahead)

    def _with_mask(self, obs: Any, mask: npt.ArrayLike | None) -> Any:
        if mask is not None:
            if not self.spec.has_masks:
                raise ValueError("got a mask, but the policy was trained without")
            return with_mask(obs, is_legal(mask))
        if self.spec.has_masks and not (isinstance(obs, Mapping) and MASK in obs):
            raise ValueError(f"got no mask, but the policy was trained with masks; give mask=info[{MASK!r}]")
        return obs

    def _packed(self, obs: Any) -> tuple[Array, bool]:
        """A dictionary or tuple of arrays as packed observations `[B, *obs_shape]`, and whether it was a single one."""
        spec, parts = self.spec, parts_of(self.spec, obs)
        batches = {name: _batch(box, parts[name], name) for name, box in spec.boxes.items()}
        sizes = {name: 1 if single else [len(batch)] for name, (batch, single) in batches.items()}
        (num, single), *others = ((len(batch), single) for batch, single in batches.values())
        if any(other != (num, single) for other in others):
            raise ValueError(f"require the same number of each part, got {sizes}")
        planes = {name: batch for name, (batch, _) in batches.items()}
        return pack(spec, planes, num, spec.stack).reshape(num, *spec.obs_shape), single


def _batch(spec: EnvironmentSpec, obs: Array, part: str = "") -> tuple[Array, bool]:
    """`obs` as `[B, *obs_shape]`, and whether it was a single one."""
    shape, stack = spec.obs_shape, (spec.stack,) if spec.stack > 1 else ()
    env_shape, channels_last = (*stack, *spec.given_shape), (*shape[1:], shape[0])
    for batch in ((), obs.shape[:1]):  # an array that can be a single observation is taken as one
        num = batch[0] if batch else 1
        if obs.shape == (*batch, *env_shape):
            return to_planes(spec, obs, num, *stack).reshape(num, *shape), not batch
        if obs.shape == (*batch, *shape):
            return obs.reshape(num, *shape), not batch
        if spec.channels_last and obs.shape == (*batch, *channels_last):
            return np.moveaxis(obs.reshape(num, *channels_last), -1, 1), not batch
    allowed = str(list(shape)) if env_shape == shape else f"{list(shape)}, {list(env_shape)}"
    of = f" of {part}" if part else ""
    raise ValueError(f"require observations{of} of shape {allowed} or [B, …] of them, got {list(obs.shape)}")


def load_metadata(path: str | Path) -> dict[str, Any]:
    """Metadata of a weights file (`metadata.py`); imports nothing that it names. Raises `ConfigError`."""
    with reading(str(path)):
        _, metadata = read(path)
        try:
            require_format(metadata)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}{written_by(metadata)}") from None
        return metadata


@in_float32()
def load_policy(path: str | Path, import_modules: bool = False) -> Policy:
    """The policy in a weights file, without its environment; raises `ConfigError` that names `path`.

    `policy.act(obs)` chooses actions. `policy.network(obs)` `[B, …]` computes the algorithm's outputs, such as `pi_logits`,
    `q_values`, `action` or `mean`. `policy.config` is the run's configuration.

    A file may name modules of an algorithm, a torso, an environment and wrappers. As importing a module runs it, each must
    belong to gymnasium or this package or be imported already, unless `import_modules` is true.
    """
    with reading(str(path)), one_thread():
        tensors, metadata = read(path)
        try:
            require_format(metadata)
            if not import_modules:
                _require_known_network(metadata["config"])
            config, spec = from_dict(metadata["config"]), EnvironmentSpec.from_dict(metadata["spec"])
            require_fit(config.algorithm, config.environment.id, spec)
            with torch.device("meta"):  # without memory, whatever the sizes are
                check_tensors(make_agent(config, spec).network, "network", tensors)
            policy = Policy(config, spec)
            policy.load(tensors, int(metadata["updates"]))
        except KeyError as error:
            raise ConfigError(f"{path}: metadata without {error}; give a file this program wrote") from None
        except ConfigError as error:
            raise ConfigError(f"{path}: {str(error).removeprefix('weights: ')}{written_by(metadata)}") from None
    policy.metadata, policy.may_import = metadata, import_modules
    return policy


def _require_known_network(config: dict[str, Any]) -> None:
    named = from_dict(config, import_modules=False)
    imports.require_known("algorithm.name", named.algorithm.name)
    imports.require_known("network.torso", named.network.torso)
