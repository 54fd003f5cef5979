"""Vectors of environments against single ones, and what is said of environments that cannot be used."""

from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from ale_py.vector_env import AtariVectorEnv

from apex_acer.config import AtariConfig, EnvironmentConfig
from apex_acer.environments.vector import Environments, Step, make_environments
from apex_acer.manager.manager import resume, train
from apex_acer.protocol.planes import unpack
from tests.conftest import COUNTDOWN, config_error
from tests.engines.test_serial import assert_equal_files
from tests.environments_for_tests import countdown_observation
from tests.runs import tiny_run

MODULE = "tests.environments_for_tests"
SHORT = f"{MODULE}:short"
BREAKOUT, PONG, TOLD = "ALE/Breakout-v5", "ALE/Pong-v5", f"{MODULE}:Told-v0"


def make(count: int = 2, *, training: bool = True, **settings: Any) -> Environments:
    return make_environments(EnvironmentConfig(**settings), count, training=training)


def run(environments: Environments, seed: int, actions: Any, *, last: bool = True) -> tuple[np.ndarray, list[Step]]:
    first = environments.reset(seed)
    steps = [environments.step(np.asarray(action)) for action in actions]
    if last:
        environments.close()
    return first, steps


def stepped_by_hand(
    environment: gymnasium.Env[Any, Any], seed: int, actions: np.ndarray
) -> list[tuple[Any, float, bool, bool, bool]]:
    """Rows of obs, reward, terminated, truncated, reset; a reset takes the place of the step after an end."""
    rows = [(environment.reset(seed=seed)[0], 0.0, False, False, True)]
    for action in actions:
        if rows[-1][2] or rows[-1][3]:
            rows.append((environment.reset()[0], 0.0, False, False, True))
        else:
            obs, reward, terminated, truncated, _ = environment.step(action)
            rows.append((obs, float(reward), terminated, truncated, False))
    return rows[1:]


@pytest.mark.parametrize(("name", "steps"), [("Acrobot-v1", 100), ("CartPole-v1", 300)])
def test_vector_equals_single_environments_stepped_by_hand(name: str, steps: int) -> None:
    count, seed = 3, 11
    environments = make(count, id=name, wrappers=(SHORT,))
    actions = np.random.default_rng(5).integers(environments.spec.num_actions, size=(steps, count))
    first, taken = run(environments, seed, actions)
    for column in range(count):
        single = gymnasium.wrappers.TimeLimit(gymnasium.make(name), 30)
        rows = stepped_by_hand(single, seed + column, actions[:, column])
        np.testing.assert_array_equal(first[column], single.reset(seed=seed + column)[0])
        for field, expected in zip(Step._fields[:-2], zip(*rows, strict=True), strict=True):
            found = np.array([getattr(step, field)[column] for step in taken])
            np.testing.assert_array_equal(found, np.array(expected), err_msg=field)
        single.close()
    assert all(step.begins is step.reset and not step.forced.any() for step in taken)
    assert sum(step.reset.sum() for step in taken) >= 3  # a comparison without resets would say nothing
    assert sum(step.truncated.sum() for step in taken) >= 3
    assert (sum(step.terminated.sum() for step in taken) >= 3) == (name == "CartPole-v1")


def test_reset_after_an_end_leaves_no_dummy_step() -> None:
    environments = make(id=COUNTDOWN, kwargs='{"lengths": [2]}')
    for _ in range(2):
        _, steps = run(environments, 0, np.zeros((2, 2), int), last=False)
        assert [step.reset.any() for step in steps] == [False, False]
        assert steps[-1].terminated.all()


