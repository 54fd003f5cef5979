"""`apex-acer export WEIGHTS --onnx [flags]`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from apex_acer.cli.notice import Notice
from apex_acer.cli.parsing import Flag, parse
from apex_acer.config import require, writing
from apex_acer.config.imports import missing


@dataclass(frozen=True)
class Export:
    """Writes the policy in a weights file, its preprocessing included, in a format for other programs."""

    weights: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="WEIGHTS")]
    """A .safetensors file of a run."""
    onnx: Flag = False
    """As ONNX, the only format so far."""
    out: Annotated[str | None, tyro.conf.arg(metavar="FILE")] = None
    """The file to write; by default WEIGHTS with another ending."""
    import_modules: Flag = False
    """Import the modules that the file names, also those not of this program or gymnasium, which runs them."""


def run(arguments: list[str]) -> int:
    """Writes the file and says what goes in and comes out of it."""
    given = parse(Export, arguments, "export")
    require(given.onnx, "onnx", given.onnx, "give --onnx")
    path = Path(given.out) if given.out else Path(given.weights).with_suffix(".onnx")
    with writing("out", path):
        require(path.parent.is_dir() and not path.is_dir(), "out", str(path), "give a file in a folder that exists")
    try:
        from apex_acer.tools.export import BATCHES, export_onnx
    except ModuleNotFoundError as error:
        raise missing("export", "onnx", error) from None
    from apex_acer.actor.policy import load_policy

    policy = load_policy(given.weights, given.import_modules)
    with writing("out", path), Notice() as notice:
        notice.say("writing and checking it")
        written = export_onnx(policy, path)
    for kind, values in (("in", written.inputs), ("out", written.outputs)):
        for name, shape in values.items():
            print(f"{kind:<4} {name:<14} {shape}")
    batches = " and ".join(map(str, BATCHES))
    print(f"checked on batches of {batches}: differs from torch by at most {written.difference:.1g}")
    print(f"policy: {path}")
    return 0
