"""Verbs whose packages are not installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.conftest import Refused

USERS = ("apex_acer.tools.", "apex_acer.views.plots", "apex_acer.environments.display", "apex_acer.engines.ray.link")
"""The modules that import such a package."""


@pytest.mark.parametrize(
    ("command", "package", "extra"),
    [
        ("export x.safetensors --onnx", "onnxruntime", "onnx"),
        ("export x.safetensors --onnx", "onnxscript", "onnx"),
        ("sweep cartpole --seeds 1", "scipy", "sweep"),
        ("tune cartpole --vary algorithm.gamma=0.1:0.9", "optuna", "tune"),
        ("plan cartpole --compress", "lz4.frame", "ray"),
        ("play x.safetensors", "av", "video"),
        ("plot x", "matplotlib", "plot"),
        ("dashboard .", "tensorboard", "dashboard"),
    ],
)
def test_without_an_extra_one_line_says_how_to_install_it(
    command: str, package: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("events.tfevents.1").touch()
    loaded = {name: module for name, module in sys.modules.items() if name.startswith((*USERS, f"{package}."))}
    for name in loaded:  # from the packages, too, which have them again afterwards
        parent, _, last = name.rpartition(".")
        monkeypatch.delattr(sys.modules[parent], last, raising=False)
    for name in loaded:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    assert f"{package} is not installed; pip install 'apex-acer[{extra}]'" in refused(*command.split())
