"""The list of faults keeps up with the code."""

from __future__ import annotations

from checks.mutations import faults
from tests import ROOT


def test_the_text_of_each_fault_is_in_its_file_once() -> None:
    texts = {fault.file: (ROOT / fault.file).read_text(encoding="utf-8") for fault in faults()}
    stale = [f"{fault.file}: {fault.what}" for fault in faults() if texts[fault.file].count(fault.old) != 1]
    assert not stale
    assert all(any(ROOT.glob(f"[tc]*s/{name}")) for fault in faults() for name in fault.tests)
