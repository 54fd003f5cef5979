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
from typing import TYPE_CHECKING, Annotated

from apex_acer.cli.flags import SECTION, Acting, ImportModules, Weights
from apex_acer.cli.notice import Notice
from apex_acer.cli.parsing import parse
from apex_acer.cli.policies import evaluation_settings
from apex_acer.config import ConfigError, ListenConfig, reading
from apex_acer.system.imports import needs
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
    server: Annotated[ListenConfig, SECTION] = field(default_factory=ListenConfig)
    policy: Acting = None
    import_modules: ImportModules = False


def serve(arguments: list[str]) -> int:
    """Prints the address and the token, and serves until a signal comes."""
    options = parse(Serve, arguments, "serve")
    with needs("serve", "remote"):
        from apex_acer.remote.server import Server
    import torch

    from apex_acer.actor.policy import load_policy
    from apex_acer.remote.token import make_token, read_token, token_file

    torch.set_num_threads(1)
    path, settings = Path(options.weights), options.server
    policy = load_policy(path, options.import_modules)
    new, token = make_token(settings, path.parent), read_token(settings, path.parent)
    with contextlib.closing(Server(settings, policy.spec, token)) as server:
        say(f"serving {policy.spec.describe()}")
        say(f"remote clients connect to {settings.url}; their token is in {token_file(settings, path.parent)}")
        if new and sys.stdout.isatty():
            say(f"token: {new}")
        greedy = evaluation_settings(policy.config, None, options.policy).greedy
        say(Service(server, policy, path).run(greedy=greedy))
    return 0


class Service:
    """Acts for the clients of `server` with the newest weights in the file `path`."""

    def __init__(self, server: Server, policy: Policy, path: Path) -> None:
        self._server, self._policy, self._path = server, policy, path
        self._file = self._look()
        self._actions = self._actions_shown = 0
        self._latencies: deque[float] = deque(maxlen=LATENCIES)
        self._shown_at = time.monotonic()

    def run(self, *, greedy: bool) -> str:
        """Acts until a signal comes; returns a line that sums it up."""
        from apex_acer.actor.remote_rollout import RemoteRollout

        rollout = RemoteRollout(self._server, self._policy, seed=self._policy.config.seed, greedy=greedy)
        with Signals() as signals, Notice() as notice:
            while not signals.received:
                self._actions += rollout.serve(WAIT_S)
                self._load_if_changed()
                if time.monotonic() - self._shown_at >= NOTICE_S:
                    self._show(notice)
        self._latencies.extend(self._server.take_latencies())
        return f"served {self._actions:,} actions{_latency(self._latencies)}"

    def _load_if_changed(self) -> None:
        """Acts with new weights from now on; if they do not fit the policy, says so and leaves it as it is."""
        from apex_acer.networks.weights import read

        now = self._look()
        if now in (self._file, None):
            return
        self._file = now
        try:
            with reading(str(self._path)):
                tensors, metadata = read(self._path)
                self._policy.load(tensors, int(metadata.get("updates", 1)))
            say(f"{self._path}: new weights")
        except ConfigError as error:
            say(f"{self._path}: not taken: {error}")

    def _look(self) -> tuple[int, ...] | None:
        """What changes with the file; None if there is none."""
        with contextlib.suppress(OSError):
            stat = os.stat(self._path)
            return stat.st_ino, stat.st_mtime_ns, stat.st_size
        return None

    def _show(self, notice: Notice) -> None:
        """Shows the rate and the latency since the last time."""
        now, new = time.monotonic(), self._server.take_latencies()
        self._latencies.extend(new)
        rate = (self._actions - self._actions_shown) / (now - self._shown_at)
        notice.say(f"{self._server.num} clients, {rate:,.0f} actions/s{_latency(new)}")
        self._shown_at, self._actions_shown = now, self._actions


def _latency(seconds: Sequence[float]) -> str:
    if not seconds:
        return ""
    ordered = sorted(seconds)
    half, late = (1000 * ordered[int(share * (len(ordered) - 1))] for share in (0.5, 0.99))
    return f", from request to action p50 {half:.2f} ms, p99 {late:.2f} ms"
