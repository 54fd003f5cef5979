"""Unrolls of whole episodes: each column is one episode from a reset, and what comes after its end is masked."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pytest
import torch

from apex_acer.actor.rollout import Episode, Rollout
from apex_acer.algorithms import make_agent
from apex_acer.config import RunConfig
from apex_acer.environments.vector import Environments, Step
from apex_acer.learner.parts import make_storage
from apex_acer.learner.trainer import Trainer
from apex_acer.protocol.unroll import Unroll
from tests.conftest import COUNTDOWN, play
from tests.runs import tiny_run

LENGTH = 6  # of an unroll


def reinforce(environment: str = COUNTDOWN, length: int = LENGTH, **changes: Any) -> RunConfig:
    return tiny_run(
        environment__id=environment,
        algorithm__name="actor_critic",
        algorithm__whole_episodes=True,
        algorithm__unroll_length=length,
        **changes,
    )


class Lengths:
    """Numbers the resets, and has environment `i` play an episode of `lengths[reset][i]` steps after each."""

    def __init__(self, environments: Environments, lengths: list[list[int]]) -> None:
        self._reset, self._step, self._lengths = environments.reset, environments.step, lengths
        self._envs: Any = environments._vector
        environments.reset, environments.step = self.reset, self.step  # type: ignore[method-assign]
        self.resets, self.steps = -1, 0

    def reset(self, seed: int) -> Any:
        obs = self._reset(seed)
        self.resets += 1
        # the first reset is that of the rollout before it has made an unroll
        for env, length in zip(self._envs.envs, self._lengths[max(self.resets - 1, 0)], strict=True):
            env.unwrapped._length = length
        return obs

    def step(self, action: Any) -> Step:
        self.steps += 1
        return self._step(action)


def rolled(
    lengths: list[list[int]], *, truncate: bool = False, stack: int = 1
) -> tuple[list[Unroll], list[list[Episode]], list[int]]:
    """An unroll for each of `lengths`; what ended in it, and how many steps it took."""
    kwargs = json.dumps({"truncate": truncate})
    environments, policy = play(reinforce(environment__kwargs=kwargs, environment__stack=stack), len(lengths[0]))
    script = Lengths(environments, lengths)
    rollout = Rollout(environments, policy, seed=0, actor=0)
    unrolls, episodes, steps = [], [], []
    for _ in lengths:
        before = script.steps
        unrolls.append(rollout.unroll(LENGTH))
        episodes.append(rollout.take_episodes())
        steps.append(script.steps - before)
    assert script.resets == len(lengths)  # one at the start of each unroll
    return unrolls, episodes, steps


@pytest.mark.parametrize(("truncate", "stack"), [(False, 3), (True, 1)])
def test_each_column_is_one_episode(truncate: bool, stack: int) -> None:
    """Shorter than the unroll, as long as it, and longer, which is cut."""
    lengths = [[1, 3, LENGTH - 1, LENGTH, LENGTH + 1], [2, 2, 9, 2, 2]]
    unrolls, episodes, _ = rolled(lengths, truncate=truncate, stack=stack)
    for unroll, played in zip(unrolls, lengths, strict=True):
        at = np.arange(LENGTH)[:, None]
        np.testing.assert_array_equal(unroll.mask, at < played)
        ends = (at == np.array(played) - 1) & unroll.mask
        np.testing.assert_array_equal(unroll.terminated & unroll.mask, ends & (not truncate))
        np.testing.assert_array_equal(unroll.truncated & unroll.mask, ends & truncate)
        assert unroll.num_steps == sum(min(length, LENGTH) for length in played)
        assert not unroll.episode_step[:stack].any()
        assert not unroll.obs[: stack - 1].any()
        for column, length in enumerate(played):  # the final observation is there, to be bootstrapped from
            counted = unroll.episode_step[stack - 1 : stack + min(length, LENGTH), column]
            np.testing.assert_array_equal(counted, np.arange(1 + min(length, LENGTH)))
            assert unroll.obs[stack - 1 : stack + min(length, LENGTH), column].any(-1).all()
    assert [sorted(each) for each in episodes] == [
        [Episode(column, length, length) for column, length in enumerate(played) if length <= LENGTH]
        for played in lengths
    ]


def test_an_unroll_ends_as_soon_as_all_episodes_have() -> None:
    unrolls, _, steps = rolled([[1, 2], [3, 1], [LENGTH, 1], [LENGTH + 5, 2]])
    assert steps[:2] == [3, 4]  # the last one is the reset that shows the end
    assert all(LENGTH <= count <= LENGTH + 1 for count in steps[2:])
    for name in ("action", "reward", "mask"):
        assert not getattr(unrolls[0], name)[3:].any()
    assert not unrolls[0].obs[4:].any()
    assert not unrolls[0].extras["log_probs"][3:].any()
    assert unrolls[0].extras["log_probs"][:3].all()


@pytest.mark.parametrize("at", [2, LENGTH])
def test_a_lost_life_ends_no_episode(at: int) -> None:
    """A life is lost on step `at`, and nothing is reset."""
    environments, policy = play(reinforce(environment__kwargs=json.dumps({"lengths": [9]})), 2)
    made, step = itertools.count(1), environments.step

    def losing(action: Any) -> Step:
        taken = step(action)
        return taken._replace(terminated=taken.terminated | (next(made) == at))

    environments.step = losing  # type: ignore[method-assign]
    rollout = Rollout(environments, policy, seed=0, actor=0)
    unroll = rollout.unroll(LENGTH)
    assert unroll.mask.all()
    assert unroll.terminated[at - 1].all()
    assert rollout.take_episodes() == []


def test_every_step_between_a_reset_and_an_end_of_cartpole_is_there_once() -> None:
    """No game goes on in the next unroll; those that are over go on unseen until the last one is, and are counted."""
    environments, policy = play(reinforce("CartPole-v1", 30, network__lstm=8), 4)
    made, step = [], environments.step

    def counting(action: Any) -> Step:
        taken = step(action)
        made.append(int((~taken.reset).sum()))
        return taken

    environments.step = counting  # type: ignore[method-assign]
    rollout = Rollout(environments, policy, seed=0, actor=0)
    starts = []
    for _ in range(5):
        made.clear()
        unroll = rollout.unroll(30)
        assert unroll.num_steps + rollout.unlearned_steps == sum(made)
        assert rollout.unlearned_steps > 0
        lengths = unroll.mask.sum(0)
        np.testing.assert_array_equal(unroll.mask, np.arange(30)[:, None] < lengths)
        ended = {episode.column: episode for episode in rollout.take_episodes()}
        for column, length in enumerate(lengths):
            assert (column in ended) == bool(unroll.terminated[length - 1, column])
            if column in ended:
                assert ended[column].length == ended[column].episode_return == length
        assert not any(part.any() for part in unroll.state.values())
        starts.append(unroll.obs[0])
    assert np.unique(np.concatenate(starts), axis=0).shape == (20, 4)  # each begins elsewhere


def test_evaluations_play_on_from_one_unroll_to_the_next() -> None:
    environments, policy = play(reinforce(environment__kwargs=json.dumps({"lengths": [9]})), 2)
    rollout = Rollout(environments, policy, seed=0)
    assert rollout.unroll(5).mask.all()
    assert (rollout.unroll(5).mask == (np.arange(5) != 4)[:, None]).all()


def test_steps_that_were_not_made_are_no_experience() -> None:
    """Neither in what is learned nor in the statistics of observations."""
    normalised: dict[str, Any] = {"network__normalise": True, "algorithm__normalise_rewards": True}
    config = reinforce(environment__kwargs=json.dumps({"lengths": [3]}), **normalised)
    environments, policy = play(config, 2)
    unroll = Rollout(environments, policy, seed=0, actor=0).unroll(LENGTH)
    trainer = Trainer(config, policy.spec)
    algorithm: Any = trainer.algorithm
    algorithm.observe(unroll, "actor_0")
    replay = make_storage(config, make_agent(config, policy.spec).layout, 2 * LENGTH)
    trainer.update(replay.gather(replay.insert(unroll, 0), 2, torch.ones(2)), 0, 0)
    moments = algorithm.network.normaliser.moments
    seen = unroll.obs[1:4].reshape(6, 3)
    np.testing.assert_allclose(moments.mean, seen.mean(0), rtol=1e-5)
    np.testing.assert_allclose(moments.variance, seen.var(0), rtol=1e-4)
    assert moments.count == algorithm.modules["rewards"].moments.count == 6
