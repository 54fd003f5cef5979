"""`apex-acer serve WEIGHTS [flags]`."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import shutil
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from logging.handlers import QueueHandler
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from apex_acer.cli.notice import Notice
from apex_acer.cli.parsing import parse
from apex_acer.cli.policies import WeightsFlags, evaluation_settings
from apex_acer.config import ConfigError, ListenConfig, reading, require
from apex_acer.protocol.messages import Row
from apex_acer.system.imports import needs
from apex_acer.system.output import say
from apex_acer.system.signals import Signals
from apex_acer.views.progress import describe_clients

if TYPE_CHECKING:
    from apex_acer.actor.policy import Policy
    from apex_acer.remote.server import Server

Lines = queue.SimpleQueue[logging.LogRecord]
Stamp = tuple[int, ...]
WAIT_S = 0.2  # for requests, between two looks at signals and the file
NOTICE_S = 1.0
MOST_CLIENTS, MARGIN = 3, 5  # in the notice, and columns that it leaves
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
    loaded, policy = _stamp(path), load_policy(path, options.import_modules)
    allowed = "remote clients cannot have Dict or Tuple actions; give a policy with others"
    require(bool(policy.spec.actions.client_space()), "serve", options.weights, allowed)
    new, token = make_token(settings, path.parent), read_token(settings, path.parent)
    with contextlib.closing(Server(settings, policy.spec, token)) as server:
        say(f"serving {policy.spec.describe()}")
        say(f"remote clients connect to {settings.url}; their token is in {token_file(settings, path.parent)}")
        if new and sys.stdout.isatty():
            say(f"token: {new}")
        greedy = evaluation_settings(policy.config, None, options.policy).greedy
        with _logged() as lines:
            summary = _act(server, policy, path, loaded, lines, greedy=greedy)
            server.close()  # it logs what its clients have done
            _say_all(lines)
        say(summary)
    return 0


@contextlib.contextmanager
def _logged() -> Iterator[Lines]:
    """The lines that the server's thread logs about its clients."""
    lines: Lines = queue.SimpleQueue()
    logger, handler = logging.getLogger("apex_acer.remote"), QueueHandler(lines)
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def _say_all(lines: Lines) -> None:
    while not lines.empty():
        say(lines.get().getMessage())


def _act(server: Server, policy: Policy, path: Path, loaded: Stamp | None, lines: Lines, *, greedy: bool) -> str:
    """Acts for clients with the newest weights in the file `path` until a signal comes; returns a line that sums it up.

    `loaded` is the stamp of the file with the weights that `policy` has.
    """
    from apex_acer.actor.remote_rollout import RemoteRollout

    rollout = RemoteRollout(server, policy, seed=policy.config.seed, greedy=greedy)
    latencies: deque[float] = deque(maxlen=LATENCIES)
    shown_at = time.monotonic()
    actions, actions_shown, clients = 0, 0, dict[str, Row]()
    with Signals() as signals, Notice() as notice:
        while not signals.received:
            actions += rollout.serve(WAIT_S)
            if (newest := _stamp(path)) not in (loaded, None):
                loaded = newest
                _load(policy, path)
            if not lines.empty():
                notice.clear()
                _say_all(lines)
            if (seconds := time.monotonic() - shown_at) >= NOTICE_S:
                recent = server.take_latencies()
                latencies.extend(recent)
                rate = (actions - actions_shown) / seconds
                clients |= {name: clients.get(name, {}) | row for name, row in server.client_rows().items()}
                text = f"{server.num} clients, {rate:,.0f} actions/s{_latency(recent)}"
                text = " | ".join([text, *describe_clients(clients, MOST_CLIENTS)])
                notice.say(text[: shutil.get_terminal_size().columns - MARGIN])
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


def _stamp(path: Path) -> Stamp | None:
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
