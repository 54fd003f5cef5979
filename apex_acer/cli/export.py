"""`apex-acer export WEIGHTS --onnx [flags]`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from apex_acer.cli.notice import Notice
from apex_acer.cli.parsing import Flag, ImportModules, Weights, parse
from apex_acer.config import ConfigError, require, writing
from apex_acer.config.imports import needs


@dataclass(frozen=True)
class Export:
    """Writes the policy of a weights file, including its preprocessing, in a format for other programs."""

    weights: Weights
    onnx: Flag = False
    """Write ONNX, the only format."""
    out: Annotated[str | None, tyro.conf.arg(metavar="FILE")] = None
    """The file to write; by default WEIGHTS with the suffix .onnx."""
    import_modules: ImportModules = False


def run(arguments: list[str]) -> int:
    """Writes the file and prints the shapes of its inputs and outputs."""
    given = parse(Export, arguments, "export")
    if not given.onnx:
        raise ConfigError("export: no format is given; give --onnx")
    path = Path(given.out) if given.out else Path(given.weights).with_suffix(".onnx")
    with writing("out", path):
        require(path.parent.is_dir() and not path.is_dir(), "out", str(path), "give a file in a folder that exists")
        is_own = path.exists() and path.samefile(given.weights)
        require(not is_own, "out", str(path), "it is the weights file; give another")
    with needs("export", "onnx"):
        from apex_acer.tools.export import BATCHES, export_onnx
    from apex_acer.actor.policy import load_policy

    policy = load_policy(given.weights, given.import_modules)
    with writing("out", path), Notice() as notice:
        notice.say("writing and checking the file")
        written = export_onnx(policy, path)
    for kind, values in (("in", written.inputs), ("out", written.outputs)):
        for name, shape in values.items():
            print(f"{kind:<4} {name:<14} {shape}")
    batches = " and ".join(map(str, BATCHES))
    print(f"checked on batches of {batches}: the outputs differ from torch's by at most {written.difference:.1g}")
    print(f"policy: {path}")
    return 0
