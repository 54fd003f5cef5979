from __future__ import annotations

import json
import math
from typing import Any

import gymnasium
import numpy as np
import pytest
from ale_py.vector_env import AtariVectorEnv
from gymnasium.vector import SyncVectorEnv

from apex_acer.config import AtariConfig, EnvironmentConfig
from apex_acer.environments.registry import Adapter
from apex_acer.environments.vector import Environments, Step, make_environments
from apex_acer.protocol.planes import unpack
from tests.conftest import COUNTDOWN, config_error
from tests.environments_for_tests import countdown_observation

MODULE = "tests.environments_for_tests"
SHORT = f"{MODULE}:short"
SEEN = "supported: Box of numbers, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of them"
ACTIONS = "; supported: Discrete, MultiDiscrete, MultiBinary, and a Box of floats with finite bounds; give a wrapper"


def make(count: int = 2, *, training: bool = True, **settings: Any) -> Environments:
    return make_environments(EnvironmentConfig(**settings), count, training=training)


def run(environments: Environments, seed: int, actions: np.ndarray) -> tuple[np.ndarray, list[Step]]:
    first = environments.reset(seed)
    steps = [environments.step(action) for action in actions]
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
            rows.append((*environment.step(action)[:4], False))
    return rows[1:]


@pytest.mark.parametrize(
    ("name", "wrappers", "steps"),
    [("Acrobot-v1", (), 1100), ("Acrobot-v1", (SHORT,), 100), ("CartPole-v1", (SHORT,), 300)],
)
def test_vector_equals_single_environments_stepped_by_hand(name: str, wrappers: tuple[str, ...], steps: int) -> None:
    count, seed = 3, 11
    environments = make(count, id=name, wrappers=wrappers)
    actions = np.random.default_rng(5).integers(environments.spec.num_actions, size=(steps, count))
    first, taken = run(environments, seed, actions)
    for column in range(count):
        single = gymnasium.make(name)
        if wrappers:
            single = gymnasium.wrappers.TimeLimit(single, 30)
        rows = stepped_by_hand(single, seed + column, actions[:, column])
        np.testing.assert_array_equal(first[column], single.reset(seed=seed + column)[0])
        for field, expected in zip(Step._fields, zip(*rows, strict=True), strict=True):
            found = np.array([getattr(step, field)[column] for step in taken])
            np.testing.assert_array_equal(found, np.array(expected), err_msg=field)
        single.close()
    assert sum(step.reset.sum() for step in taken) >= 3  # a comparison without resets would say nothing
    assert all((step.reward[step.reset] == 0).all() for step in taken)


def test_cartpole_s_own_vector_class_has_dummy_steps_and_the_true_final_observation() -> None:
    environments = make(4, id="CartPole-v1")
    first, steps = run(environments, 0, np.random.default_rng(1).integers(2, size=(200, 4)))
    obs = np.stack([first, *(step.obs for step in steps)])
    reset = np.stack([np.ones(4, bool), *(step.reset for step in steps)])
    reward = np.stack([step.reward for step in steps])
    terminated = np.stack([step.terminated for step in steps])
    assert (np.abs(obs[reset]) <= 0.05).all()  # CartPole's first states
    assert not (np.abs(obs[1:][terminated][:, [0, 2]]) <= [2.4, 0.2095]).all(-1).any()  # true last states are outside
    np.testing.assert_array_equal(reset[2:], terminated[:-1])
    np.testing.assert_array_equal(reward, ~reset[1:])
    assert reset[1:].sum() > 10


