"""Whole runs in one process under a seeded scheduler with virtual time: `make simulate`.

The manager, supervisor, learner, inbox, actors, evaluator and checkpoints are the program's own; only what an engine does
(processes, sockets, clocks) and the system calls that write files are simulated. A schedule is one integer. FoundationDB is
tested this way (Zhou et al. 2021, https://doi.org/10.1145/3448016.3457559).
"""