@pytest.mark.parametrize(
    ("game", "fires", "starts"),
    [("Breakout", True, [0, 1, 2]), ("Breakout", False, []), ("MsPacman", True, [])],
    ids=["FIRE", "no fire_reset", "no FIRE"],
)
def test_atari_resets_and_life_losses(game: str, fires: bool, starts: list[int]) -> None:
    """Three actions follow a lost life unseen, unless a game ends among them."""
    count, seed, frames = 3, 21, 400 if game == "Breakout" else 1800
    settings: dict[str, Any] = {"id": f"ALE/{game}-v5", "atari": AtariConfig(fire_reset=fires)}
    settings["kwargs"] = json.dumps({"max_num_frames_per_episode": frames})
    training = make(count, **settings)
    actions = np.random.default_rng(2).integers(training.spec.num_actions, size=(150 * frames // 400, count))
    options: dict[str, Any] = {"reward_clipping": False, "max_num_frames_per_episode": frames, "use_fire_reset": fires}
    raw = AtariVectorEnv({"Breakout": "breakout", "MsPacman": "ms_pacman"}[game], count, stack_num=1, **options)
    first, trained = run(training, seed, actions)
    _, evaluated = run(make(count, training=False, **settings), seed, actions)
    np.testing.assert_array_equal(first, raw.reset(seed=seed)[0])
    ended, lives, losses, resets, truncations = np.zeros(count, bool), np.zeros(count), 0, 0, 0
    to_play: list[list[int]] = [[] for _ in range(count)]
    for action, step, whole in zip(actions, trained, evaluated, strict=True):
        forced = np.array([bool(left) for left in to_play]) & ~ended
        played = np.array([left.pop(0) if left else given for left, given in zip(to_play, action, strict=True)])
        obs, reward, terminated, truncated, info = raw.step(played)
        np.testing.assert_array_equal(step.obs, obs)
        np.testing.assert_array_equal(step.reward, reward)
        np.testing.assert_array_equal(step.reset, ended)  # exactly after the end of a game, never after a lost life
        np.testing.assert_array_equal(step.forced, forced)
        assert (step.reward[step.reset] == 0).all()
        lost = (info["lives"] < lives) & ~ended
        np.testing.assert_array_equal(step.terminated, terminated | lost)
        np.testing.assert_array_equal(step.truncated, truncated & ~lost)  # of both, ALE names the lost life
        expected = (obs, reward, terminated, truncated, ended, ended, forced)
        for name, value in zip(Step._fields, expected, strict=True):
            np.testing.assert_array_equal(getattr(whole, name), value, err_msg=name)
        for column in np.flatnonzero(lost | ended):
            to_play[column] = [] if ended[column] or terminated[column] else starts.copy()
        ended, lives = terminated | truncated, info["lives"]
        losses, resets = losses + int((lost & ~terminated).sum()), resets + int(step.reset.sum())
        truncations += int(truncated.sum())
    raw.close()
    assert resets >= 2
    assert losses >= 4
    assert truncations > 0


def test_games_of_training_may_be_shorter_and_go_on_after_a_lost_life() -> None:
    atari = AtariConfig(training_frames=200, life_loss=False, noop_max=0)
    settings: dict[str, Any] = {"id": BREAKOUT, "kwargs": '{"max_num_frames_per_episode": 100000}', "atari": atari}
    actions = np.random.default_rng(3).integers(4, size=(60, 2))
    _, training = run(make(**settings), 0, actions)
    _, evaluation = run(make(training=False, **settings), 0, actions)
    ends = [t for t, step in enumerate(training) if step.truncated.all()]
    assert ends == [49]  # the 50th step of four frames
    assert not any(step.terminated.any() for step in training)
    assert not any(step.truncated.any() for step in evaluation)


def test_atari_s_games_follow_the_seed_and_pay_their_own_rewards() -> None:
    """Also if a reset comes in the middle of a game."""
    environments = make(id="ALE/Carnival-v5", kwargs='{"max_num_frames_per_episode": 400}')
    actions = np.random.default_rng(7).integers(6, size=(30, 2))
    runs = [run(environments, seed, actions, last=False) for seed in (5, 5, 9)]
    (first, steps), (again, repeated), (_, others) = runs
    environments.close()
    np.testing.assert_array_equal(first, again)
    for one, other in zip(steps, repeated, strict=True):
        for name in Step._fields:
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    assert any((one.obs != other.obs).any() for one, other in zip(steps, others, strict=True))
    assert {float(reward) for step in steps for reward in step.reward} >= {0.0, 20.0}


@pytest.mark.parametrize(
    ("shape", "dtype", "channels", "understood"),
    [
        ([10, 10, 10], "uint8", "auto", "images of 10 x 10 pixels, 10 channels, channels last"),
        ([17, 9, 9], "uint8", "auto", "images of 9 x 9 pixels, 17 channels, channels first"),
        ([9, 9, 17], "uint8", "auto", "images of 9 x 9 pixels, 17 channels, channels last"),
        ([3, 64, 3], "uint8", "auto", "images of 3 x 64 pixels, 3 channels, channels last"),
        ([4, 7, 9], "uint8", "auto", "images of 7 x 9 pixels, 4 channels, channels first"),
        ([10, 10, 10], "uint8", "first", "images of 10 x 10 pixels, 10 channels, channels first"),
        ([4, 7, 9], "uint8", "last", "images of 4 x 7 pixels, 9 channels, channels last"),
        ([9, 7], "uint8", "auto", "images of 9 x 7 pixels, 1 channel"),
        ([4, 5], "float32", "auto", "vectors of 20 numbers (of [4, 5])"),
        ([6], "float64", "auto", "vectors of 6 numbers"),
        ([], "float32", "auto", "vectors of 1 number"),
    ],
)
def test_observations_become_planes_and_actions_the_environment_s_numbers(
    shape: list[int], dtype: str, channels: str, understood: str
) -> None:
    """Where the channels are is guessed or given, and said."""
    kwargs = {"shape": shape, "dtype": dtype, "lengths": [2], "num_actions": 3, "first_action": 1}
    environments = make(id=COUNTDOWN, stack=2, channels=channels, kwargs=json.dumps(kwargs))
    spec = environments.spec
    assert spec.describe() == f"observations: {understood}, {dtype}, the newest 2 together; actions: 3"
    assert spec.obs_shape == (2 * spec.plane_shape[0], *spec.plane_shape[1:])
    assert spec.is_image == ("images" in understood)
    first, steps = run(environments, 0, [[0, 2], [2, 0], [1, 1]])  # the environment refuses others than 1 to 3
    for clock, obs in enumerate([first, *(step.obs for step in steps)], start=1):
        given = countdown_observation(clock, gymnasium.spaces.Box(0, 255, tuple(shape), np.dtype(dtype).type))
        expected = given.transpose(2, 0, 1) if "channels last" in understood else given.reshape(spec.plane_shape)
        np.testing.assert_array_equal(obs, np.stack([expected, expected]))
        assert obs.dtype == dtype


@pytest.mark.parametrize("name", ["CartPole-v1", COUNTDOWN])
def test_wrappers_apply_from_the_inside_out(name: str) -> None:
    _, steps = run(make(id=name, wrappers=(f"{MODULE}:scaled", f"{MODULE}:shifted")), 0, np.zeros((3, 2), int))
    assert [step.reward.tolist() for step in steps] == [[4.0] * 2] * 3
    assert steps[0].reward.dtype == np.float32


SEEN = "supported: Box of numbers, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of them"
ACTIONS = "; supported: Discrete, MultiDiscrete, MultiBinary, a Box of floats with finite bounds, and Dict and Tuple"
OWN = [  # ids of this package's environments
    ("Broken-v0", "RuntimeError: the emulator is missing"),
    ("SequenceObservation-v0", f"observation space Sequence(Discrete(2), stack=False); {SEEN}; give a wrapper of your"),
    ("NestedObservation-v0", "not Sequence(Discrete(2)"),
    ("NoObservation-v0", "observation space Dict()"),
    ("DottedObservation-v0", "the key 'a.b'; give keys that are text without dots"),
    ("NumberedObservation-v0", "give keys that are text without dots"),
    ("MaskedWrongly-v0", "an action mask of 3 numbers, for 2 choices"),
    ("EmptyObservation-v0", "with at least one number each"),
    ("TooManyActions-v0", "at most 2^62"),
    ("HalfBoundedAction-v0", ACTIONS),
    ("NoNumberAction-v0", "could not be made; ValueError: No low value"),
    ("WholeNumberAction-v0", ACTIONS),
    ("EmptyAction-v0", ACTIONS),
    ("NestedAction-v0", ACTIONS),
    ("NoAction-v0", "has action space Tuple(); give one that is not empty"),
    ("DottedAction-v0", "has an action with the key 'a.b'; give keys that are text without dots"),
    ("NumberedAction-v0", "has an action with the key '0'; give a key that is no number, as those of a Tuple are"),
    ("TooManyTogether-v0", "at most 2^53 combinations of choices are supported"),
    ("EagerAlone-v0", "has autoreset mode None; supported: NEXT_STEP"),
]


@pytest.mark.parametrize(("name", "part"), OWN)
def test_an_environment_that_cannot_be_used_is_one_line(name: str, part: str) -> None:
    message = config_error(lambda: make(id=f"{MODULE}:{name}"))
    assert message.startswith("environment.id: ")
    assert f"'{MODULE}:{name}'" in message
    assert part in message


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({"id": "two words"}, "environment.id: 'two words' is not registered"),
        ({"id": "no_such_module:X-v0"}, "environment.id: 'no_such_module:X-v0' cannot be imported"),
        ({"wrappers": ("math:pi",)}, "environment.wrappers: 'math:pi'"),
        ({"wrappers": ("no_such_module:f",)}, "environment.wrappers: 'no_such_module:f' cannot be imported"),
        ({"wrappers": (f"{MODULE}:absent",)}, f"environment.wrappers: '{MODULE}:absent'"),
        ({"id": PONG, "wrappers": (f"{MODULE}:scaled",)}, "takes no wrappers"),
        ({"id": PONG, "kwargs": '{"frameskip": 2}'}, "environment.kwargs: 'frameskip' is not allowed with ALE"),
        ({"id": PONG, "kwargs": '{"batch_size": 1}'}, "environment.kwargs: 'batch_size'"),
        ({"id": PONG, "kwargs": '{"mode": 1}'}, "environment.kwargs: 'mode' is not known to ALE's"),
        ({"id": PONG, "kwargs": '{"lives": 9}'}, "'ALE/Pong-v5' could not be made"),
        ({"id": PONG, "channels": "first"}, "environment.channels: 'first' is not allowed; ALE's are known; give auto"),
        ({"channels": "last"}, "environment.channels: 'last' is not allowed; "),
        ({"kwargs": '{"gravity_": 1}'}, "'CartPole-v1' could not be made"),
        ({"id": COUNTDOWN, "kwargs": '{"vector_kwargs": {"autoreset_mode": "Disabled"}}'}, "supported: NEXT_STEP"),
    ],
)
def test_settings_that_cannot_be_used_are_one_line(settings: dict[str, Any], part: str) -> None:
    assert part in config_error(lambda: make(**settings))


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP"])
def test_a_function_of_a_vector_is_asked_for_as_many_as_the_run_has(mode: str, tmp_path: Path) -> None:
    """With wrappers of vectors; a run of it is resumed to the bit."""
    settings: dict[str, Any] = {
        "id": f"{MODULE}:clocks",
        "kwargs": {"truncate": True, "mode": mode},
        "wrappers": (f"{MODULE}:doubled",),
    }
    _, steps = run(make(3, **settings), 0, np.zeros((12, 3), int))
    for column, length in enumerate((3, 4, 5)):
        each = [
            [float(part[column]) for part in (step.reward, step.truncated, step.reset, step.begins)] for step in steps
        ]
        if mode == "NEXT_STEP":
            expected = [[2, step == length - 1, 0, 0] for step in range(length)] + [[0, 0, 1, 1]]
        else:
            expected = [[2, step == length - 1, 0, step == length - 1] for step in range(length)]
        assert each == (expected * 4)[:12]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    changes = {f"environment__{key}": value for key, value in settings.items()}
    changes |= {"algorithm__name": "ppo", "checkpoint__every": 100, "evaluation__every": 100}
    train(tiny_run(whole, stop__env_steps=200, schedule_steps=200, **changes))
    train(tiny_run(parts, stop__env_steps=100, schedule_steps=200, **changes))
    assert resume(parts, {"env_steps": 200}).eval_return == 9.0  # of lengths 3, 4, 5 and 6
    assert_equal_files("weights.safetensors", whole, parts)


