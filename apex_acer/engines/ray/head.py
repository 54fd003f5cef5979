"""`python -m apex_acer.engines.ray.head CPUS FOLDER`: a Ray cluster of this machine only, while standard input is open.

A process of its own, in a group of its own, so that what a terminal or `timeout` sends to the program's group does not end
Ray before the learner has saved; and one that still ends Ray in good order where the program itself was killed.
"""

from __future__ import annotations

import logging
import shutil
import sys

import ray

STORE_BYTES = 512 * 2**20  # of unrolls on their way and weights; both are read at once and gone


def main(cpus: int, folder: str) -> None:
    """Starts the cluster in `folder`, prints its address, and removes both at the end of standard input."""
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
