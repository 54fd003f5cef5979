"""The Ray cluster that a run works in: one that the program uses already, one that is joined, or one of its own."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import secrets
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from apex_acer.config import ConfigError, RayConfig
from apex_acer.config.imports import needs
from apex_acer.engines.placement import available_cores
from apex_acer.storage.runlog import LAST_BYTES
from apex_acer.system.private import PrivateFolder

HEAD = "apex_acer.engines.ray.head"
PROBE = "import ray, sys; ray.init(sys.argv[1], log_to_driver=False, logging_level='ERROR')"
MEND = "start Ray there, or set RAY_AUTH_MODE=token where it asks for one"
START_S = 60.0  # for a new cluster, on a busy machine
JOIN_S = 20.0  # for a cluster to say that it is there
RESERVE_S = 20.0  # for the run before to give back what it had
STOP_S = 10.0  # for Ray to end its processes
# of a cluster of its own: all listen on 127.0.0.1 alone, nobody is told, no process starts that no role would use, and who
# else is on this machine cannot join; Ray's usual niceness, 15, would leave no room for actors to give way to the learner
KEPT_APART = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_worker_niceness": "0",
}


# of each death Ray would print a paragraph on standard output, in the midst of a live view or of --json
QUIET = {"RAY_DEDUP_LOGS_SKIP_REGEX": "."}


class Cluster:
    """Connects this process to Ray; raises `ConfigError` where there is none to join or the package is missing."""

    def __init__(self, config: RayConfig, output: Path) -> None:
        """What a new cluster prints is appended to `output`."""
        self.folder: Path | None = None
        """Of a cluster of its own: what Ray keeps while it runs."""
        self._held: PrivateFolder | None = None
        self._head: subprocess.Popen[bytes] | None = None
        self._reserved: Any = None
        imported = sys.modules.get("ray")
        self._connected_before = imported is not None and imported.is_initialized()
        if not (config.address or self._connected_before):
            stay_alone()
        self._ray = _import_ray()
        if not self._connected_before:
            self._connect(config.address or self._start(output), config.address)
        self.home: str = self._ray.get_runtime_context().get_node_id()
        """This machine's node."""

    def nodes(self) -> dict[str, dict[str, float]]:
        """What each living node has in all, by node: `CPU`, `GPU` …"""
        return {node["NodeID"]: node["Resources"] for node in self._ray.nodes() if node["Alive"]}

    def reserve(self, bundles: list[dict[str, float]], num_here: int) -> Any:
        """Sets resources aside until `close`, of this machine's node the first `num_here` bundles, the others near it.

        Raises:
            ConfigError: where they are in use.
        """
        from ray.util import placement_group

        where: list[dict[str, str]] = [{"ray.io/node-id": self.home}] * num_here + [{}] * (len(bundles) - num_here)
        self._reserved = placement_group(bundles, strategy="PACK", bundle_label_selector=where)
        if not self._reserved.wait(RESERVE_S):
            wanted = " and ".join(f"{sum(b.get(kind, 0) for b in bundles):g} {kind}s" for kind in ("CPU", "GPU"))
            raise ConfigError(
                f"ray.actor_cpus: {wanted} for learners and evaluator are not free within {RESERVE_S:.0f} s"
            )
        return self._reserved

    def log_of(self, pid: int) -> bytes:
        """The last of the transcript of what a process of a cluster of its own has printed."""
        files = sorted(self.folder.glob(f"session_2*/logs/worker-*-{pid}.*")) if self.folder else []
        lines = [line for file in files for line in file.read_bytes().splitlines(keepends=True)]
        return b"".join(line for line in lines if not line.startswith((b":job_id:", b":actor_name:")))[-LAST_BYTES:]

    def close(self) -> None:
        """Leaves the cluster, and ends one of its own."""
        if self._reserved:
            from ray.util import remove_placement_group

            remove_placement_group(self._reserved)
            self._reserved = None
        if not self._connected_before:
            self._ray.shutdown()
        if self._head:
            self._end(self._head)

    def _connect(self, address: str, given: str) -> None:
        if given:
            _probe(given)
        try:
            with _own_handlers():
                self._ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
        except Exception as error:
            self.close()
            raise ConfigError(f"ray.address: {given!r} cannot be joined ({_last_line(str(error))})") from None

    def _start(self, output: Path) -> str:
        """Starts a cluster on this machine; returns its address."""
        self._held = PrivateFolder("ray-")
        self.folder = self._held.path
        with output.open("ab") as errors:
            self._head = subprocess.Popen(
                [sys.executable, "-P", "-m", HEAD, str(available_cores()), str(self.folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                process_group=0,
                pass_fds=[self._held.lock],
            )
        assert self._head.stdout
        ready, _, _ = select.select([self._head.stdout], [], [], START_S)
        if address := self._head.stdout.readline().decode().strip() if ready else "":
            return address
        self._end(self._head)
        raise ConfigError(f"engine: Ray did not start within {START_S:.0f} s; {output} says more")

    def _end(self, head: subprocess.Popen[bytes]) -> None:
        assert head.stdin
        assert head.stdout
        head.stdin.close()
        try:
            head.wait(STOP_S)
        except subprocess.TimeoutExpired:
            head.kill()
            head.wait()
        head.stdout.close()
        assert self._held
        self._held.remove()


def stay_alone() -> None:
    """Sets this process up for clusters of its own; raises `ConfigError` where Ray has read its settings already."""
    if os.environ.items() >= KEPT_APART.items():
        return
    if sys.modules.get("ray"):
        raise ConfigError("engine: Ray was imported before the run; call ray.init() before, too, or import it after")
    os.environ |= KEPT_APART
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))


def _import_ray() -> Any:
    os.environ |= QUIET
    with needs("engine", "ray"), _own_handlers():
        for name in ("ray", "lz4.frame"):
            importlib.import_module(name)
    return sys.modules["ray"]


def _probe(address: str) -> None:
    """In another process, because Ray tries for minutes and then ends the one that asked."""
    command = [sys.executable, "-P", "-c", PROBE, address]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=JOIN_S, check=False)
    except subprocess.TimeoutExpired:
        raise ConfigError(f"ray.address: {address!r} does not answer within {JOIN_S:.0f} s; {MEND}") from None
    if done.returncode:
        raise ConfigError(f"ray.address: {address!r} cannot be joined ({_last_line(done.stderr)}); {MEND}")


@contextlib.contextmanager
def _own_handlers() -> Iterator[None]:
    """Ray puts a handler of its own in place of that for SIGTERM."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2][:300]
