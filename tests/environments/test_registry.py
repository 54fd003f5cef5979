"""An id that gymnasium does not know: what was imported, what that registers, and what to give."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from apex_acer.config import EnvironmentConfig
from apex_acer.environments.registry import find_spec, make_vector, nearest_id, require_everywhere
from apex_acer.environments.vector import make_environments
from tests.conftest import COUNTDOWN, config_error

MODULE = "tests.environments_for_tests"
OWN = """
import gymnasium

class Mine(gymnasium.Env):
    pass

class Other(gymnasium.Env):
    pass

gymnasium.register("Mine-v0", Mine)
"""


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("PongNoFrameskip-v4", "ALE/Pong-v5"),  # after `import ale_py` the older name is one like others
        ("LunarLander-v2", "LunarLander-v3"),
        ("Cartpole-v1", "CartPole-v1"),
        ("Nope-v1", None),
    ],
)
def test_the_nearest_id_is_one_that_can_be_used(name: str, near: str | None) -> None:
    assert nearest_id(name) == near


def refusal(name: str) -> str:
    """What is wrong with an id, without what each message begins with."""
    message = config_error(lambda: find_spec(EnvironmentConfig(id=name)))
    assert message.startswith(f"environment.id: {name!r} is not registered; ")
    return message.partition("; ")[2]


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Writes a module of the user's into the current folder, which is searched last."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path), tmp_path])  # Python passes over what is no text

    def write(name: str) -> None:
        (tmp_path / f"{name}.py").write_text(OWN)

    yield write
    for name in ("Mine-v0", "Here-v0"):
        gymnasium.registry.pop(name, None)


def test_what_a_module_does_not_register_is_told_what_it_does(own_module: Callable[[str], None]) -> None:
    own_module("games")
    assert refusal("games:Mine") == "it is a class, registered as Mine-v0; give games:Mine-v0"
    register = 'gymnasium.register("Other-v0", "games:Other")'
    assert refusal("games:Other") == f"it is a class; have games call {register} and give games:Other-v0"
    assert refusal("games:Mine-v1") == "did you mean games:Mine-v0?"
    assert refusal("games:Xyz-v7") == "the module registers Mine-v0; games is games.py"
    many = refusal(f"{MODULE}:Xyz-v7")
    assert " more; tests.environments_for_tests is " in many
    assert many.count(",") == 4


def test_a_module_that_hides_the_user_s_is_named(own_module: Callable[[str], None]) -> None:
    """The current folder is searched last, so Python's own come first."""
    own_module("this")
    said = refusal("this:Mine-v0")
    assert said.startswith("the module registers no id; this is /")
    assert said.endswith("which hides this.py of this folder: rename that")


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("Pong-v5", "did you mean 'ALE/Pong-v5'?"),
        ("MiniGrid-Empty-5x5-v0", "give minigrid:MiniGrid-Empty-5x5-v0 (pip install minigrid)"),
        ("MinAtar/Breakout-v1", "call register_envs of minatar.gym (pip install minatar)"),
        ("Nobody-v0", "give module:Id with the module that registers it (Environment `Nobody` doesn't exist.)"),
    ],
)
def test_an_id_without_its_module_is_told_the_module(name: str, how: str) -> None:
    assert how in refusal(name)


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("games/mine.py:Mine-v0", "give games.mine:Mine-v0"),
        ("./mine.py", "give mine:Id"),
        ("/tmp/mine.py:Mine-v0", "give mine:Mine-v0 in the folder /tmp"),
    ],
)
def test_a_file_in_place_of_a_module_is_told_the_module(name: str, instead: str) -> None:
    message = config_error(lambda: EnvironmentConfig(id=name))
    assert message == f"environment.id: {name!r} names a file; {instead}"


@pytest.mark.parametrize("name", ["Here-v0", "__main__:Here-v0"])
def test_what_only_this_program_registers_is_refused(own_module: Callable[[str], None], name: str) -> None:
    """Actors are other processes, which would not know it."""
    gymnasium.register("Here-v0", f"{MODULE}:Countdown")
    message = config_error(lambda: require_everywhere(EnvironmentConfig(id=name)))
    how = f"register it in tests/environments_for_tests.py and give {MODULE}:Here-v0, or engine serial"
    assert message == f"environment.id: {name!r} is registered in this program only, not in its actors; {how}"
    for known in (COUNTDOWN, "CartPole-v1", "ALE/Pong-v5"):
        require_everywhere(EnvironmentConfig(id=known))


def test_what_mujoco_warns_of_is_logged_and_leaves_no_file(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    mujoco = pytest.importorskip("mujoco")
    monkeypatch.chdir(tmp_path)
    config = EnvironmentConfig(id="HalfCheetah-v5")
    environments = make_environments(config, 1, training=True)
    assert environments.spec.actions.shape == (6,)
    environments.close()
    assert not caplog.records
    vector: Any = make_vector(config, 1)
    simulation = vector.envs[0].unwrapped
    simulation.data.qpos[0] = np.nan
    with caplog.at_level(logging.WARNING):
        mujoco.mj_step(simulation.model, simulation.data)
    assert "The simulation is unstable" in caplog.text
    assert not capfd.readouterr().err
    assert not list(tmp_path.iterdir())