@pytest.mark.parametrize(
    ("kwargs", "part"),
    [
        ({"mode": "DISABLED"}, "has autoreset mode AutoresetMode.DISABLED; supported: NEXT_STEP, SAME_STEP"),
        ({"least": 3}, "it gave 3 environments for 2; have it take num_envs"),
    ],
)
def test_a_vector_that_cannot_be_used_is_one_line(kwargs: dict[str, Any], part: str) -> None:
    message = config_error(lambda: make(2, id=f"{MODULE}:clocks", kwargs=kwargs))
    assert message.startswith(f"environment.id: '{MODULE}:clocks' ")
    assert part in message


def test_the_number_of_a_vector_s_environments_is_the_run_s() -> None:
    message = config_error(lambda: make(2, id=f"{MODULE}:clocks", kwargs={"num_envs": 3}))
    assert message.startswith("environment.kwargs: ")
    assert message.endswith("leave num_envs out; the run sets it")


def test_a_vector_class_that_does_not_say_how_it_resets_is_not_used() -> None:
    """The next episode would begin on what is taken for a dummy step."""
    _, steps = run(make(id=f"{MODULE}:Eager-v0"), 0, np.zeros((8, 2), int))
    assert [step.terminated.any() for step in steps] == [False, False, True, False] * 2
    assert [step.reset.any() for step in steps] == [False, False, False, True] * 2
    assert [step.reward[0] for step in steps] == [1, 1, 1, 0] * 2


