"""What is shipped: the wheel, and the files that make a container image."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import venv
import zipfile
from configparser import ConfigParser
from importlib import metadata
from pathlib import Path
from urllib.request import urlopen

import pytest

import apex_acer
from apex_acer import __version__
from apex_acer.config.runfile import presets
from apex_acer.views.figures import FIGURES
from tests import ROOT

BIN = Path(sys.executable).parent
SOURCES = ("apex_acer", "launch", "tests", "pyproject.toml", "setup.cfg", "README.md", "LICENSE")
NO_COMPILED = shutil.ignore_patterns("__pycache__")


def call(*command: str | Path, cwd: Path = ROOT) -> str:
    """Output of a command that must succeed."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_every_package_is_listed_and_the_version_written_once() -> None:
    config = ConfigParser()
    config.read(ROOT / "setup.cfg")
    found = {".".join(path.parent.relative_to(ROOT).parts) for path in (ROOT / "apex_acer").rglob("__init__.py")}
    assert set(config["options"]["packages"].split()) == {*found, "apex_acer.launch"}
    assert metadata.version("apex_acer") == __version__


def test_the_tools_are_not_installed_for_a_run() -> None:
    for target, expected in {"run": False, "install": True, "test": True}.items():
        commands = call("make", "--dry-run", "--always-make", target)
        assert "pip install" in commands
        assert ("[dev]" in commands) == expected, target


@pytest.mark.slow
def test_a_strict_type_check_accepts_the_public_names(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(f"from apex_acer import {', '.join(apex_acer.__all__)}\n")
    # other packages are not followed: with torch's types it takes ten times as long
    strict = f"[mypy]\nmypy_path = {ROOT}\nstrict = True\nfollow_imports = skip\nignore_missing_imports = True\n"
    (tmp_path / "mypy.ini").write_text(f"{strict}[mypy-apex_acer.*]\nfollow_imports = silent\n")
    call(tool("mypy"), "mine.py", cwd=tmp_path)


def tool(name: str) -> Path:
    """A linter beside this Python; the test is skipped where it is not installed."""
    if not (BIN / name).exists():
        pytest.skip(f"{name} is not installed")
    return BIN / name


def test_the_image_has_no_faults_has_what_it_needs_and_runs_as_a_user_without_rights() -> None:
    assert not call(tool("hadolint"), "Dockerfile")
    text = (ROOT / "Dockerfile").read_text()
    copied = {name for line in text.splitlines() if line.startswith("COPY ") for name in line.split()[1:-1]}
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert copied == sent
    assert all((ROOT / name).exists() for name in copied)
    assert re.search(r"^USER [1-9]\d*$", text, re.MULTILINE)
    assert 'ENTRYPOINT ["tini", "--", "apex-acer"]' in text


def test_compose_is_valid_and_publishes_to_loopback_only() -> None:
    call(tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", "compose.yaml")
    from ruamel.yaml import YAML

    services = YAML(typ="safe").load(ROOT / "compose.yaml")["services"]
    published = [port for service in services.values() for port in service.get("ports", [])]
    assert published == ["127.0.0.1:6006:6006"]
    assert services["train"]["network_mode"] == "none"
    assert not any("privileged" in service or service.get("network_mode") == "host" for service in services.values())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of a copy of this tree."""
    if not importlib.util.find_spec("build"):
        pytest.skip("build is not installed")
    folder = tmp_path_factory.mktemp("wheel")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=NO_COMPILED)
        else:
            shutil.copy(ROOT / name, folder)
    call(sys.executable, "-m", "build", "--wheel", "--no-isolation", cwd=folder)
    (path,) = (folder / "dist").iterdir()
    return path


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        (information,) = (name for name in archive.namelist() if name.endswith("METADATA"))
        described = archive.read(information).decode()
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "apex_acer").rglob("*.py")}
    recipes = ("ray-aws.yaml", "ray-on-premise.yaml", "slurm.sh")
    launch = ("__init__.py", *(f"{preset}.toml" for preset in presets()), *recipes)
    files = {f"apex_acer/launch/{name}" for name in launch}
    assert names == {*modules, *files, "apex_acer/py.typed"}
    assert f"Version: {__version__}" in described
    assert "Requires-Python: >=3.11" in described
    assert "# apex_acer" in described  # the page that a package index shows


@pytest.mark.slow
def test_a_new_user_s_first_hour(wheel: Path, tmp_path: Path) -> None:
    """Every verb of an installed wheel at the first try, in the order of the README, outside of the repository."""
    venv.create(tmp_path / "venv")
    python, command = (tmp_path / "venv" / "bin" / name for name in ("python", "apex-acer"))
    call(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel)
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))  # they are this environment's
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    where = call(python, "-c", "import apex_acer; print(apex_acer.__file__)", cwd=folder)
    assert Path(where.strip()).is_relative_to(site)

    def say(*arguments: str) -> str:
        return call(command, *arguments, cwd=folder)

    assert call(python, "-m", "apex_acer", "--version", cwd=folder) == say("--version") == f"apex-acer {__version__}\n"
    assert [line.split()[0] for line in say("presets").splitlines()] == list(presets())
    trained = say("train", "cartpole")
    assert "the target return is reached" in trained
    (run,) = (folder / "runs").iterdir()
    name, weights = f"runs/{run.name}", f"runs/{run.name}/weights.safetensors"
    assert f"weights: {run}/weights.safetensors" in trained
    row = next(line for line in say("runs").splitlines() if run.name in line)
    assert "CartPole-v1" in row
    assert "ended: at_return" in row
    figures = say("plot", name).split()
    assert {Path(figure).name for figure in figures} == {f"{figure}.png" for figure in FIGURES}
    assert all((folder / figure).stat().st_size > 10_000 for figure in figures)
    assert "video: game.mp4" in say("play", weights, "--video", "game.mp4")
    assert (folder / "game.mp4").stat().st_size > 10_000
    shows: list[str | Path] = [command, "dashboard", name, "--port", "0"]
    with subprocess.Popen(shows, cwd=folder, stdout=subprocess.PIPE, text=True) as dashboard:
        assert dashboard.stdout
        with urlopen(dashboard.stdout.readline().split()[0].partition("#")[0], timeout=60) as page:
            assert b"TensorBoard" in page.read()
        dashboard.send_signal(signal.SIGINT)
        assert dashboard.wait(30) == 0
    evaluated = say("evaluate", weights)
    assert float(evaluated.partition("mean ")[2].partition(",")[0]) >= 475
    steps = int(json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["env_steps"]) + 2000
    assert "the step budget is used up" in say("resume", name, "--steps", str(steps))
    assert "ended: env_steps" in say("runs")