def test_truncation_and_termination_stay_apart() -> None:
    _, steps = run(make(1, id="CartPole-v1", wrappers=(SHORT,)), 0, np.tile([[0], [1]], (100, 1)))
    assert not any((step.terminated & step.truncated).any() for step in steps)
    truncated = [t for t, step in enumerate(steps) if step.truncated[0]]
    assert truncated
    assert all(steps[t + 1].reset[0] for t in truncated[:-1])
    for truncate in (False, True):
        kwargs = json.dumps({"lengths": [4], "truncate": truncate})
        _, steps = run(make(1, id=COUNTDOWN, kwargs=kwargs), 0, np.zeros((14, 1), int))
        ends = [t % 5 == 3 for t in range(14)]
        assert [step.terminated[0] for step in steps] == [end and not truncate for end in ends]
        assert [step.truncated[0] for step in steps] == [end and truncate for end in ends]
        assert [step.reset[0] for step in steps] == [t % 5 == 4 for t in range(14)]


def ale(game: str, count: int, kwargs: dict[str, Any], **settings: Any) -> AtariVectorEnv:
    """ALE's vector environment as the defaults of the configuration have it, without life loss."""
    return AtariVectorEnv(game, count, reward_clipping=False, **({"stack_num": 1} | kwargs | settings))


@pytest.mark.parametrize(
    ("game", "frames", "steps"),
    [
        ("breakout", 400, 210),
        *(pytest.param(*game, marks=pytest.mark.slow) for game in (("breakout", 108_000, 200), ("pong", 300, 160))),
    ],
)
def test_atari_resets_and_life_losses(game: str, frames: int, steps: int) -> None:
    count, seed, kwargs = 3, 21, {"max_num_frames_per_episode": frames}
    settings = {"id": f"ALE/{game.title()}-v5", "kwargs": json.dumps(kwargs)}
    training = make(count, **settings)
    actions = np.random.default_rng(2).integers(training.spec.num_actions, size=(steps, count))
    raw = ale(game, count, kwargs)
    first, trained = run(training, seed, actions)
    _, evaluated = run(make(count, training=False, **settings), seed, actions)
    np.testing.assert_array_equal(first, raw.reset(seed=seed)[0])
    ended, lives, losses, resets, truncations = np.zeros(count, bool), None, 0, 0, 0
    for action, step, whole in zip(actions, trained, evaluated, strict=True):
        obs, reward, terminated, truncated, info = raw.step(action)
        np.testing.assert_array_equal(step.obs, obs)
        np.testing.assert_array_equal(step.reward, reward)
        np.testing.assert_array_equal(step.reset, ended)  # exactly after the end of a game, never after a lost life
        assert (step.reward[step.reset] == 0).all()
        lost = np.zeros(count, bool) if lives is None else (info["lives"] < lives) & ~ended
        np.testing.assert_array_equal(step.terminated, terminated | (lost if game == "breakout" else False))
        np.testing.assert_array_equal(step.truncated, truncated & ~lost)  # of both, ALE names the lost life
        for name, expected in zip(Step._fields, (obs, reward, terminated, truncated, ended), strict=True):
            np.testing.assert_array_equal(getattr(whole, name), expected, err_msg=name)
        ended, lives = terminated | truncated, info["lives"]
        losses, resets = losses + int((lost & ~terminated).sum()), resets + int(step.reset.sum())
        truncations += int(truncated.sum())
    raw.close()
    assert resets >= 2
    assert (losses > 10) == (game == "breakout")
    assert (truncations > 0) == (frames < 108_000)


def test_life_loss_can_be_switched_off() -> None:
    actions = np.random.default_rng(3).integers(4, size=(100, 2))
    _, steps = run(make(id="ALE/Breakout-v5", atari=AtariConfig(life_loss=False, noop_max=0)), 0, actions)
    assert not any(step.terminated.any() for step in steps[:60])