@pytest.mark.parametrize(
    ("field", "at", "value", "said"),
    [
        ("observation", 0, "NaN", "an observation with nan"),
        ("observation", 2, "-1e20", "an observation with -1e+20"),
        ("observation", 2, "1e300", "an observation with inf"),  # in the type of the space
        ("reward", 2, "-Infinity", "the reward -inf"),
        ("reward", 2, "1e300", "the reward 1e+300"),
    ],
)
def test_numbers_that_cannot_be_learned_from_are_named(field: str, at: int, value: str, said: str) -> None:
    kwargs = f'{{"field": "{field}", "at": {at}, "value": {value}}}'
    with np.errstate(over="ignore"), pytest.raises(FloatingPointError) as raised:
        run(make(2, id=f"{MODULE}:Spoilt-v0", kwargs=kwargs), 0, np.zeros((3, 2), int))
    problem = f"{said}, allowed is a magnitude of 1e+15: environment 0 of 2, {at} steps after the first reset"
    assert str(raised.value) == f"environment.id: '{MODULE}:Spoilt-v0' has {problem}"


def test_a_part_that_is_not_finite_is_named() -> None:
    with pytest.raises(FloatingPointError, match=r"has arm.joints in an observation with nan.* 0 of 2, 3 steps after"):
        run(make(2, id=f"{MODULE}:SmallRooms-v0", kwargs={"spoilt": "joints"}), 0, np.zeros((3, 2), int))


