"""Verbs whose packages are not installed."""

from __future__ import annotations

import sys

import pytest

from tests.tools.conftest import refusal


@pytest.mark.parametrize(
    ("command", "package", "extra"),
    [
        ("export x.safetensors --onnx", "onnxruntime", "onnx"),
        ("export x.safetensors --onnx", "onnxscript", "onnx"),
        ("sweep cartpole --seeds 1", "scipy", "sweep"),
        ("tune cartpole --vary algorithm.gamma=0.1:0.9", "optuna", "tune"),
    ],
)
def test_without_an_extra_one_line_says_how_to_install_it(
    command: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith(("apex_acer.tools.", f"{package}."))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    assert f"{package} is not installed; pip install 'apex-acer[{extra}]'" in refusal(capsys, *command.split())
