"""`apex-acer serve WEIGHTS [flags]`."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from apex_acer.cli.notice import Notice
from apex_acer.cli.parsing import Acting, ImportModules, Weights, evaluation_settings, parse
from apex_acer.config import ConfigError, ListenConfig, reading
from apex_acer.config.imports import needs
from apex_acer.system.output import say
from apex_acer.system.signals import Signals

if TYPE_CHECKING:
    from apex_acer.actor.policy import Policy
    from apex_acer.remote.server import Server

WAIT_S = 0.2  # for requests, between two looks at signals and the file
NOTICE_S = 1.0
LATENCIES = 100_000  # the newest ones, of which the last line tells


@dataclass(frozen=True)
class Serve:
    """Acts for remote clients (docs/remote.md) with a weights file, anew whenever that changes. Ctrl-C ends it."""

    weights: Weights
    server: Annotated[ListenConfig, tyro.conf.arg(name="")] = field(default_factory=ListenConfig)
    policy: Acting = None
    import_modules: ImportModules = False


def run(arguments: list[str]) -> int:
    """Prints the address and the token, and serves until a signal comes."""
    given = parse(Serve, arguments, "serve")
    with needs("serve", "remote"):
        from apex_acer.remote.server import Server
    import torch

    from apex_acer.actor.policy import load_policy
    from apex_acer.remote.token import make_token, read_token, token_file

    torch.set_num_threads(1)
    path, settings = Path(given.weights), given.server
    policy = load_policy(path, given.import_modules)
    new, token = make_token(settings, path.parent), read_token(settings, path.parent)
    with contextlib.closing(Server(settings, policy.spec, token)) as server:
        say(f"serving {policy.spec.describe()}")
        say(f"remote clients connect to {settings.url}; their token is in {token_file(settings, path.parent)}")
        if new and sys.stdout.isatty():
            say(f"token: {new}")
        say(serve(server, policy, path, greedy=evaluation_settings(policy.config, None, given.policy).greedy))
    return 0


def serve(server: Server, policy: Policy, path: Path, *, greedy: bool) -> str:
    """Acts for clients until a signal comes, with the newest weights in the file; returns a line that sums it up."""
    from apex_acer.actor.remote_rollout import RemoteRollout

    rollout = RemoteRollout(server, policy, seed=policy.config.seed, greedy=greedy)
    file, figures = WatchedFile(path), Figures(server)
    with Signals() as signals, Notice() as notice:
        while not signals.received:
            figures.count += rollout.serve(WAIT_S)
            file.load_if_changed(policy)
            figures.show(notice)
    return figures.total()


class WatchedFile:
    """A weights file that is loaded again whenever it changes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = self._look()

    def load_if_changed(self, policy: Policy) -> None:
        """Has `policy` act with the new weights; if they do not fit it, says so and leaves it as it is."""
        from apex_acer.networks.weights import read

        now = self._look()
        if now in (self._seen, None):
            return
        self._seen = now
        try:
            with reading(str(self._path)):
                tensors, metadata = read(self._path)
                policy.load(tensors, metadata["updates"])
            say(f"{self._path}: new weights")
        except ConfigError as error:
            say(f"{self._path}: not taken: {error}")

    def _look(self) -> tuple[int, ...] | None:
        with contextlib.suppress(OSError):
            found = os.stat(self._path)
            return found.st_ino, found.st_mtime_ns, found.st_size
        return None


class Figures:
    """How many actions a server gave, and how soon."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.count = self._count_shown = 0
        """Actions so far."""
        self._latencies: deque[float] = deque(maxlen=LATENCIES)
        self._shown_at = time.monotonic()

    def show(self, notice: Notice) -> None:
        """Shows the rate and the latency since the last time, once in a while."""
        now = time.monotonic()
        elapsed = now - self._shown_at
        if elapsed < NOTICE_S:
            return
        new = self._server.take_latencies()
        self._latencies.extend(new)
        rate = (self.count - self._count_shown) / elapsed
        notice.say(f"{self._server.num} clients, {rate:,.0f} actions/s{_latency(new)}")
        self._shown_at, self._count_shown = now, self.count

    def total(self) -> str:
        """All of it in one line."""
        self._latencies.extend(self._server.take_latencies())
        return f"served {self.count:,} actions{_latency(self._latencies)}"


def _latency(seconds: deque[float] | list[float]) -> str:
    if not seconds:
        return ""
    ordered = sorted(seconds)
    half, late = (1000 * ordered[int(share * (len(ordered) - 1))] for share in (0.5, 0.99))
    return f", from request to action p50 {half:.2f} ms, p99 {late:.2f} ms"
