"""Start a stage in several processes on this machine as `torchrun` does, but report a mistake in one line.

python -m training.launch 2 training.pretrain mini --corpus build/corpus --run-dir runs/mini
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence

from torch.distributed import run
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from training.command import command


def launch(num_processes: int, module: str, arguments: Sequence[str]) -> int:
    """Run `python -m module arguments` in processes that are peers; returns the exit code of the one that failed, or 0.

    Raises:
        ValueError: when there would be no process.
    """
    if num_processes < 1:
        raise ValueError(f"the number of processes must be at least 1: `{num_processes}`")
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // num_processes)))
    # The processes say themselves what is wrong.
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    flags = ["--standalone", "--nproc-per-node", str(num_processes), "-m", module, *arguments]
    try:
        run.main(flags)
    except ChildFailedError as error:
        return next(iter(error.failures.values())).exitcode
    return 0


@command
def main() -> None:
    """Command line."""
    if len(sys.argv) < 3 or not sys.argv[1].lstrip("-").isdigit():
        raise ValueError("usage: python -m training.launch PROCESSES MODULE [FLAGS OF THE MODULE]")
    sys.exit(launch(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))


if __name__ == "__main__":
    main()