@pytest.mark.parametrize("kwargs", ["{}", '{"max_num_frames_per_episode": 100000}'])
def test_games_of_training_may_be_shorter(kwargs: str) -> None:
    settings = {"id": "ALE/Pong-v5", "kwargs": kwargs, "atari": AtariConfig(training_frames=200)}
    actions = np.zeros((60, 2), np.int64)
    _, training = run(make(2, **settings), 0, actions)
    _, evaluation = run(make(2, training=False, **settings), 0, actions)
    ends = [t for t, step in enumerate(training) if step.truncated.all()]
    assert ends == [49]  # the 50th step of four frames
    assert not any(step.terminated.any() for step in training)
    assert not any(step.truncated.any() for step in evaluation)


def test_atari_is_reproducible_by_seed() -> None:
    actions = np.random.default_rng(4).integers(6, size=(40, 2))
    runs = [run(make(id="ALE/Pong-v5"), seed, actions) for seed in (1, 1, 9)]
    same = [all((a.obs == b.obs).all() for a, b in zip(runs[0][1], other[1], strict=True)) for other in runs[1:]]
    assert same == [True, False]


def test_reset_starts_anew_in_the_middle_of_an_episode() -> None:
    environments = make(id="ALE/Breakout-v5", kwargs='{"max_num_frames_per_episode": 100}')
    actions = np.random.default_rng(6).integers(4, size=(70, 2))
    first, steps = environments.reset(5), [environments.step(action) for action in actions]
    again, repeated = run(environments, 5, actions)
    np.testing.assert_array_equal(first, again)
    assert any(step.reset.any() for step in steps)
    for one, other in zip(steps, repeated, strict=True):
        for name in Step._fields:
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)


def test_reset_after_an_end_leaves_no_dummy_step() -> None:
    environments = make(id=COUNTDOWN, kwargs='{"lengths": [2]}')
    actions = np.zeros((2, 2), int)
    for _ in range(2):
        _, steps = run(environments, 0, actions)
        assert [step.reset.any() for step in steps] == [False, False]
        assert steps[-1].terminated.all()


def test_atari_rewards_are_the_game_s_own() -> None:
    actions = np.random.default_rng(7).integers(9, size=(90, 2))
    _, steps = run(make(id="ALE/MsPacman-v5"), 0, actions)
    assert {float(reward) for step in steps for reward in step.reward} >= {0.0, 10.0}


@pytest.mark.parametrize(
    ("shape", "dtype", "plane", "channels_last"),
    [
        ([12, 10, 3], "uint8", (3, 12, 10), True),
        ([3, 12, 10], "uint8", (3, 12, 10), False),
        ([12, 10], "uint8", (1, 12, 10), False),
        ([4, 5], "float32", (20,), False),
        ([6], "float64", (6,), False),
    ],
)
def test_observations_become_planes(shape: list[int], dtype: str, plane: tuple[int, ...], channels_last: bool) -> None:
    environments = make(id=COUNTDOWN, stack=2, kwargs=json.dumps({"shape": shape, "dtype": dtype, "lengths": [2]}))
    spec = environments.spec
    assert (spec.plane_shape, spec.dtype, spec.channels_last) == (plane, dtype, channels_last)
    assert spec.obs_shape == (2 * plane[0], *plane[1:])
    assert spec.is_image == (len(plane) == 3)
    first, steps = run(environments, 0, np.zeros((4, 2), int))
    for clock, obs in enumerate([first, *(step.obs for step in steps)], start=1):
        image = countdown_observation(clock, gymnasium.spaces.Box(0, 255, tuple(shape), np.dtype(dtype).type))
        expected = image.transpose(2, 0, 1) if channels_last else image.reshape(plane)
        np.testing.assert_array_equal(obs, np.stack([expected, expected]))
        assert obs.dtype == dtype


