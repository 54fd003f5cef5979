"""What a rollout records against ALE's own games and against environments whose every number is known."""

from __future__ import annotations

import dataclasses
import itertools
import json
import logging
import re
from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from ale_py.vector_env import AtariVectorEnv

from apex_acer.actor.evaluator import evaluate_policy, summarise
from apex_acer.actor.rollout import Episode, Rollout, evaluate
from apex_acer.config import AtariConfig, EvaluationConfig, NetworkConfig, RunConfig
from apex_acer.functional import gae
from apex_acer.networks.frames import stack_planes
from apex_acer.protocol.metrics import METRICS, Timers
from apex_acer.protocol.unroll import Unroll
from tests.conftest import COUNTDOWN, assert_equal_unrolls, joined, play, run_config

FRAMES = 280  # of a game, cut short so that several end
COUNT, K, UNROLLS, SEED = 3, 20, 9, 31
BREAKOUT: dict[str, Any] = {"id": "ALE/Breakout-v5", "stack": 4}
LIMIT = json.dumps({"max_num_frames_per_episode": FRAMES})
GAME = run_config(**BREAKOUT, kwargs=LIMIT, atari=AtariConfig(fire_reset=False))


def countdown(stack: int = 1, **kwargs: Any) -> RunConfig:
    return run_config(id=COUNTDOWN, stack=stack, kwargs=json.dumps(kwargs))


def stacks_of(unrolls: list[Unroll], stack: int) -> torch.Tensor:
    """Every network input of consecutive unrolls, each rebuilt from its own unroll only; `[K * unrolls, N, …]`."""
    parts = [
        stack_planes(torch.from_numpy(unroll.obs), torch.from_numpy(unroll.episode_step), stack)[:-1]
        for unroll in unrolls
    ]
    return torch.cat(parts)


@pytest.fixture(scope="module")
def breakout() -> tuple[Any, list[Unroll], list[Episode]]:
    """A policy, its unrolls over several games and lost lives, and the episodes that ended."""
    environments, policy = play(GAME, COUNT, sharpness=100.0)
    rollout = Rollout(environments, policy, seed=SEED, actor=0)
    unrolls = [rollout.unroll(K) for _ in range(UNROLLS)]
    environments.close()
    return policy, unrolls, rollout.take_episodes()


@pytest.fixture(scope="module")
def ale(breakout: Any) -> dict[str, np.ndarray]:
    """ALE's own stacks, rewards and ends of whole games for the same seed and actions."""
    options: dict[str, Any] = {"reward_clipping": False, "max_num_frames_per_episode": FRAMES, "use_fire_reset": False}
    vector = AtariVectorEnv("breakout", COUNT, stack_num=4, **options)
    obs, rows = [vector.reset(seed=SEED)[0]], []
    for action in joined(breakout[1], "action"):
        row = vector.step(action)
        obs.append(row[0])
        rows.append(row[1:4])
    reward, terminated, truncated = (np.stack(part) for part in zip(*rows, strict=True))
    return {"obs": np.stack(obs), "reward": reward, "ended": terminated | truncated}


def test_rebuilt_stacks_are_ale_s_own(breakout: Any, ale: dict[str, np.ndarray]) -> None:
    _, unrolls, _ = breakout
    stacks = stacks_of(unrolls, 4)
    assert stacks.shape[:2] == (K * UNROLLS, COUNT)
    np.testing.assert_array_equal(stacks.numpy(), ale["obs"][:-1])
    final = stack_planes(torch.from_numpy(unrolls[-1].obs), torch.from_numpy(unrolls[-1].episode_step), 4)[-1]
    np.testing.assert_array_equal(final.numpy(), ale["obs"][-1])
    lost = joined(unrolls, "terminated")[:-1] & joined(unrolls, "mask")[1:]
    assert lost.sum() > 10
    assert (~joined(unrolls, "mask")).sum() >= 5
    resets_by_place = np.flatnonzero((~joined(unrolls, "mask")).any(1)) % K
    assert min(resets_by_place.min(), K - 1 - resets_by_place.max()) < 4  # some stacks of a new game cross a border


