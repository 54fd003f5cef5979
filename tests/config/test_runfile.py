"""Run files: what is written is what is read, files on top of others, and what is wrong in one line."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from apex_acer.algorithms.acer.settings import AcerConfig
from apex_acer.algorithms.dqn.settings import ApexDqnConfig
from apex_acer.algorithms.on_policy.settings import PpoConfig
from apex_acer.config import (
    ActorsConfig,
    AlgorithmConfig,
    AtariConfig,
    CheckpointConfig,
    EnvironmentConfig,
    EvaluationConfig,
    LearnerConfig,
    LoggingConfig,
    NetworkConfig,
    OptimizerConfig,
    RayConfig,
    RemoteConfig,
    ReplayConfig,
    RunConfig,
    SelfPlayConfig,
    StopConfig,
    SupervisionConfig,
)
from apex_acer.config.runfile import dump_run, from_dict, leaves, load_run, look_at_run, parse_run, presets, to_dict
from apex_acer.tools.sweep.variants import make_variants
from tests.conftest import config_error

CHANGED = RunConfig(
    environment=EnvironmentConfig(
        id="mine:Images-v5",
        kwargs='{"name": "a \\"b\\" é"}',
        wrappers=("a:b", "c.d:e"),
        stack=4,
        channels="last",
        action_masks=True,
        atari=AtariConfig(2, 0.25, 7, False, False, 9000, True, False, 96),
        remote=RemoteConfig(
            *("0.0.0.0:80", "my/token", "my/chain", "my/key", True, ("https://a.b",), 8, 0.0),
            *((3, 4), "uint8", '{"a": {"n": 2}}', 2, (3, 2), (-1.0,), (2.0,), "Mine-v1"),
        ),
    ),
    actors=ActorsConfig(3, 5, 0.5, 2.0, 40, 3, "cuda", 1),
    learner=LearnerConfig(1, "cuda:1", "bfloat16", 8, 2, 7, "my_module:look"),
    optimizer=OptimizerConfig("adam", 3e-4, "linear", 0.05, 1e-8, 0.999, 1.0, 0.5),
    network=NetworkConfig("conv", "a3c", True, (512, 16), 32, "tanh", True),
    replay=ReplayConfig(5_000, 0, "prioritized", 0.7, 0.5, 1.0, "cpu", "runs/first", True),
    algorithm=AcerConfig(
        gamma=0.9,
        unroll_length=5,
        burn_in=2,
        replay_ratio=0.5,
        truncation_threshold=5.0,
        trust_region_delta=2.0,
        ema_decay=0.995,
        entropy_cost=0.0,
        q_cost=1.0,
        reward_clip=1.0,
        terminal_penalty=1.0,
        normalise_rewards=True,
    ),
    evaluation=EvaluationConfig(7, 3, 2, False, 4, "mine:strong"),
    self_play=SelfPlayConfig(3, 50, 0.25),
    checkpoint=CheckpointConfig(9, True),
    logging=LoggingConfig(0.1, 30.0, "debug", ("mlflow",), True),
    supervision=SupervisionConfig(5.0, 1.5, 3, 2.0),
    ray=RayConfig("head:6379", 0.5, True),
    stop=StopConfig(77, 1.5, -3.25),
    engine="ray",
    seed=42,
    schedule_steps=99,
    out="runs/ü \\ 'here'",
    load="some.safetensors",
)
DEFAULT = RunConfig()


@pytest.mark.parametrize("config", [DEFAULT, CHANGED, RunConfig(algorithm=ApexDqnConfig(n_steps=5))])
def test_toml_and_dicts_give_back_the_same_configuration(config: RunConfig) -> None:
    assert parse_run(dump_run(config), "x") == config
    assert from_dict(to_dict(config)) == config
    assert "None" not in dump_run(config)
    default, changed = (dict(leaves(to_dict(config))) for config in (DEFAULT, CHANGED))
    same = {name for name in changed if default.get(name) == changed[name]}
    assert same == {"algorithm.name", "learner.count"}  # several learners cannot have all of the other keys


def test_presets_load_and_describe_themselves() -> None:
    for name, description in presets().items():
        assert isinstance(load_run(name), RunConfig), name
        assert description, name
        assert not description.startswith(("#", "[")), name
    assert load_run("cartpole").stop.at_return == 490.0


def test_a_base_gives_what_a_file_leaves_out(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('base = "cartpole"\n[optimizer]\neps = 1e-2\n[environment]\nid = "Acrobot-v1"\n')
    cartpole, mine = load_run("cartpole"), load_run(str(path))
    environment = dataclasses.replace(cartpole.environment, id="Acrobot-v1")
    optimizer = dataclasses.replace(cartpole.optimizer, eps=1e-2)
    assert mine == dataclasses.replace(cartpole, environment=environment, optimizer=optimizer)
    assert parse_run(f'base = "{path}"\nseed = 7\n', "above") == dataclasses.replace(mine, seed=7)
    path.write_text('base = "cartpole"\n[algorithm]\nname = "apex_dqn"\nn_steps = 5\n')
    above = parse_run(f'base = "{path}"\nseed = 3\n[algorithm]\ngamma = 0.5', "above")
    assert above.algorithm == ApexDqnConfig(n_steps=5, gamma=0.5)  # a file that names no algorithm keeps its base's
    without = parse_run('base = "cartpole"\n[stop]\nat_return = "None"', "mine")  # TOML has no None
    assert without == load_run("cartpole", stop={"at_return": None}) != cartpole
    assert "at_return" not in dump_run(without)


@pytest.mark.parametrize(
    ("base", "table", "algorithm"),
    [
        ("cartpole", 'name = "apex_dqn"\nn_steps = 5', ApexDqnConfig(n_steps=5)),
        ("cartpole-apex-dqn", 'name = "acer"\nq_cost = 2', AcerConfig(q_cost=2.0)),
        ("cartpole", 'name = "acer"', load_run("cartpole").algorithm),
    ],
)
def test_a_base_of_another_algorithm_gives_all_but_its_algorithm(
    base: str, table: str, algorithm: AlgorithmConfig
) -> None:
    mine = parse_run(f'base = "{base}"\n[algorithm]\n{table}', "mine")
    assert mine == dataclasses.replace(load_run(base), algorithm=algorithm)
    without = parse_run(f'base = "{base}"\n[algorithm]\nname = "ppo"', "mine")
    expected = dataclasses.replace(load_run(base), algorithm=PpoConfig(), replay=ReplayConfig())
    assert without == expected  # it has no replay


def test_bases_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    for base, said in (
        ('"cartpol"', "did you mean 'cartpole'"),
        ("3", "base: 3 is not allowed; give a preset or a TOML file"),
        (f'"{path}"', "cannot be built on each other"),
    ):
        path.write_text(f"base = {base}")
        assert said in config_error(lambda: load_run(str(path)))


def test_runs_load_from_paths(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(dump_run(CHANGED), encoding="utf-8")
    assert load_run(str(path)) == CHANGED
    plain = tmp_path / "plain"
    plain.write_text("seed = 3", encoding="utf-8-sig")  # Windows' editors write a byte order mark
    assert load_run(plain) == dataclasses.replace(DEFAULT, seed=3)
    path.write_bytes(b"\xff\xfe\x00")
    assert config_error(lambda: load_run(str(path))).startswith(f"{path}: not UTF-8")
    path.unlink()
    assert config_error(lambda: load_run(str(path))).startswith(f"{path}: No such file")
    assert config_error(lambda: load_run(tmp_path)).endswith("preset; `apex-acer presets` lists all")


def test_a_run_is_a_name_a_path_or_a_configuration_and_takes_changes(tmp_path: Path) -> None:
    """As a run file that has it as its `base`: sections may be dicts, whose other keys stay, or objects."""
    (tmp_path / "run.toml").write_text('base = "cartpole"')
    preset = load_run("cartpole")
    stop = dataclasses.replace(preset.stop, env_steps=7, at_return=None)
    expected = dataclasses.replace(preset, seed=3, stop=stop)
    for run in ("cartpole", tmp_path / "run.toml", str(tmp_path / "run.toml"), preset):
        assert load_run(run) == preset
        assert load_run(run, seed=3, stop={"env_steps": 7, "at_return": None}) == expected
        assert load_run(run, seed=3, stop=stop) == expected
        assert load_run(run, algorithm={"name": "apex_dqn"}).algorithm == ApexDqnConfig()
        assert load_run(run, algorithm=ApexDqnConfig(n_steps=5)).algorithm == ApexDqnConfig(n_steps=5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stop": {"env_step": 1}}, "unknown key stop.env_step; did you mean stop.env_steps?"),
        ({"stop": ReplayConfig()}, "is not a table; in a file write [stop], then env_steps = …; in Python give a dict"),
        ({"environment": {"id": RunConfig}}, "the one that it is registered as, or module:Id"),
        ({"environment": {"wrappers": ReplayConfig()}}, "is not allowed; give a list"),
        ({"total_timesteps": 1}, "unknown key total_timesteps; did you mean env_steps in the section stop?"),
        ({"stop": {1: 2}}, "unknown key stop.1; allowed: env_steps, minutes, at_return"),
        ({"seed": -1}, "seed: -1 is not allowed; give 0 to 2147483647"),
    ],
)
def test_changes_that_cannot_be_made_are_said_in_one_line_and_not_blamed_on_the_file(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("[stop]\nenv_steps = 5\n")
    for run in (path, DEFAULT):
        said = config_error(lambda run=run: load_run(run, **changes))  # type: ignore[misc]
        assert said.startswith("keywords: ")
        assert said.endswith(message)
    path.write_text("[stop]\nenv_steps = 0\n")
    wrong = f"{path}: stop.env_steps: 0 is not allowed; give 1 or more"
    assert config_error(lambda: load_run(path, seed=3)) == wrong
    assert load_run(path, stop={"env_steps": 7}).stop.env_steps == 7


@pytest.mark.parametrize("run", [None, {"seed": 3}, RunConfig])
def test_what_is_no_run_is_said_in_one_line(run: Any) -> None:
    message = config_error(lambda: load_run(run))
    assert message.startswith("run: ")
    assert "give a preset's name, a path or a RunConfig; keys are keywords: seed=1" in message


@pytest.mark.parametrize(
    ("name", "near"), [("hopper", r"did you mean 'hopper-\w+'( or 'hopper-\w+')+\? "), ("zzzz", "")]
)
def test_an_unknown_preset_suggests_the_nearest_few(name: str, near: str) -> None:
    message = config_error(lambda: load_run(name))
    listed = "give a .toml file, the folder of a run or a preset; `apex-acer presets` lists all"
    assert re.fullmatch(f"run: '{name}' is neither a preset nor a file; {near}{listed}", message)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("seed = ", "not TOML: "),
        ("lr = 1", "unknown key lr; did you mean learning_rate in the section optimizer?"),
        ("[algorithm]\nlearning_rate = 1", "did you mean optimizer.learning_rate?"),
        ("[environment]\nn_envs = 1", "did you mean actors.environments?"),
        ("[checkpoint]\nzzz = 1", "unknown key checkpoint.zzz; allowed: every"),
        ("[actor]\ncount = 1", "unknown key actor; did you mean actors?"),
        ("seed = 1.5", "seed: 1.5 is not allowed; give int"),
        ("[evaluation]\ngreedy = 1", "evaluation.greedy: 1 is not allowed; give bool"),
        ("[stop]\nminutes = 'two'", "stop.minutes: 'two' is not allowed; give float"),
        ("[stop]\nenv_steps = 'None'", "stop.env_steps: 'None' is not allowed; give int"),
        ("[actors]\ncount = 2020-01-01", "actors.count"),
        ("actors = 2", "actors: 2 is not a table; in a file write [actors]"),
        ("base = 'pong'\nalgorithm = 3", "algorithm: 3 is not a table; in a file write [algorithm]"),
        ("[algorithm]\nname = 'apex_dqn'\nn_step = 3", "did you mean algorithm.n_steps?"),
        ("base = 'pong'\n[algorithm]\nname = 'apex_dqn'\nq_cost = 3", "unknown key algorithm.q_cost;"),
        ("base = 'pong'\n[algorithm]\nname = 3", "algorithm.name: 3 is not allowed; give acer, "),
    ],
)
def test_wrong_keys_and_types_are_said_in_one_line(text: str, part: str) -> None:
    message = config_error(lambda: parse_run(text, "here.toml"))
    assert message.startswith("here.toml: ")
    assert part in message


def test_a_run_file_is_looked_at_without_its_algorithm_s_module(tmp_path: Path) -> None:
    text = 'base = "cartpole"\n[algorithm]\nname = "absent:ExpectedSarsa"\ntemperature = 2'
    (tmp_path / "mine.toml").write_text(text)
    config = look_at_run(tmp_path / "mine.toml")
    assert config.algorithm.name == "absent:ExpectedSarsa"
    assert to_dict(config)["algorithm"]["temperature"] == 2
    assert config.environment == load_run("cartpole").environment
    assert "'absent:ExpectedSarsa' cannot be imported" in config_error(lambda: parse_run(text, "mine"))


def test_a_runs_folder_stands_for_its_config_and_a_preset_goes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("mine", "pong"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.toml").write_text('base = "cartpole"\nseed = 7\n')
    assert load_run("mine").seed == 7
    assert load_run(str(tmp_path / "mine")) == load_run("./pong")
    assert load_run("pong").environment.is_atari
    (tmp_path / "empty").mkdir()
    assert "'empty' is neither a preset nor a file; this folder has no config.toml" in config_error(
        lambda: load_run("empty")
    )
    how = "an environment's id goes with a preset, as cartpole --environment.id Ant-v5"
    assert f"nor a file; {how}; " in config_error(lambda: load_run("Ant-v5"))


@pytest.mark.parametrize("text", ["[environment.kwargs]\nlength = 7\n", "[environment]\nkwargs = {length = 7}\n"])
def test_keyword_arguments_may_be_a_table(text: str) -> None:
    config = parse_run(f'base = "cartpole"\n{text}', "given")
    assert config.environment.keyword_arguments() == {"length": 7}
    assert parse_run(dump_run(config), "dumped") == config == from_dict(json.loads(json.dumps(to_dict(config))))
    (variant,) = make_variants(config, ['environment.kwargs={"length": 9}'], "plain")
    assert variant.config.environment.keyword_arguments() == {"length": 9}


def test_atari_machado_is_their_protocol() -> None:
    """Machado et al. 2018: sticky actions, the full action set, nothing told of lost lives, no help at a reset."""
    atari = load_run("atari-machado").environment.atari
    assert (atari.sticky_actions, atari.full_action_space, atari.frame_skip) == (0.25, True, 4)
    assert (atari.life_loss, atari.fire_reset, atari.noop_max) == (False, False, 0)


def test_a_file_with_the_name_that_a_key_had_is_read() -> None:
    """Or with a key that has no effect any more."""
    assert from_dict({"evaluation": {"stall_steps": 100, "every": 3}}) == from_dict({"evaluation": {"every": 3}})
    assert from_dict({"algorithm": {"name": "ddpg", "critics": 2}}) == from_dict(
        {"algorithm": {"name": "ddpg", "num_critics": 2}}
    )
