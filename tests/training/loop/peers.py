"""Actions of the processes in `test_distributed.py`: python -m training.launch 2 tests.training.loop.peers ACTION"""

import functools
import os
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from training.command_line.command import command
from training.loop.distributed import world


@command
def main():
    if sys.argv[1] == "wait":
        dist.init_process_group = functools.partial(dist.init_process_group, timeout=timedelta(seconds=5))
    with world() as peers:
        peers.sum(torch.ones(1))  # avoids gloo's log of a process that leaves during set-up
        ACTS[sys.argv[1]](peers)


def _wait(peers):
    """Keep the main process busy for longer than the timeout of gradients while the other waits for its result."""
    found = peers.on_main(lambda: time.sleep(8) or "result")
    sys.stdout.write(f"process {peers.rank} has the {found}\n")  # one write, so that the lines do not mix


def _refuse_in_main(peers):
    peers.on_main(lambda: int("what main cannot read"))


def _mistake_in_one(peers):
    if not peers.is_main:
        raise ValueError("what one cannot read")
    peers.sum(torch.ones(1))


def _kill_one(peers):
    if not peers.is_main:
        os.kill(os.getpid(), signal.SIGKILL)
    peers.sum(torch.ones(1))


def _kill_launcher(peers):
    if peers.is_main:
        os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(600)


ACTS = {"wait": _wait, "refuse": _refuse_in_main, "mistake": _mistake_in_one, "kill": _kill_one}
ACTS |= {"kill-launcher": _kill_launcher}

if __name__ == "__main__":
    main()
