"""Stages of the demo run as commands."""

import os
import signal
import subprocess
import sys

import pytest

from recipes.stage import run_stage

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
from training.command_line.command import command
from recipes.stage import run_stage
command(lambda: run_stage(1, 1, "a stage", "slow_to_end"))()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_interrupted_stage_can_shut_down(number, tmp_path):
    """On SIGTERM and Ctrl-C, the demo waits until the running stage has shut down."""
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


def test_failed_stage_is_named():
    """The error names the command that failed."""
    with pytest.raises(ValueError, match="`python -m no_such_module` failed"):
        run_stage(1, 1, "a stage", "no_such_module --flag")


def test_only_the_result_of_a_stage_is_printed(tmp_path, monkeypatch, capfd):
    """With `only_result`, a stage prints its last line; a failed stage prints everything."""
    (tmp_path / "talks.py").write_text(
        "import sys\nprint('a table')\nprint('the result')\nsys.exit(len(sys.argv) - 1)\n"
    )
    monkeypatch.chdir(tmp_path)

    run_stage(1, 1, "a stage", "talks", only_result=True)
    short = capfd.readouterr().out
    with pytest.raises(ValueError, match="`python -m talks` failed"):
        run_stage(1, 1, "a stage", "talks --fail", only_result=True)

    assert short.endswith("the result\n")
    assert "a table" not in short
    assert "a table\nthe result\n" in capfd.readouterr().out
