"""Start a stage in several processes on this machine as `torchrun` does, but report a mistake in one line.

python -m training.launch 2 training.pretrain mini --corpus build/corpus --run-dir runs/mini
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence

from torch.distributed import run
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from training.command import command


def launch(num_processes: int, module: str, arguments: Sequence[str]) -> int:
    """Run `python -m module arguments` in processes that are peers.

    Returns:
        0, the exit code of the process that failed, or 128 + the signal that ended them.

    Raises:
        ValueError: when there would be no process.
    """
    if num_processes < 1:
        raise ValueError(f"the number of processes must be at least 1: `{num_processes}`")
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // num_processes)))
    logging.disable(logging.ERROR)  # of this process only: the others say themselves what is wrong
    flags = ["--standalone", "--nproc-per-node", str(num_processes), "-m", module, *arguments]
    try:
        run.main(flags)
    except ChildFailedError as error:
        code = next(iter(error.failures.values())).exitcode
        return code if code >= 0 else 128 - code
    except SignalException as error:  # the others have been ended
        return 128 + int(error.sigval)
    return 0


@command
def main() -> None:
    """Command line."""
    if len(sys.argv) < 3 or not sys.argv[1].lstrip("-").isdigit():
        raise ValueError("usage: python -m training.launch PROCESSES MODULE [FLAGS OF THE MODULE]")
    sys.exit(launch(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))


if __name__ == "__main__":
    main()
