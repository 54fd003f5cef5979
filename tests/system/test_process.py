"""What a process finds out about itself."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system gives each process all cores")
def test_a_process_that_may_use_one_core_of_several_knows_it() -> None:
    code = "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]); "
    code += "from apex_acer.system.process import available_cores; print(available_cores())"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "1\n"