@pytest.mark.parametrize(
    ("shape", "channels", "understood"),
    [
        ([10, 10, 10], "auto", "images of 10 x 10 pixels, 10 channels, channels last, uint8"),
        ([17, 9, 9], "auto", "images of 9 x 9 pixels, 17 channels, channels first, uint8"),
        ([9, 9, 17], "auto", "images of 9 x 9 pixels, 17 channels, channels last, uint8"),
        ([3, 64, 3], "auto", "images of 3 x 64 pixels, 3 channels, channels last, uint8"),
        ([4, 7, 9], "auto", "images of 7 x 9 pixels, 4 channels, channels first, uint8"),
        ([10, 10, 10], "first", "images of 10 x 10 pixels, 10 channels, channels first, uint8"),
        ([4, 7, 9], "last", "images of 4 x 7 pixels, 9 channels, channels last, uint8"),
        ([1, 9, 9], "auto", "images of 9 x 9 pixels, 1 channel, uint8"),
        ([9, 7], "auto", "images of 9 x 7 pixels, 1 channel, uint8"),
        ([6], "auto", "vectors of 6 numbers, uint8"),
        ([2, 2, 2, 2], "auto", "vectors of 16 numbers (of [2, 2, 2, 2]), uint8"),
    ],
)
def test_where_channels_are_is_guessed_or_given_and_said(shape: list[int], channels: Any, understood: str) -> None:
    environments = make(id=COUNTDOWN, channels=channels, kwargs=json.dumps({"shape": shape, "dtype": "uint8"}))
    assert environments.spec.describe() == f"observations: {understood}; actions: 2"
    (obs, _), image = run(environments, 0, np.zeros((1, 2), int))[0], environments.spec.is_image
    own = countdown_observation(1, gymnasium.spaces.Box(0, 255, tuple(shape), np.uint8))
    last = "channels last" in understood
    np.testing.assert_array_equal(obs, own.transpose(2, 0, 1) if last else own.reshape(obs.shape))
    assert image == ("images" in understood)


def test_channels_are_given_only_where_there_are_some() -> None:
    assert config_error(lambda: make(channels="last")).startswith("environment.channels: 'last' is not allowed; ")
    message = config_error(lambda: make(id="ALE/Pong-v5", channels="first"))
    assert message == "environment.channels: 'first' is not allowed; ALE's are known; give auto"


def test_actions_count_from_zero_inside() -> None:
    environments = make(id=COUNTDOWN, kwargs='{"first_action": 1, "num_actions": 3}')
    assert (environments.spec.num_actions, environments.spec.actions.start) == (3, 1)
    run(environments, 0, np.array([[0, 2], [2, 0]]))  # 1 and 3 outside; the environment refuses others


def test_the_environment_s_own_errors_are_not_hidden() -> None:
    environments = make(id=f"{MODULE}:BreaksLater-v0")
    environments.reset(0)
    with pytest.raises(RuntimeError, match="the emulator is lost"):
        environments.step(np.zeros(2, int))
    environments.close()


