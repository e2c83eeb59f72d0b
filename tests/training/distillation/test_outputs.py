"""Tests of the outputs of teachers on disk: computed once, resumed after any interruption, never wrong."""

import errno

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from training.distillation import outputs as module
from training.distillation.outputs import ENDS_FILE, VALUES_FILE, record_outputs
from training.loop.distributed import CPU, World

MADE_FROM = {"teacher": "a"}
PLACES = [f"`a.txt`, line {number}" for number in range(1, 8)]
ITEMS = [np.full((count, 3), count, np.float32) + np.arange(3) for count in (1, 4, 2, 1, 0, 3, 2)]


class Computed:
    """Function that computes outputs, and the slices that were asked for."""

    def __init__(self, items=ITEMS, fail_at=None):
        self.items, self.fail_at, self.asked = items, fail_at, []

    def __call__(self, part):
        self.asked.append((part.start, part.stop))
        if self.fail_at is not None and part.stop > self.fail_at:
            raise KeyboardInterrupt
        return self.items[part]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 2)


def record(folder, compute, made_from=MADE_FROM):
    return record_outputs(folder, made_from, PLACES, lambda: compute, World(0, 1, CPU), unit="text")


def check(found):
    assert (len(found), found.width) == (len(ITEMS), 3)
    for number, rows in enumerate(ITEMS):
        np.testing.assert_array_equal(found[number], rows)


def test_outputs_are_computed_once(tmp_path):
    """Each item has its rows; a second call reads them, and outputs for other inputs are computed."""
    compute = Computed()
    check(record(tmp_path, compute))
    asked = list(compute.asked)
    check(record_outputs(tmp_path, MADE_FROM, PLACES, None, World(0, 1, CPU), unit="text"))  # loads no teacher

    assert compute.asked == asked == [(0, 1), (0, 2), (2, 4), (4, 6), (6, 7)]
    record(tmp_path, compute, {"teacher": "b"})
    assert len(compute.asked) == 2 * len(asked)
    assert len(list(tmp_path.iterdir())) == 2


def test_interrupted_outputs_go_on(tmp_path):
    """Chunks before an interruption are not computed again, which is printed."""
    with pytest.raises(KeyboardInterrupt, match="and the same command goes on"):
        record(tmp_path, Computed(fail_at=5))
    (partial,) = tmp_path.iterdir()
    assert partial.name.endswith(".partial")

    compute = Computed()
    check(record(tmp_path, compute))

    assert compute.asked == [(0, 1), (4, 6), (6, 7)]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(values=st.floats(0, 1), ends=st.floats(0, 1))
def test_files_cut_anywhere_give_the_same_outputs(values, ends, tmp_path_factory):
    """Whatever a killed process left of both files, the outputs are right in the end."""
    folder = tmp_path_factory.mktemp("outputs")
    with pytest.raises(KeyboardInterrupt):
        record(folder, Computed(fail_at=6))
    (partial,) = folder.iterdir()
    for name, part in ((VALUES_FILE, values), (ENDS_FILE, ends)):
        content = (partial / name).read_bytes()
        (partial / name).write_bytes(content[: round(part * len(content))])

    check(record(folder, Computed()))


def test_full_disk_keeps_what_is_there(tmp_path, monkeypatch):
    """A full disk is an error that names the folder; later, the same call goes on."""
    with monkeypatch.context() as patch:
        append, calls = module._append, []

        def fail(file, array):
            calls.append(array)
            if len(calls) > 3:
                raise OSError(errno.ENOSPC, "No space left on device")
            append(file, array)

        patch.setattr(module, "_append", fail)
        with pytest.raises(OSError, match="No space left") as error:
            record(tmp_path, Computed())
    assert str(tmp_path) in error.value.filename

    compute = Computed()
    check(record(tmp_path, compute))
    assert compute.asked[1] == (2, 4)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_outputs_that_are_no_numbers_are_refused(value, tmp_path):
    """The error states where the item is; nothing is left."""
    items = [rows.copy() for rows in ITEMS]
    items[3][0, 1] = value

    with pytest.raises(ValueError, match=r"`a\.txt`, line 4: the outputs of the teacher are NaN or infinite"):
        record(tmp_path, Computed(items))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", [VALUES_FILE, ENDS_FILE])
def test_damaged_outputs_are_refused(name, tmp_path):
    """A finished folder whose files have another size is not read."""
    record(tmp_path, Computed())
    (folder,) = tmp_path.iterdir()
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[:-8])

    with pytest.raises(ValueError, match="are damaged; remove that folder to compute them again"):
        record(tmp_path, Computed())
