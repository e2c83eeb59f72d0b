import sys

import pytest

from benchmarks.jobs import run_measured

ALLOCATE = "import time; kept = b'1' * {megabytes} * 1024 * 1024; time.sleep(0.2)"


def test_memory_of_a_command():
    """Memory of the parent does not count, although `wait4` includes it."""
    own = b"1" * (300 * 1024 * 1024)

    small, large = (run_measured([sys.executable, "-c", ALLOCATE.format(megabytes=number)]) for number in (1, 100))

    assert len(own) / 1024**2 == 300
    assert small.peak_mb < 100 < large.peak_mb < 200
    assert large.seconds > 0.2


def test_failed_command_is_an_error():
    """A command that fails raises."""
    with pytest.raises(ValueError, match="failed"):
        run_measured([sys.executable, "-c", "raise SystemExit(3)"])