def test_masks_and_episode_steps_follow_resets_only(breakout: Any, ale: dict[str, np.ndarray]) -> None:
    _, unrolls, _ = breakout
    mask, episode_step = joined(unrolls, "mask"), joined(unrolls, "episode_step")
    reset = np.concatenate([np.zeros((1, COUNT), bool), ale["ended"][:-1]])
    np.testing.assert_array_equal(mask, ~reset)
    np.testing.assert_array_equal(joined(unrolls, "reward"), ale["reward"])
    expected = np.zeros_like(episode_step[3:])  # from the first observation on
    for t in range(1, len(expected)):
        expected[t] = np.where(reset[t - 1], 0, expected[t - 1] + 1)
    np.testing.assert_array_equal(episode_step[3:], expected)
    assert not episode_step[:3].any()
    for earlier, later in itertools.pairwise(unrolls):
        np.testing.assert_array_equal(later.obs[:4], earlier.obs[-4:])
        np.testing.assert_array_equal(later.episode_step[:4], earlier.episode_step[-4:])


def test_whole_games_are_counted_over_lost_lives(breakout: Any, ale: dict[str, np.ndarray]) -> None:
    _, _, episodes = breakout
    expected, total, length, after_end = [], np.zeros(COUNT), np.zeros(COUNT, int), np.zeros(COUNT, bool)
    for reward, ended in zip(ale["reward"], ale["ended"], strict=True):
        for column in range(COUNT):
            if after_end[column]:  # the dummy step
                expected.append(Episode(column, total[column], length[column]))
                total[column] = length[column] = 0
            else:
                total[column] += reward[column]
                length[column] += 1
        after_end = ended
    assert episodes == expected
    assert len(episodes) >= 5
    assert len({episode.episode_return for episode in episodes}) > 1


def test_a_life_begins_with_an_empty_stack_and_what_starts_it_is_not_learned_from() -> None:
    environments, policy = play(run_config(**BREAKOUT, kwargs=LIMIT), COUNT, sharpness=100.0)
    rollout = Rollout(environments, policy, seed=SEED, actor=0)
    unrolls, unlearned = [], 0
    for _ in range(UNROLLS):
        unrolls.append(rollout.unroll(K))
        unlearned += rollout.unlearned_steps
    environments.close()
    terminated, mask = joined(unrolls, "terminated"), joined(unrolls, "mask")
    steps, stacks = joined(unrolls, "episode_step")[4:], stacks_of(unrolls, 4)
    lives = 0
    for t, column in np.argwhere(terminated[:-4]):
        if (
            mask[t + 1 : t + 4, column].any()
            or (terminated | joined(unrolls, "truncated"))[t + 1 : t + 4, column].any()
        ):
            continue  # the end of a game, or another life lost at once
        lives += 1
        assert not steps[t + 1 : t + 4, column].any()
        assert mask[t + 4, column]
        assert not stacks[t + 4, column, :-1].any()
        assert stacks[t + 4, column, -1].any()
    assert lives > 5
    assert unlearned == (~mask).sum() - len(rollout.take_episodes()) > 3 * lives - 3  # the others are resets


def test_actions_are_drawn_from_mu(breakout: Any) -> None:
    _, unrolls, _ = breakout
    action = joined(unrolls, "action").ravel()
    probs = np.exp(np.concatenate([unroll.extras["log_probs"] for unroll in unrolls])).reshape(len(action), -1)
    counts = np.bincount(action, minlength=probs.shape[1])
    deviation = (counts - probs.sum(0)) / np.sqrt((probs * (1 - probs)).sum(0))
    assert np.abs(deviation).max() < 4
    assert (action != probs.argmax(1)).any()


