"""Start a command in several processes, like `torchrun`, but report a user's mistake in one line.

    python -m training.launch 2 training.pretrain mini --corpus build/corpus --run-dir runs/mini
    python -m training.launch 2 --max-restarts 3 training.pretrain mini --corpus build/corpus --run-dir runs/mini

Flags before the module are torchrun's. With `--max-restarts`, all processes restart from the last state if one dies,
but not after a user's mistake. If the launcher dies, all processes end. With several machines that share the run
directory, start one command on each with its own rank:

    python -m training.launch 8 --nnodes 2 --node-rank 0 --master-addr 10.0.0.1 training.pretrain base ...
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec

from torch.distributed import run
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher import api as torch_launcher

from tasks.bundle.machine import available_cpus
from training.command_line.command import MISTAKE, command
from training.loop.distributed import LAUNCHER


class Agent(LocalElasticAgent):
    """Elastic agent that does not restart processes after a user's mistake: they would repeat it."""

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        result = super()._monitor_workers(worker_group)
        if any(failure.exitcode == MISTAKE for failure in result.failures.values()):
            self._remaining_restarts = 0
        return result


def launch(num_processes: int, flags: Sequence[str], module: str, arguments: Sequence[str]) -> int:
    """Run `python -m module arguments` in several processes.

    Args:
        num_processes: number of processes on this machine.
        flags: flags of torchrun; without `--nnodes` there is a single machine.

    Returns:
        0, the exit code of the failed process, or 128 + the number of the signal.

    Raises:
        ValueError: if the number of processes is below 1, or the module does not exist.
    """
    if num_processes < 1:
        raise ValueError(f"the number of processes must be at least 1: `{num_processes}`")
    spec = None
    with suppress(ModuleNotFoundError):  # of the parent package
        spec = find_spec(module)
    if spec is None:
        raise ValueError(f"no such command: `python -m {module}`")
    os.environ[LAUNCHER] = str(os.getpid())
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, available_cpus() // num_processes)))
    logging.disable(logging.ERROR)  # of this process only: the others report their errors
    torch_launcher.LocalElasticAgent = Agent  # type: ignore[misc]
    rendezvous = [] if any(flag.startswith("--nnodes") for flag in flags) else ["--standalone"]
    try:
        run.main([*rendezvous, "--nproc-per-node", str(num_processes), *flags, "-m", module, *arguments])
    except ChildFailedError as error:
        code = error.get_first_failure()[1].exitcode
        if code >= 0:  # the process has reported the error
            return code
        hint = "; is there enough memory?" if -code == signal.SIGKILL else ""
        print(f"\nerror: a process was ended by {signal.Signals(-code).name}{hint}", file=sys.stderr)
        return 128 - code
    except SignalException as error:  # the processes have ended
        return 128 + int(error.sigval)
    return 0


@command
def main() -> None:
    """Command line."""
    words = sys.argv[1:]
    module = next((number for number, word in enumerate(words) if word.startswith(("training.", "recipes."))), 0)
    if not module or not words[0].lstrip("-").isdigit():
        raise ValueError("usage: python -m training.launch PROCESSES [FLAGS OF TORCHRUN] MODULE [FLAGS OF THE MODULE]")
    sys.exit(launch(int(words[0]), words[1:module], words[module], words[module + 1 :]))


if __name__ == "__main__":
    main()
