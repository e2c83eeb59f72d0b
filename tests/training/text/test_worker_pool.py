"""Tests of the worker pool: interrupts and killed workers."""

import os
import signal

import pytest

from training.text.worker_pool import map_in_order


def blocked_signals(_):
    return {int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())}


def test_workers_never_see_an_interrupt():
    """Workers block SIGINT from their start, and the parent process does not."""
    (blocked,) = map_in_order(blocked_signals, [(0,)], num_workers=2)

    assert signal.SIGINT in blocked
    assert signal.SIGINT not in blocked_signals(0)


def end(_):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_worker_is_one_line():
    """A killed worker is an error that suggests too little memory."""
    with pytest.raises(ChildProcessError, match="a worker was killed; is there enough memory"):
        list(map_in_order(end, [(0,)] * 9, num_workers=2))
