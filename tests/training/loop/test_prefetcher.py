"""Tests of the prefetcher: the batches of the next steps, made by a thread or by processes."""

import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch

from tests.training.loop.numbered_data import NumberedData
from training.loop.distributed import World
from training.loop.prefetcher import Prefetcher, num_data_workers
from training.loop.types import Batch, DataPosition, LoopSettings, Phase

SETTINGS = LoopSettings(global_batch_size=4, micro_batch_size=2)
PROCESSES = LoopSettings(global_batch_size=4, micro_batch_size=2, data_workers=2)


class NamedData:
    """Data whose batches name their process."""

    def num_batches(self, epoch):
        return 10

    def batch(self, epoch, index, part):
        return Batch({"process": torch.tensor(os.getpid())}, {}, {}, 1)


def take_all(settings, world, positions, data=None):
    """Return position and contents of the batches that follow some positions."""
    phases = [Phase(data=data or NumberedData()), Phase(data=NumberedData(3), micro_batch_size=4)]
    found = []
    with Prefetcher(phases, settings, world) as prefetcher:
        for start, count in positions:
            position = start
            for _ in range(count):
                position, batches, _ = prefetcher.take(position)
                found.append((position, [batch.inputs["input_ids"].tolist() for batch in batches]))
                position = DataPosition(position.phase, position.epoch, position.index + 1)
    return found


def test_thread_makes_the_next_batch_ahead(alone):
    """The prefetcher makes the next batch in advance, and starts again if another one is requested."""
    data = NumberedData()
    settings = LoopSettings(global_batch_size=2, micro_batch_size=2)
    with Prefetcher([Phase(data=data)], settings, alone) as prefetcher:
        prefetcher.take(DataPosition())
        deadline = time.monotonic() + 5
        while len(data.asked) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert data.asked == [(0, 0, 0, 2), (0, 1, 0, 2)]
        position, _, _ = prefetcher.take(DataPosition(epoch=3, index=8))
        assert position == DataPosition(epoch=4)


@pytest.mark.parametrize("settings", [SETTINGS, PROCESSES], ids=["thread", "processes"])
def test_an_epoch_without_a_whole_batch_is_passed_over(settings, alone):
    """The prefetcher skips an epoch without a whole batch."""
    data = NumberedData()
    data.num_batches = lambda epoch: (2, 0, 30)[epoch]
    [(position, _)] = take_all(settings, alone, [(DataPosition(index=2), 1)], data)

    assert position == DataPosition(epoch=2)


def test_processes_make_the_batches_of_a_thread(alone):
    """Through ends of epochs, into another phase, and back."""
    positions = [(DataPosition(index=2), 12), (DataPosition(phase=1), 5), (DataPosition(epoch=3, index=1), 3)]
    found = take_all(PROCESSES, alone, positions)

    assert found == take_all(SETTINGS, alone, positions)
    assert len(found) == 20


def test_processes_share_the_work(alone):
    """Two processes, neither of which trains, make the batches."""
    makers = set()
    with Prefetcher([Phase(data=NamedData())], PROCESSES, alone) as prefetcher:
        for index in range(40):
            _, batches, _ = prefetcher.take(DataPosition(epoch=index // 10, index=index % 10))
            makers |= {int(batch.inputs["process"]) for batch in batches}

    assert os.getpid() not in makers
    assert len(makers) == 2


def test_a_killed_process_is_an_error_of_one_line(alone):
    """Training ends with the flag that helps, and does not wait for ever; later takes fail alike."""
    with Prefetcher([Phase(data=NamedData())], PROCESSES, alone) as prefetcher:
        _, batches, _ = prefetcher.take(DataPosition())
        os.kill(int(batches[0].inputs["process"]), signal.SIGKILL)
        for _ in range(2):
            with pytest.raises(ChildProcessError, match=r"is there enough memory\? lower --data-workers"):
                take_for(10, prefetcher)


def take_for(seconds, prefetcher):
    """Take batches for some seconds: after the end of one process the other one works until the pool notices."""
    deadline = time.monotonic() + seconds
    for index in range(10**9):
        if time.monotonic() > deadline:
            return
        prefetcher.take(DataPosition(index=index % 10))


def test_an_error_in_a_process_is_that_of_the_data(alone):
    """An error in a process is raised in training, as from a thread."""
    data = NamedData()
    data.batch = lambda epoch, index, part: 1 // 0
    with Prefetcher([Phase(data=data)], PROCESSES, alone) as prefetcher, pytest.raises(ZeroDivisionError):
        prefetcher.take(DataPosition())


ORPHANS = """
import os, signal
import torch
from tests.training.loop.test_prefetcher import NamedData, PROCESSES
from training.loop.distributed import World
from training.loop.prefetcher import Prefetcher
from training.loop.types import DataPosition, Phase
prefetcher = Prefetcher([Phase(data=NamedData())], PROCESSES, World(0, 1, torch.device("cpu")))
makers = {int(b.inputs["process"]) for i in range(9) for b in prefetcher.take(DataPosition(index=i))[1]}
print(*makers, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_processes_end_with_a_killed_training(alone):
    """No process stays behind."""
    result = subprocess.run([sys.executable, "-c", ORPHANS], capture_output=True, text=True, check=False)
    makers = [int(word) for word in result.stdout.split()]
    deadline = time.monotonic() + 10
    while any(os.path.exists(f"/proc/{maker}") for maker in makers) and time.monotonic() < deadline:
        time.sleep(0.01)

    assert makers, result.stderr
    assert not any(os.path.exists(f"/proc/{maker}") for maker in makers)


@pytest.mark.parametrize(
    ("changes", "device", "stage", "size", "count"),
    [
        ({}, "cpu", "pretraining", 1, 0),
        ({}, "cuda", "pretraining", 1, 8),
        ({}, "cuda", "pretraining", 4, 3),
        ({}, "cuda", "pretraining", 32, 0),
        ({}, "cuda", "fine-tuning", 1, 0),
        ({"data_workers": 3}, "cpu", "fine-tuning", 1, 3),
        ({"data_workers": 0}, "cuda", "pretraining", 1, 0),
    ],
)
def test_default_number_of_processes(changes, device, stage, size, count, monkeypatch):
    """Eight for a GPU that pretrains if there are cores for them, else a thread."""
    monkeypatch.setattr("training.loop.prefetcher.available_cpus", lambda: 16)
    settings = SimpleNamespace(data_workers=changes.get("data_workers"), stage=stage)

    assert num_data_workers(settings, World(0, size, torch.device(device))) == count