@pytest.mark.parametrize("truncate", [False, True])
def test_what_is_sent_follows_the_seed_and_is_not_written_to_again(truncate: bool) -> None:
    """A time limit is told apart from a death."""
    firsts = []
    for seed in (7, 7, 8):
        config = remembering(countdown(stack=2, lengths=[5], truncate=truncate))
        environments, policy = play(config, 2)
        timers = Timers()
        rollout = Rollout(environments, policy, seed=seed, timers=timers)
        first = rollout.unroll(6)
        firsts.append(Unroll(**{f.name: _copy(getattr(first, f.name)) for f in dataclasses.fields(Unroll)}))
        rollout.unroll(6)
        assert_equal_unrolls(first, firsts[-1])
        shares = timers.shares()
        assert shares.keys() == {"time_policy", "time_environment"} <= METRICS.keys()
        assert 0 < sum(shares.values()) <= 1
    assert_equal_unrolls(firsts[0], firsts[1])
    assert (firsts[0].action != firsts[2].action).any()
    ends = np.arange(6)[:, None] == [4, 4]
    np.testing.assert_array_equal(firsts[0].truncated, ends & truncate)
    np.testing.assert_array_equal(firsts[0].terminated, ends & (not truncate))


@pytest.mark.parametrize("truncate", [False, True])
def test_same_step_autoreset_gives_the_steps_of_next_step_and_no_target_of_another_episode(truncate: bool) -> None:
    """After a time limit there is no observation; the step before it is bootstrapped, and that last step is not learned."""
    rows, episodes = {}, {}
    for mode in ("NEXT_STEP", "SAME_STEP"):
        kwargs = json.dumps({"mode": mode, "truncate": truncate})
        environments, policy = play(run_config(id="tests.environments_for_tests:clocks", kwargs=kwargs), 2)
        rollout = Rollout(environments, policy, seed=SEED, actor=0)
        unrolls, unlearned = [rollout.unroll(7) for _ in range(5)], rollout.unlearned_steps
        rows[mode] = {name: joined(unrolls, name) for name in ("reward", "terminated", "truncated", "mask")}
        for name in ("obs", "episode_step"):
            rows[mode][name] = np.concatenate([getattr(unroll, name)[:7] for unroll in unrolls])
        episodes[mode] = rollout.take_episodes()
        environments.close()
    same = rows["SAME_STEP"]
    for column in range(2):
        happened = np.flatnonzero(rows["NEXT_STEP"]["mask"][:, column])
        for name in ("obs", "reward", "terminated", "truncated", "episode_step"):
            expected = rows["NEXT_STEP"][name][happened, column]
            np.testing.assert_array_equal(same[name][: len(expected), column], expected)
    np.testing.assert_array_equal(same["mask"], ~same["truncated"])
    assert unlearned == same["truncated"][-7:].sum()
    assert {episode[1:] for episode in episodes["SAME_STEP"]} == {(3.0, 3), (4.0, 4)}
    assert len(episodes["SAME_STEP"]) > len(episodes["NEXT_STEP"])

    flags = {name: torch.from_numpy(part[:-1]) for name, part in same.items() if name not in ("obs", "episode_step")}
    begins = torch.from_numpy(same["episode_step"] == 0)
    targets = [gae(value=value, gamma=0.9, gae_lambda=1.0, **flags) for value in (begins * 0.0, begins * 100.0)]
    learned = flags["mask"] & ~begins[:-1]
    torch.testing.assert_close(targets[0].value_target[learned], targets[1].value_target[learned])


def remembering(config: RunConfig) -> RunConfig:
    return dataclasses.replace(config, network=NetworkConfig(lstm=12, normalise=True))