@pytest.mark.parametrize("name", ["CartPole-v1", "Acrobot-v1", COUNTDOWN])
def test_wrappers_apply_from_the_inside_out(name: str) -> None:
    reward = -1 if name == "Acrobot-v1" else 1
    _, steps = run(make(id=name, wrappers=(f"{MODULE}:scaled", f"{MODULE}:shifted")), 0, np.zeros((3, 2), int))
    assert [step.reward.tolist() for step in steps] == [[3 * reward + 1] * 2] * 3
    assert steps[0].reward.dtype == np.float32


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({"id": "CartPol-v1"}, ["environment.id: 'CartPol-v1'", "not registered", "CartPole"]),
        ({"id": "ALE/Pongg-v5"}, ["environment.id: 'ALE/Pongg-v5'", "not registered", "Pong"]),
        ({"id": "Pong-v5"}, ["environment.id: 'Pong-v5'", "not registered; did you mean 'ALE/Pong-v5'?"]),
        ({"id": "two words"}, ["environment.id: 'two words'", "not registered"]),
        ({"id": "no_such_module:X-v0"}, ["environment.id: 'no_such_module:X-v0'", "importable module"]),
        ({"id": f"{MODULE}:Unknown-v0"}, [f"environment.id: '{MODULE}:Unknown-v0'", "not registered"]),
        ({"id": f"{MODULE}:Broken-v0"}, ["environment.id", "RuntimeError: the emulator is missing"]),
        ({"id": f"{MODULE}:SequenceObservation-v0"}, ["observation space Sequence", SEEN, "a wrapper of your own"]),
        ({"id": f"{MODULE}:TextObservation-v0"}, ["observation space Text", SEEN, "a wrapper of your own"]),
        ({"id": f"{MODULE}:GraphObservation-v0"}, ["observation space Graph", SEEN, "a wrapper of your own"]),
        ({"id": f"{MODULE}:NestedObservation-v0"}, ["observation space Dict", SEEN, "not Sequence(Discrete(2)"]),
        ({"id": f"{MODULE}:NoObservation-v0"}, ["observation space Dict()", "one that is not empty"]),
        ({"id": f"{MODULE}:DottedObservation-v0"}, ["the key 'a.b'", "give keys that are text without dots"]),
        ({"id": f"{MODULE}:MaskedWrongly-v0"}, ["an action mask of 3 numbers, for 2 choices"]),
        ({"id": f"{MODULE}:EmptyObservation-v0"}, ["environment.id", "(0,)", SEEN, "with at least one number each"]),
        ({"id": f"{MODULE}:TooManyActions-v0"}, ["environment.id", "MultiBinary(63)", "at most 2^62"]),
        ({"id": f"{MODULE}:UnboundedAction-v0"}, ["environment.id", "action space Box(-inf, inf, (2,)", ACTIONS]),
        ({"id": f"{MODULE}:HalfBoundedAction-v0"}, ["environment.id", "action space Box(0.0, inf, (2,)", ACTIONS]),
        ({"id": f"{MODULE}:NoNumberAction-v0"}, ["environment.id", "could not be made; ValueError: No low value"]),
        ({"id": f"{MODULE}:WholeNumberAction-v0"}, ["environment.id", "action space Box(0, 9, (2,), int64)", ACTIONS]),
        ({"id": f"{MODULE}:EmptyAction-v0"}, ["environment.id", "action space Box([], [], (0,)", ACTIONS]),
        ({"wrappers": ("math:pi",)}, ["environment.wrappers: 'math:pi'", "give module:function"]),
        ({"id": "ALE/Pong-v5", "kwargs": '{"frameskip": 2}'}, ["environment.kwargs: 'frameskip'", "environment.atari"]),
        ({"id": "ALE/Pong-v5", "kwargs": '{"batch_size": 1}'}, ["environment.kwargs: 'batch_size'"]),
        (
            {"id": "ALE/Pong-v5", "kwargs": '{"mode": 1}'},
            ["environment.kwargs: 'mode' is not known to ALE's", "AtariEnv"],
        ),
        ({"id": f"{MODULE}:NumberedObservation-v0"}, ["environment.id", "1", "give keys that are text without dots"]),
        (
            {"wrappers": ("no_such_module:f",)},
            ["environment.wrappers: 'no_such_module:f'", "give an importable module"],
        ),
        ({"wrappers": (f"{MODULE}:absent",)}, [f"environment.wrappers: '{MODULE}:absent'", "give module:function"]),
        ({"wrappers": ("scaled",)}, ["environment.wrappers: 'scaled'", "give module:function"]),
        ({"id": "ALE/Pong-v5", "wrappers": (f"{MODULE}:scaled",)}, ["environment.wrappers", "takes no wrappers"]),
        ({"kwargs": "{lengths: 3}"}, ["environment.kwargs: '{lengths: 3}'", "give one JSON object"]),
        ({"kwargs": "[1]"}, ["environment.kwargs: '[1]'", "give one JSON object"]),
        ({"kwargs": '{"gravity_": 1}'}, ["'CartPole-v1' could not be made", "gravity_"]),
        ({"id": "ALE/Pong-v5", "kwargs": '{"lives": 9}'}, ["'ALE/Pong-v5' could not be made", "lives"]),
        ({"id": COUNTDOWN, "kwargs": '{"length": 9}'}, ["could not be made", "length"]),
    ],
    ids=lambda value: None if isinstance(value, list) else "-".join(str(v) for v in value.values()),
)
def test_what_cannot_be_used_is_said_in_one_line(settings: dict[str, Any], parts: list[str]) -> None:
    message = config_error(lambda: make(**settings))
    for part in parts:
        assert part in message


