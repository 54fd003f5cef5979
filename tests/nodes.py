"""A Ray cluster of several nodes, all of them on this machine."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

from apex_acer.engines.ray.cluster import stay_alone
from tests.programs import eventually, processes_of

# in a process of its own, where Ray is not in use yet; it does what it reads, line by line, and answers each
NODES = """
import sys
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "node_ip_address": "127.0.0.1"})
nodes = []
def add(): nodes.append(cluster.add_node(num_cpus=2, node_ip_address="127.0.0.1"))
def remove(): cluster.remove_node(nodes.pop(0))
def shutdown(): cluster.shutdown()
print(cluster.address, flush=True)
for line in sys.stdin:
    globals()[line.strip()]()
    print("done", flush=True)
"""


class Nodes:
    """A head and as many more nodes as were added."""

    def __init__(self) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            [sys.executable, "-c", NODES], stdin=pipe, stdout=pipe, text=True, start_new_session=True
        )
        self.session = self._process.pid
        self.address = self._hear()

    def do(self, what: str) -> None:
        assert self._process.stdin
        print(what, file=self._process.stdin, flush=True)
        assert self._hear() == "done"

    def _hear(self) -> str:
        assert self._process.stdout
        return self._process.stdout.readline().strip()

    def close(self) -> None:
        """Ends it with its input, however far it has come."""
        try:
            self._process.communicate(timeout=60)
        finally:
            self._process.kill()


@contextlib.contextmanager
def three_nodes() -> Iterator[Nodes]:
    """A head and two more nodes of two CPUs each; afterwards nothing is left of them."""
    stay_alone()  # else Ray takes 127.0.0.1 for another of this machine's addresses
    started = Nodes()
    try:
        for _ in range(2):
            started.do("add")
        yield started
        started.do("shutdown")
    finally:
        started.close()
    eventually(lambda: not processes_of(started.session), within_s=30)