@pytest.mark.parametrize("stack", [1, 3])
def test_acting_step_by_step_is_the_learner_s_unroll(stack: int) -> None:
    """Each unroll says all that its outputs depend on: planes, starts of episodes and the state it began with."""
    environments, policy = play(remembering(run_config(id="CartPole-v1", stack=stack)), 4, sharpness=300.0)
    rollout = Rollout(environments, policy, seed=0)
    unrolls = [rollout.unroll(15) for _ in range(6)]
    starts = set()
    for unroll in unrolls:
        episode_step = torch.from_numpy(unroll.episode_step)
        obs = stack_planes(torch.from_numpy(unroll.obs), episode_step, stack)[:-1]
        reset = episode_step[stack - 1 : -1] == 0
        state = {name: torch.from_numpy(part) for name, part in unroll.state.items()}
        with torch.inference_mode():
            output = policy.network.unroll(policy.network.prepare(obs.flatten(0, 1)), reset, state)
        mu = torch.from_numpy(unroll.extras["log_probs"])
        torch.testing.assert_close(mu, output.pi_logits.log_softmax(-1), rtol=1e-4, atol=1e-4)
        starts |= set(torch.nonzero(reset)[:, 0].tolist())
    assert not any(part.any() for part in unrolls[0].state.values())
    assert all(np.abs(part).max(1).min() > 0 for unroll in unrolls[1:] for part in unroll.state.values())
    assert len(starts & set(range(2, 13))) > 3  # episodes begin in the middle of unrolls


def _copy(value: Any) -> Any:
    return {name: array.copy() for name, array in value.items()} if isinstance(value, dict) else value.copy()


@pytest.mark.parametrize(("episodes", "slots"), [(7, 3), (2, 3), (6, 2)])
def test_episodes_are_assigned_to_slots_beforehand(episodes: int, slots: int) -> None:
    lengths = [40, 3, 11]  # counting the first to finish would see the 3 only
    environments, policy = play(countdown(lengths=lengths), slots, training=False)
    played = evaluate(environments, policy, EvaluationConfig(episodes=episodes), seed=0)
    assert len(played) == episodes
    assert Counter(episode.column for episode in played) == Counter(i % slots for i in range(episodes))
    assert all(episode.length == lengths[episode.column] == episode.episode_return for episode in played)


def test_evaluate_policy_summarises_the_episodes() -> None:
    environments, policy = play(countdown(lengths=[4]), 1)
    row = evaluate_policy(policy, EvaluationConfig(episodes=3, environments=10), seed=0)
    expected = {"return": 4.0, "return_std": 0.0, "return_min": 4.0, "return_max": 4.0, "length": 4.0}
    assert row == {f"eval_{name}": value for name, value in expected.items()}
    row = summarise(environments.spec, [Episode(0, 1.0, 10), Episode(1, -3.0, 20)])
    assert row.keys() <= METRICS.keys()
    assert list(row.values()) == [-1.0, 2.0, -3.0, 1.0, 15.0]


@pytest.mark.parametrize(("limit_s", "said"), [(0.0, 1), (60.0, 0)])
def test_waiting_for_an_episode_that_does_not_end_is_said_once(
    limit_s: float, said: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apex_acer.actor.rollout.NOTICE_S", limit_s)
    environments, policy = play(countdown(lengths=[40]), 2)
    with caplog.at_level(logging.WARNING):
        evaluate(environments, policy, EvaluationConfig(episodes=2), seed=0)
    lines = [line for line in caplog.messages if "has ended no episode for 0 s and 8 steps" in line]
    assert len(lines) == said
    assert all(line.endswith("; if it never does, register it with max_episode_steps") for line in lines)


@pytest.mark.parametrize(("slow", "said"), [("environment", ["100 s and 2 steps"]), ("caller", [])])
def test_what_is_done_between_steps_is_no_waiting(
    slow: str, said: list[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = Counter(environment=0, caller=0)
    monkeypatch.setattr("apex_acer.actor.rollout.time", SimpleNamespace(monotonic=seconds.total))
    environments, policy = play(countdown(lengths=[40]), 1)
    took = {"environment": 0, "caller": 0} | {slow: 50}

    def step() -> None:
        seconds["environment"] += took["environment"]

    games = Rollout(environments, policy, seed=0, heartbeat=step).play(1)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            next(games)
            seconds["caller"] += took["caller"]  # as a window does that shows the step
    assert re.findall(r"no episode for (.+?);", caplog.text) == said
