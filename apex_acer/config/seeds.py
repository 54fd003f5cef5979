"""Seeds of processes, derived from the run's."""

from __future__ import annotations

import numpy as np

ROLES = ("learner", "actor", "evaluator")
ROOM = 2**16  # vector environments count up from their seed, and ALE takes less than 2**31


def derive_seed(seed: int, role: str, *numbers: int) -> int:
    """A seed for `role`; `numbers` are its index, incarnation and whatever else makes streams differ."""
    sequence = np.random.SeedSequence([seed, ROLES.index(role), *numbers])
    return int(sequence.generate_state(1, np.uint64)[0] % (2**31 - ROOM))