def test_numbers_up_to_the_largest_are_taken() -> None:
    kwargs = '{"field": "reward", "at": 2, "value": -1e15}'
    _, steps = run(make(2, id=f"{MODULE}:Spoilt-v0", kwargs=kwargs), 0, np.zeros((2, 2), int))
    assert steps[-1].reward.tolist() == [np.float32(-1e15)] * 2


INFOS: list[dict[str, Any]] = [
    {"detections": [1.0], "target": 1, "id": 3, "pose": {"x": 1}},
    {"detections": [1.0, 2.0], "target": None, "id": 2**70, "pose": 2},
    {"target": "left", "pose": [[1, 2]]},
]


@pytest.mark.parametrize("masks", [[], [[1, 0], None, [True, True]]])
def test_nothing_in_info_but_a_mask_matters(masks: list[Any]) -> None:
    infos = [info | {"action_mask": mask} for info, mask in zip(INFOS, masks, strict=True)] if masks else INFOS
    environments = make(3, id=TOLD, kwargs={"infos": infos, "length": 4}, action_masks=bool(masks))
    _, steps = run(environments, 0, np.zeros((12, 3), int))
    assert sum(bool(step.reset.any()) for step in steps) == 2  # it went on through two ends
    assert environments.info_has_masks == bool(masks)


