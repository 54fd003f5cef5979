"""`apex-acer serve WEIGHTS [flags]`."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from apex_acer.cli.notice import Notice
from apex_acer.cli.parsing import parse
from apex_acer.cli.policies import WeightsFlags, evaluation_settings
from apex_acer.config import ConfigError, ListenConfig, reading, require
from apex_acer.system.imports import needs
from apex_acer.system.output import say
from apex_acer.system.signals import Signals

if TYPE_CHECKING:
    from apex_acer.actor.policy import Policy
    from apex_acer.remote.server import Server

WAIT_S = 0.2  # for requests, between two looks at signals and the file
NOTICE_S = 1.0
LATENCIES = 100_000  # the newest, for the last line


@dataclass(frozen=True)
class Serve(WeightsFlags):
    """Acts for remote clients (docs/remote.md) with a weights file, read again when it changes. Ctrl-C ends it."""

    server: ListenConfig = field(default_factory=ListenConfig)
    policy: Literal["greedy", "sampled"] | None = None
    """Greedy or sampled actions; by default as in the run's evaluations."""


def serve(arguments: list[str]) -> int:
    """Prints the address and the token, and serves until a signal comes."""
    options = parse(Serve, arguments)
    with needs("serve", "remote"):
        from apex_acer.remote.server import Server
    import torch

    from apex_acer.actor.policy import load_policy
    from apex_acer.remote.token import make_token, read_token, token_file

    torch.set_num_threads(1)
    path, settings = Path(options.weights), options.server
    policy = load_policy(path, options.import_modules)
    allowed = "remote clients cannot have Dict or Tuple actions; give a policy with others"
    require(bool(policy.spec.actions.client_space()), "serve", options.weights, allowed)
    new, token = make_token(settings, path.parent), read_token(settings, path.parent)
    with contextlib.closing(Server(settings, policy.spec, token)) as server:
        say(f"serving {policy.spec.describe()}")
        say(f"remote clients connect to {settings.url}; their token is in {token_file(settings, path.parent)}")
        if new and sys.stdout.isatty():
            say(f"token: {new}")
        greedy = evaluation_settings(policy.config, None, options.policy).greedy
        say(_act(server, policy, path, greedy=greedy))
    return 0


def _act(server: Server, policy: Policy, path: Path, *, greedy: bool) -> str:
    """Acts for clients with the newest weights in the file `path` until a signal comes; returns a line that sums it up."""
    from apex_acer.actor.remote_rollout import RemoteRollout

    rollout = RemoteRollout(server, policy, seed=policy.config.seed, greedy=greedy)
    latencies: deque[float] = deque(maxlen=LATENCIES)
    loaded, shown_at = _stamp(path), time.monotonic()
    actions = actions_shown = 0
    with Signals() as signals, Notice() as notice:
        while not signals.received:
            actions += rollout.serve(WAIT_S)
            if (newest := _stamp(path)) not in (loaded, None):
                loaded = newest
                _load(policy, path)
            if (seconds := time.monotonic() - shown_at) >= NOTICE_S:
                recent = server.take_latencies()
                latencies.extend(recent)
                rate = (actions - actions_shown) / seconds
                notice.say(f"{server.num} clients, {rate:,.0f} actions/s{_latency(recent)}")
                shown_at, actions_shown = time.monotonic(), actions
    latencies.extend(server.take_latencies())
    return f"served {actions:,} actions{_latency(latencies)}"


def _load(policy: Policy, path: Path) -> None:
    """Loads new weights and says so; weights that do not fit leave the policy as it is."""
    from apex_acer.networks.weights import read

    try:
        with reading(str(path)):
            tensors, metadata = read(path)
            policy.load(tensors, int(metadata.get("updates", 1)))
        say(f"{path}: new weights")
    except ConfigError as error:
        say(f"{path}: not taken: {error}")


def _stamp(path: Path) -> tuple[int, ...] | None:
    """Inode, time and size, of which some change with the file; None if there is none."""
    with contextlib.suppress(OSError):
        stat = os.stat(path)
        return stat.st_ino, stat.st_mtime_ns, stat.st_size
    return None


def _latency(seconds: Sequence[float]) -> str:
    if not seconds:
        return ""
    ordered = sorted(seconds)
    half, late = (1000 * ordered[int(share * (len(ordered) - 1))] for share in (0.5, 0.99))
    return f", from request to action p50 {half:.2f} ms, p99 {late:.2f} ms"
