"""Commands that run one after the other."""

import os
import signal
import subprocess
import sys

import pytest

from demo.stage import run_stage

SLOW_TO_END = """
import signal, sys, time
def end(*_):
    time.sleep(0.5)
    open("ended", "w").close()
    sys.exit(3)
signal.signal(signal.SIGTERM, end)
signal.signal(signal.SIGINT, end)
print("ready", flush=True)
time.sleep(60)
"""
RUN = """
from training.command import command
from demo.stage import run_stage
command(lambda: run_stage(1, 1, "a stage", "slow_to_end"))()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stage_ends_in_its_own_way(number, tmp_path):
    """Told to end as `kill` does it, or with Ctrl-C: the stage has the time that it takes to keep what it has."""
    (tmp_path / "slow_to_end.py").write_text(SLOW_TO_END)
    path = os.pathsep.join([os.getcwd(), str(tmp_path)])
    process = subprocess.Popen(
        [sys.executable, "-c", RUN],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while process.stdout.readline() != "ready\n":
        assert process.poll() is None

    if number == signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    process.communicate(timeout=30)

    assert process.returncode == 128 + number
    assert (tmp_path / "ended").exists()


def test_a_stage_that_fails_is_named():
    """It has said why."""
    with pytest.raises(ValueError, match="`python -m no_such_module` failed"):
        run_stage(1, 1, "a stage", "no_such_module --flag")
