"""Opponents in games of two players who take turns: networks, for actors a pool of snapshots, and a user's functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from apex_acer.actor.policy import Policy, load_policy
from apex_acer.config import EvaluationConfig, require
from apex_acer.environments.check import require_unchanged
from apex_acer.environments.turns import MoveOpponent, Opponent
from apex_acer.environments.vector import Environments
from apex_acer.protocol.messages import Row
from apex_acer.protocol.planes import find, to_planes
from apex_acer.protocol.specification import Array, EnvironmentSpec
from apex_acer.system import imports

K = 4.0
"""Rating points that a game moves at most."""
SCALE = 400.0
"""Rating points by which a player wins ten games for each that it loses."""


class PolicyOpponent(Opponent):
    """Samples from a policy, with frame stacks and recurrent states of its own; `_draw` may give each game another."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._actor: int | None = None
        self._env_steps = 0  # of the run, on which exploration depends

    def reset(self, seed: int | None, num: int) -> None:
        spec, policy = self._policy.spec, self._policy
        self._random = np.random.default_rng(seed)
        self._generator = torch.Generator(policy.device).manual_seed(int(self._random.integers(2**31)))
        self._policies = [policy] * num
        self._planes = np.zeros((spec.stack, num, *spec.plane_shape), spec.dtype)  # the newest S planes
        self._episode_step = np.full((spec.stack, num), -1, np.int32)
        self._state = policy.initial_state(num)

    def begin(self, game: int) -> None:
        self._policies[game] = self._draw()
        self._episode_step[:, game] = -1  # before the first observation

    def act(self, games: Sequence[int], obs: Sequence[Any]) -> Sequence[Any]:
        spec, index = self._policy.spec, np.array(games)
        self._planes[:, index] = np.concatenate([self._planes[1:, index], planes_of(spec, obs)[None]])
        newest = self._episode_step[-1:, index] + 1
        self._episode_step[:, index] = np.concatenate([self._episode_step[1:, index], newest])
        action = np.zeros((len(self._policies), *spec.actions.shape), spec.actions.dtype)
        exploration = self._policy.exploration(len(self._policies), self._actor, self._env_steps)
        for policy in dict.fromkeys(self._policies[game] for game in games):
            rows = np.array([game for game in games if self._policies[game] is policy])
            action[rows] = self._choose(policy, rows, exploration)
        return [spec.actions.for_user(spec.actions.to_environment(action[[game]])) for game in games]

    def _choose(self, policy: Policy, rows: Array, exploration: Tensor) -> Array:
        """Actions of `policy` in the games `rows`, whose recurrent states advance."""
        chosen = policy.step(
            self._planes[:, rows],
            self._episode_step[:, rows],
            {name: value[rows] for name, value in self._state.items()},
            greedy=False,
            exploration=exploration[rows],
            generator=self._generator,
        )
        for name, value in chosen.state.items():
            self._state[name][rows] = value
        return chosen.action.numpy()

    def _draw(self) -> Policy:
        """The policy that plays a new game."""
        return self._policy


class SnapshotPool(PolicyOpponent):
    """Plays an actor's games with its newest weights or with those of a snapshot, and rates the newest weights.

    Ratings are Elo's: of a game with score S (1: won, ½: drawn, 0: lost) against a snapshot of rating r, the rating R of the
    newest weights moves by K (S − E), E = 1 / (1 + 10^((r − R) / 400)). A snapshot keeps the rating that the newest weights
    had when it was taken. The first one has 0. Games against the newest weights are not rated.
    """

    def __init__(self, policy: Policy, actor: int) -> None:
        """`policy` is the actor's, of index `actor`, and the opponents explore as it does."""
        super().__init__(policy)
        self._actor = actor
        self._settings = policy.config.self_play
        self._ratings: dict[Policy, float] = {}  # of the snapshots, the oldest first
        self._taken_at = -1  # intervals of env steps at the newest snapshot
        self.rating = 0.0
        """Rating of the newest weights."""

    def add(self, tensors: Mapping[str, Tensor], version: int, env_steps: int) -> None:
        """Takes a snapshot of new weights if one is due at the run's `env_steps`."""
        self._env_steps = env_steps
        interval = env_steps // self._settings.every
        if not self._settings.pool or interval == self._taken_at:
            return
        self._taken_at = interval
        snapshot = Policy(self._policy.config, self._policy.spec, self._policy.device)
        snapshot.compute_as_the_learner()
        snapshot.load(tensors, version)
        self._ratings[snapshot] = self.rating
        if len(self._ratings) > self._settings.pool:
            del self._ratings[next(iter(self._ratings))]

    def end(self, game: int, episode_return: float) -> None:
        rating = self._ratings.get(self._policies[game])
        if rating is not None:
            score = (np.sign(episode_return) + 1) / 2
            self.rating += K * float(score - expected_score(self.rating, rating))

    def metrics(self) -> Row:
        """The rating of the newest weights."""
        return {"rating": self.rating}

    def _draw(self) -> Policy:
        snapshots = [*self._ratings]
        if not snapshots or self._random.random() < self._settings.newest:
            return self._policy
        return snapshots[self._random.integers(len(snapshots))]


def expected_score(rating: float, other: float) -> float:
    """Elo's expected score of a player with `rating` against one with the rating `other`, from 0 to 1."""
    return float(1 / (1 + 10 ** ((other - rating) / SCALE)))


def planes_of(spec: EnvironmentSpec, obs: Sequence[Any]) -> Array:
    """Planes `[N, *plane]` of N single observations as the environment gives them."""
    if spec.parts:
        return to_planes(spec, {name: np.stack([find(each, name) for each in obs]) for name in spec.boxes}, len(obs))
    return to_planes(spec, np.stack(obs), len(obs))


def face(environments: Environments, settings: EvaluationConfig, *, import_modules: bool = True) -> None:
    """Gives games of two players who take turns the opponent of `evaluation.opponent`; raises `ConfigError`.

    `import_modules` says whether a module that is not imported yet may be.
    """
    name = settings.opponent
    if name == "random":
        return
    allowed = f"{environments.id} is no game of two players who take turns; leave it out"
    require(environments.spec.takes_turns, "evaluation.opponent", name, allowed)
    if path := settings.opponent_file:
        policy = load_policy(path, import_modules)
        require_unchanged(environments.id, environments.spec, policy.spec)
        environments.face(PolicyOpponent(policy))
        return
    if not import_modules:
        imports.require_known("evaluation.opponent", name)
    environments.face(MoveOpponent(imports.load("evaluation.opponent", name)))
