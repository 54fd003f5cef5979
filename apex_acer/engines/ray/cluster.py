"""The Ray cluster in which a run works: the program's own connection, a cluster that it joins, or one that it starts.

`python -m apex_acer.engines.ray.cluster CPUS FOLDER` is a cluster on this machine alone, until its standard input closes,
even if the program was killed. It has its own process group, so that a signal to the program's group, as a terminal or
`timeout` sends it, does not end Ray before the learner has saved.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import secrets
import select
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from apex_acer.config import ConfigError, RayConfig
from apex_acer.engines.machine import private_folder
from apex_acer.storage.runlog import LAST_BYTES
from apex_acer.system.imports import needs
from apex_acer.system.private import PrivateFolder
from apex_acer.system.process import available_cores

PROBE = "import ray, sys; ray.init(sys.argv[1], log_to_driver=False, logging_level='ERROR')"
MEND = "start Ray there, or set RAY_AUTH_MODE=token if it asks for one"
START_S = 60.0  # in which a new cluster starts, on a busy machine
JOIN_S = 20.0  # in which an existing cluster answers
RESERVE_S = 20.0  # in which a previous run returns its resources
STOP_S = 10.0  # in which Ray ends its processes
STORE_BYTES = 512 * 2**20  # for unrolls and weights on their way, each of which is read at once and freed
# for a cluster that the run starts: it listens on 127.0.0.1 alone, reports no usage, starts no process that no role uses,
# and other users of this machine cannot join it; at Ray's usual niceness, 15, actors could not give way to the learner
KEPT_APART = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_worker_niceness": "0",
}
QUIET = {"RAY_DEDUP_LOGS_SKIP_REGEX": "."}  # else Ray prints a paragraph about each death on standard output


class Cluster:
    """The connection to Ray; raises `ConfigError` if there is no cluster to join or the package is missing."""

    def __init__(self, config: RayConfig, output: Path) -> None:
        """Appends to `output` what a new cluster prints."""
        self._private: PrivateFolder | None = None  # in which a cluster that was started here keeps its files
        self._head: subprocess.Popen[bytes] | None = None
        self._reserved: Any = None
        imported = sys.modules.get("ray")
        self._connected_before = imported is not None and imported.is_initialized()
        if not (config.address or self._connected_before):
            stay_alone()
        os.environ |= QUIET
        with needs("engine", "ray"), _keeping_sigterm():
            self._ray: Any = importlib.import_module("ray")
            importlib.import_module("lz4.frame")
        if not self._connected_before:
            self._connect(config.address or self._start(output), config.address)
        self.home: str = self._ray.get_runtime_context().get_node_id()  # this machine's node

    def nodes(self) -> dict[str, dict[str, float]]:
        """All resources of each living node, by node: `CPU`, `GPU` …"""
        return {node["NodeID"]: node["Resources"] for node in self._ray.nodes() if node["Alive"]}

    def reserve(self, bundles: list[dict[str, float]], num_here: int) -> Any:
        """Reserves resources until `close`: the first `num_here` bundles on this machine's node, the others near it.

        Raises `ConfigError` if they are in use.
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
        """The end of what a process printed, as a `Transcript`; empty for a cluster that was not started here."""
        if not self._private:
            return b""
        files = sorted(self._private.path.glob(f"session_2*/logs/worker-*-{pid}.*"))
        lines = [line for file in files for line in file.read_bytes().splitlines(keepends=True)]
        return b"".join(line for line in lines if not line.startswith((b":job_id:", b":actor_name:")))[-LAST_BYTES:]

    def close(self) -> None:
        """Leaves the cluster, and ends it if it was started here."""
        if self._reserved:
            from ray.util import remove_placement_group

            remove_placement_group(self._reserved)
            self._reserved = None
        if not self._connected_before:
            self._ray.shutdown()
        if self._head:
            self._end(self._head)

    def _connect(self, address: str, setting: str) -> None:
        """Joins the cluster at `address`, which is the `setting` ray.address unless it was started here."""
        if setting:
            _probe(setting)
        try:
            with _keeping_sigterm():
                self._ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
        except Exception as error:
            self.close()
            raise ConfigError(f"ray.address: {setting!r} cannot be joined ({_last_line(str(error))})") from None

    def _start(self, output: Path) -> str:
        self._private = private_folder("ray-")
        with output.open("ab") as errors:
            self._head = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, str(available_cores()), str(self._private.path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                process_group=0,
                pass_fds=[self._private.lock],
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
        if self._private:
            self._private.remove()


def stay_alone() -> None:
    """Sets the environment for clusters started here; raises `ConfigError` if Ray has read its settings already."""
    if os.environ.items() >= KEPT_APART.items():
        return
    if sys.modules.get("ray"):
        raise ConfigError("engine: Ray was imported before the run; call ray.init() before, too, or import it after")
    os.environ |= KEPT_APART
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))


def _probe(address: str) -> None:
    """Tries to join in another process, because Ray retries for minutes and then ends the process."""
    command = [sys.executable, "-P", "-c", PROBE, address]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=JOIN_S, check=False)
    except subprocess.TimeoutExpired:
        raise ConfigError(f"ray.address: {address!r} does not answer within {JOIN_S:.0f} s; {MEND}") from None
    if done.returncode:
        raise ConfigError(f"ray.address: {address!r} cannot be joined ({_last_line(done.stderr)}); {MEND}")


@contextlib.contextmanager
def _keeping_sigterm() -> Iterator[None]:
    """Restores the handler of SIGTERM, which Ray replaces by its own."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2][:300]


def main(cpus: int, folder: str) -> None:
    """Starts the cluster in `folder`, prints its address, and removes both at the end of standard input."""
    import ray

    try:
        ray.init(
            "local",
            num_cpus=cpus,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            object_store_memory=STORE_BYTES,
            _temp_dir=folder,
        )
        print(ray.get_runtime_context().gcs_address, flush=True)
        sys.stdin.read()
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
