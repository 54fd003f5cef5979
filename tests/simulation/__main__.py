"""`python -m tests.simulation FIRST LAST` runs schedules on all cores; `SEED` shows one, with as few faults as it needs.

`python -m tests.simulation faults` puts the faults of `FOUND` into the program and says which schedule finds each.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time

from checks.mutations import SLOW_IMPORTS, Fault, copy_of_the_tree, faults

MOST = 2_000  # schedules in which a fault is to be found
FOUND = (
    "a message is taken twice",
    "an unroll is answered twice",
    "env_steps counts dummy steps",
    "fresh segments are given twice",
    "replayed batches cost nothing",
    "the checkpoint before goes first",
    "the learner's successor begins anew",
    "an evaluation is killed with its environments",
    "nobody hangs",
    "a slow environment hangs",
    "wall time begins anew with a resume",
    "a learner without a checkpoint is restarted",
    "the learner is not told to save",
    "an answer that was missed is not sent again",
    "a step is counted for the observation before it",
    "a reset is a step",
    "a lost episode goes on",
    "who leaves loses nothing",
)
"""The faults of `checks/faults.txt` that the simulation finds, whatever other tests find them."""


def simulate(first: int, last: int) -> int:
    """Runs the schedules from `first` to before `last`; prints those that fail; 1 if one does."""
    from tests.simulation.schedule import failure

    begun, failed = time.perf_counter(), 0
    with multiprocessing.get_context("forkserver").Pool(os.cpu_count()) as pool:
        for seed, wrong in pool.imap_unordered(failure, range(first, last), chunksize=20):
            if wrong:
                failed += 1
                print(f"schedule {seed}: {wrong}", flush=True)
    seconds = time.perf_counter() - begun
    print(
        f"{last - first:,} schedules in {seconds:.0f} s, {failed} failed; `python -m tests.simulation SEED` shows one"
    )
    return int(failed > 0)


def show(seed: int) -> int:
    """Prints the trace of a schedule, if it fails with as few of its faults as it still does."""
    from tests.simulation.schedule import report, run, shrink

    print(report(seed, shrink(seed) if run(seed).wrong else None))
    return 0


def first_schedule(fault: Fault) -> str:
    """The first schedule that fails with `fault` in the program, and how."""
    with copy_of_the_tree() as folder:
        path = folder / fault.file
        text = path.read_text(encoding="utf-8")
        assert text.count(fault.old) == 1, fault
        path.write_text(text.replace(fault.old, fault.new), encoding="utf-8")
        from tests.simulation.schedule import failure

        for seed in range(MOST):
            if wrong := failure(seed)[1]:
                return f"schedule {seed}: {wrong}"
    return "NOT found"


def find_faults() -> int:
    """Prints which schedule finds each fault; 1 if none of the first MOST finds one of them."""
    asked = [fault for fault in faults() if fault.what in FOUND]
    for name in SLOW_IMPORTS:
        __import__(name)
    missed = 0
    with multiprocessing.get_context("fork").Pool(os.cpu_count(), maxtasksperchild=1) as pool:
        for fault, said in zip(asked, pool.imap(first_schedule, asked), strict=True):
            missed += said.startswith("NOT")
            print(f"{fault.file}: {fault.what}: {said}", flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["faults"]:
            sys.exit(find_faults())
        case [seed]:
            sys.exit(show(int(seed)))
        case [first, last]:
            sys.exit(simulate(int(first), int(last)))
    sys.exit(__doc__)