def told(*masks: Any, action_masks: bool | None = True) -> Environments:
    infos = [{} if mask is None else {"action_mask": mask} for mask in masks]
    return make(2, id=TOLD, kwargs=json.dumps({"infos": infos}), action_masks=action_masks)


def test_a_mask_may_come_with_steps_only() -> None:
    environments = told(None, [1, 0], [0, 1])
    first, steps = run(environments, 0, np.zeros((2, 2), int))
    masks = [unpack(environments.spec, obs, ("action_mask",))["action_mask"].tolist() for obs in (first, steps[0].obs)]
    assert masks == [[[1, 1], [1, 0]], [[1, 0], [0, 1]]]


@pytest.mark.parametrize(
    ("mask", "said"),
    [
        ([0, -math.inf], "-inf; give 0, 1, False or True .* environment 1 of 2"),
        ([1, math.nan], "nan"),
        ([1, 0.5], "0.5"),
        ([2, 1], "2"),
        ([0, 0], "no legal action: environment 1 of 2"),
        ([1, 1, 1], "3 numbers, for 2 choices"),
    ],
)
def test_a_mask_is_of_zeros_and_ones(mask: list[float], said: str) -> None:
    with pytest.raises(ValueError, match=f"an action mask (with|of) {said}"):
        told(None, mask).reset(0)


def test_with_same_step_autoreset_a_mask_is_the_next_episode_s() -> None:
    for begins, legal in (([0, 1], True), ([0, 0], False)):
        infos = [{"action_mask": mask} for mask in (begins, [1, 0], [1, 0], [0, 0])]
        kwargs = {"infos": infos, "length": 2, "vector_kwargs": {"autoreset_mode": "SameStep"}}
        environments = make(1, id=TOLD, kwargs=kwargs, action_masks=True)
        environments.reset(1)  # skips the first
        environments.step(np.zeros(1, int))
        with contextlib.nullcontext() if legal else pytest.raises(ValueError, match="no legal action"):
            step = environments.step(np.zeros(1, int))
            assert step.terminated.all()
            assert unpack(environments.spec, step.obs, ("action_mask",))["action_mask"].tolist() == [begins]
        environments.close()


def test_a_mask_that_the_check_did_not_see_is_not_ignored() -> None:
    masks = None, None, [1, 0]
    environments = told(*masks, action_masks=None)
    environments.reset(0)
    with pytest.raises(ValueError, match=r"gives info\['action_mask'\].*; give --environment.action-masks True"):
        environments.step(np.zeros(2, int))
    ignoring = told(*masks, action_masks=False)
    run(ignoring, 0, np.zeros((2, 2), int))
    assert not ignoring.spec.has_masks
