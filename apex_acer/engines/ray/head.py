"""`python -m apex_acer.engines.ray.head CPUS FOLDER`: a Ray cluster on this machine alone, until standard input closes.

It has its own process group, so that a signal which a terminal or `timeout` sends to the program's group does not end Ray
before the learner has saved. It ends Ray in good order even if the program was killed.
"""

from __future__ import annotations

import logging
import shutil
import sys

import ray

STORE_BYTES = 512 * 2**20  # for unrolls and weights on their way, each of which is read at once and freed


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