def test_a_single_number_is_an_observation() -> None:
    environments = make(id=f"{MODULE}:ScalarObservation-v0")
    assert environments.spec.plane_shape == (1,)
    first, steps = run(environments, 0, np.zeros((2, 2), int))
    assert [obs.shape for obs in (first, *(step.obs for step in steps))] == [(2, 1)] * 3


@pytest.mark.parametrize(
    ("value", "said"),
    [("NaN", "nan"), ("Infinity", "inf"), ("-Infinity", "-inf"), ("-1e20", "-1e+20"), ("1e300", "1e+300")],
)
@pytest.mark.parametrize(("field", "at"), [("observation", 0), ("observation", 2), ("reward", 2)])
def test_numbers_that_cannot_be_learned_from_are_named(field: str, at: int, value: str, said: str) -> None:
    kwargs = f'{{"field": "{field}", "at": {at}, "value": {value}}}'
    with np.errstate(over="ignore"), pytest.raises(FloatingPointError) as raised:
        run(make(2, id=f"{MODULE}:Spoilt-v0", kwargs=kwargs), 0, np.zeros((3, 2), int))
    if field == "observation":  # in the type of the space
        said = "inf" if said == "1e+300" else said
    what = {"observation": "an observation with", "reward": "the reward"}[field]
    where = f"environment 0 of 2, {at} steps after the first reset"
    problem = f"{what} {said}, allowed is a magnitude of 1e+15"
    assert str(raised.value) == f"environment.id: '{MODULE}:Spoilt-v0' has {problem}: {where}"


@pytest.mark.parametrize(
    "infos",
    [
        [{"detections": [1.0]}, {"detections": [1.0, 2.0]}],
        [{"target": 1}, {"target": None}, {"target": "left"}],
        [{"id": 3}, {"id": 2**70}],
        [{"pose": {"x": 1}}, {"pose": 2}, {"pose": [[1, 2]]}],
        [{"action_mask": [1, 0], "late": 1}, {"action_mask": None}, {"action_mask": [True, True]}],
    ],
)
def test_nothing_in_info_but_a_mask_matters(infos: list[dict[str, Any]]) -> None:
    settings = {"id": f"{MODULE}:Told-v0", "kwargs": json.dumps({"infos": infos, "length": 4})}
    environments = make(3, **settings, action_masks="action_mask" in infos[0])
    _, steps = run(environments, 0, np.zeros((12, 3), int))
    assert [step.reset.any() for step in steps].count(True) == 2  # it went on through two ends
    assert environments.info_has_masks == ("action_mask" in infos[0])


def told(*masks: Any) -> Environments:
    infos = [{} if mask is None else {"action_mask": mask} for mask in masks]
    return make(2, id=f"{MODULE}:Told-v0", kwargs=json.dumps({"infos": infos}), action_masks=True)


def test_a_mask_may_come_with_steps_only() -> None:
    environments = told(None, [1, 0], [0, 1])
    first, steps = run(environments, 0, np.zeros((2, 2), int))
    masks = [
        unpack(environments.spec, planes, ("action_mask",))["action_mask"].tolist() for planes in (first, steps[0].obs)
    ]
    assert masks == [[[1, 1], [1, 0]], [[1, 0], [0, 1]]]


