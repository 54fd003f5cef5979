"""Derives the seed of each process from the run's seed."""

from __future__ import annotations

import numpy as np

ROLES = ("learner", "actor", "evaluator", "opponent", "player")
ROOM = 2**16  # for vector environments, which count up from their seed; ALE takes seeds below 2**31


def derive_seed(seed: int, role: str, *numbers: int) -> int:
    """A seed for `role`; `numbers` are its index, its incarnation and anything else that must give another seed."""
    sequence = np.random.SeedSequence([seed, ROLES.index(role), *numbers])
    return int(sequence.generate_state(1, np.uint64)[0] % (2**31 - ROOM))
