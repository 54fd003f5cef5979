"""What is shipped: the wheel, and the files that make a container image."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from configparser import ConfigParser
from importlib import metadata
from pathlib import Path

import pytest

from apex_acer import __version__
from apex_acer.runfile import presets

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
SOURCES = ("apex_acer", "launch", "tests", "pyproject.toml", "setup.cfg", "README.md", "LICENSE")
NO_COMPILED = shutil.ignore_patterns("__pycache__")


def call(*command: str | Path, cwd: Path = ROOT) -> str:
    """Output of a command that must succeed."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_every_package_is_listed() -> None:
    config = ConfigParser()
    config.read(ROOT / "setup.cfg")
    found = {".".join(path.parent.relative_to(ROOT).parts) for path in (ROOT / "apex_acer").rglob("__init__.py")}
    assert set(config["options"]["packages"].split()) == {*found, "apex_acer.launch"}


def test_the_version_is_written_once_for_all() -> None:
    assert metadata.version("apex_acer") == __version__


def tool(name: str) -> Path:
    """A linter beside this Python; the test is skipped where it is not installed."""
    if not (BIN / name).exists():
        pytest.skip(f"{name} is not installed")
    return BIN / name


def test_the_dockerfile_has_no_faults(tmp_path: Path) -> None:
    assert not call(tool("hadolint"), "Dockerfile")
    (tmp_path / "Dockerfile").write_text("FROM python\nRUN cd /tmp && sudo pip install torch\n")
    done = subprocess.run([tool("hadolint"), tmp_path / "Dockerfile"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "sudo" in done.stdout


def test_what_the_dockerfile_copies_is_there_and_sent() -> None:
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    copied = {name for line in lines if line.startswith("COPY ") for name in line.split()[1:-1]}
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert copied == sent
    assert all((ROOT / name).exists() for name in copied)


def test_the_image_runs_as_a_user_without_rights_and_reaps() -> None:
    text = (ROOT / "Dockerfile").read_text()
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
    files = {f"apex_acer/launch/{name}" for name in ("__init__.py", *(f"{preset}.toml" for preset in presets()))}
    assert names == {*modules, *files, "apex_acer/py.typed"}
    assert f"Version: {__version__}" in described
    assert "Requires-Python: >=3.11" in described
    assert "# apex_acer" in described  # the page that a package index shows


@pytest.mark.slow
def test_an_installed_wheel_trains_from_anywhere(wheel: Path, tmp_path: Path) -> None:
    """In an environment of its own, which takes the dependencies from this one."""
    venv.create(tmp_path / "venv")
    python, command = (tmp_path / "venv" / "bin" / name for name in ("python", "apex-acer"))
    call(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel)
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    where = call(python, "-c", "import apex_acer; print(apex_acer.__file__)", cwd=elsewhere)
    assert Path(where.strip()).is_relative_to(site)
    for program in ([command], [python, "-m", "apex_acer"]):
        assert call(*program, "--version", cwd=elsewhere) == f"apex-acer {__version__}\n"
        listed = call(*program, "presets", cwd=elsewhere).splitlines()
        assert [line.split()[0] for line in listed] == list(presets())
    said = call(command, "train", "cartpole", "--engine", "serial", "--steps", "500", cwd=elsewhere)
    assert "weights: " in said
    assert list(elsewhere.glob("runs/cartpole-v1-*/weights.safetensors"))