@pytest.mark.parametrize(
    ("mask", "said"), [([0, -math.inf], "-inf"), ([1, math.nan], "nan"), ([1, 0.5], "0.5"), ([2, 1], "2")]
)
def test_a_mask_is_of_zeros_and_ones(mask: list[float], said: str) -> None:
    with pytest.raises(
        ValueError, match=f"an action mask with {said}; give 0, 1, False or True .* environment 1 of 2, 0"
    ):
        told(None, mask).reset(0)


def test_a_mask_that_the_check_did_not_see_is_not_ignored() -> None:
    kwargs = json.dumps({"infos": [{}, {"action_mask": [1, 0]}]})
    environments = make(1, id=f"{MODULE}:Told-v0", kwargs=kwargs)
    environments.reset(0)
    with pytest.raises(ValueError, match=r"gives info\['action_mask'\].*; give --environment.action-masks True"):
        environments.step(np.zeros(1, int))
    ignoring = make(1, id=f"{MODULE}:Told-v0", kwargs=kwargs, action_masks=False)
    run(ignoring, 0, np.zeros((2, 1), int))
    assert not ignoring.spec.has_masks


def test_an_array_of_one_element_is_a_number() -> None:
    class Arrays(gymnasium.Wrapper[Any, Any, Any, Any]):
        def step(self, action: Any) -> Any:
            obs, reward, terminated, truncated, info = self.env.step(action)
            return obs, np.array([[reward]]), [terminated], np.array([truncated]), info

    environments = Environments(
        SyncVectorEnv([lambda: Adapter(Arrays(gymnasium.make(COUNTDOWN)))]), EnvironmentConfig()
    )
    step = run(environments, 0, np.zeros((1, 1), int))[1][0]
    assert (step.reward.shape, step.terminated.tolist(), step.truncated.tolist()) == ((1,), [False], [False])


def test_numbers_up_to_the_largest_are_taken() -> None:
    kwargs = '{"field": "reward", "at": 2, "value": -1e15}'
    _, steps = run(make(2, id=f"{MODULE}:Spoilt-v0", kwargs=kwargs), 0, np.zeros((2, 2), int))
    assert steps[-1].reward.tolist() == [np.float32(-1e15)] * 2


def test_a_vector_class_that_does_not_say_how_it_resets_is_not_used() -> None:
    """Its next episode would begin on what is taken for a dummy step."""
    _, steps = run(make(id=f"{MODULE}:Eager-v0"), 0, np.zeros((8, 2), int))
    assert [step.terminated.any() for step in steps] == [False, False, True, False] * 2
    assert [step.reset.any() for step in steps] == [False, False, False, True] * 2
    assert [step.reward[0] for step in steps] == [1, 1, 1, 0] * 2
    message = config_error(lambda: make(id=f"{MODULE}:EagerAlone-v0"))
    assert message == f"environment.id: '{MODULE}:EagerAlone-v0' has autoreset mode None; supported: NEXT_STEP"


def test_other_autoreset_modes_are_refused() -> None:
    message = config_error(
        lambda: make(id=COUNTDOWN, kwargs='{"vector_kwargs": {"autoreset_mode": "SameStep"}}'),
    )
    assert "environment.id" in message
    assert "NEXT_STEP" in message


@pytest.mark.parametrize("game", ["ALE/Pong-v5", "ale_py:ALE/Pong-v5"])
def test_colour_atari_is_channel_first(game):
    config = EnvironmentConfig(id=game, atari=AtariConfig(grayscale=False))
    environments = make_environments(config, 2, training=True)
    assert (environments.spec.plane_shape, environments.spec.action_repeat) == ((3, 84, 84), 4)
    own = AtariVectorEnv("pong", 2, grayscale=False, stack_num=1)
    planes, images = environments.reset(5), own.reset(seed=5)[0]
    np.testing.assert_array_equal(planes, np.moveaxis(images[:, 0], -1, 1))
    environments.close()
    own.close()
