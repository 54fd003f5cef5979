"""The list of faults keeps up with the code."""

from __future__ import annotations

from tests import ROOT
from tests.mutations import faults


def test_the_text_of_each_fault_is_in_its_file_once() -> None:
    texts = {fault.file: (ROOT / fault.file).read_text(encoding="utf-8") for fault in faults()}
    stale = [f"{fault.file}: {fault.what}" for fault in faults() if texts[fault.file].count(fault.old) != 1]
    assert not stale
    assert all((ROOT / "tests" / name).exists() for fault in faults() for name in fault.tests if "*" not in name)
