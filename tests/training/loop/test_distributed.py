"""Tests of several processes: errors, waits and ends."""

import signal
import subprocess
import sys

import pytest

LAUNCH = "import sys; from training.launch import launch; "
LAUNCH += "sys.exit(launch(2, sys.argv[2:], 'tests.training.loop.peers', sys.argv[1:2]))"


def launch(act, *flags):
    return subprocess.run([sys.executable, "-c", LAUNCH, act, *flags], capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("act", "message", "code"),
    [
        ("refuse", "error: invalid literal for int() with base 10: 'what main cannot read'", 2),
        ("mistake", "error: what one cannot read", 2),
        ("kill", "error: a process was ended by SIGKILL; is there enough memory?", 137),
    ],
)
def test_the_error_of_one_process_is_printed_once(act, message, code):
    """The error that ends one process is printed once, and a user's mistake causes no restart."""
    result = launch(act, *(["--max-restarts", "3"] if code == 2 else []))

    assert result.stderr.strip() == message
    assert result.returncode == code


@pytest.mark.slow
def test_processes_wait_for_the_main_one():
    """The other processes wait for the main one longer than for gradients, and get its result."""
    result = launch("wait")

    assert sorted(result.stdout.splitlines()) == ["process 0 has the result", "process 1 has the result"]


def test_processes_end_with_their_launcher():
    """The processes end with their launcher, also if it is killed."""
    result = launch("kill-launcher")

    assert result.returncode == -signal.SIGKILL
