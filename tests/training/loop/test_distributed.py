"""Several processes: what one says, and what the others do meanwhile."""

import subprocess
import sys

import pytest

LAUNCH = "import sys; from training.launch import launch; "
LAUNCH += "sys.exit(launch(2, [], 'tests.training.loop.peers', sys.argv[1:]))"


def launch(act):
    return subprocess.run([sys.executable, "-c", LAUNCH, act], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("act", "message", "code"),
    [
        ("refuse", "error: invalid literal for int() with base 10: 'what main cannot read'", 1),
        ("mistake", "error: what one cannot read", 1),
        ("kill", "error: a process was ended by SIGKILL; is there enough memory?", 137),
    ],
)
def test_what_ends_one_process_is_said_once(act, message, code):
    """The others, who wait for it, say nothing."""
    result = launch(act)

    assert result.stderr.strip() == message
    assert result.returncode == code


def test_main_may_take_its_time():
    """Longer than torch.distributed waits for gradients; what it makes of it reaches all."""
    result = launch("wait")

    assert sorted(result.stdout.splitlines()) == ["process 0 has the result", "process 1 has the result"]
