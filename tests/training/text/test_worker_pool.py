"""Workers leave interrupts to the process that started them."""

import os
import signal

import pytest

from training.text.worker_pool import map_in_order


def blocked_signals(_):
    return {int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())}


def test_workers_never_see_an_interrupt():
    """From their first moment on; here it is as before."""
    (blocked,) = map_in_order(blocked_signals, [(0,)], num_workers=1)

    assert signal.SIGINT in blocked
    assert signal.SIGINT not in blocked_signals(0)


def end(_):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_worker_is_one_line():
    """As by a kernel that is out of memory."""
    with pytest.raises(ChildProcessError, match="a worker was killed; is there enough memory"):
        list(map_in_order(end, [(0,)] * 9, num_workers=1))
