"""An interruption of training at a certain step."""

from contextlib import contextmanager

import pytest

from training.loop.run_directory import RunDirectory


@contextmanager
def interrupted_at(step):
    """Interrupt the run inside when it logs a step, and expect that it ends so."""
    log = RunDirectory.log

    def fail(run, values):
        if values["step"] == step:
            raise KeyboardInterrupt
        log(run, values)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunDirectory, "log", fail)
        with pytest.raises(KeyboardInterrupt):
            yield
