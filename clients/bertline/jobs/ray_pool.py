"""A pool of actors on a Ray cluster that outlives its nodes: what a dead one was at is done again by the others.

Knows nothing of what is done. Ray Data gives an actor a partition at a time, starts the actors of a dead node
elsewhere and submits their partitions again, without end. That this ends after `MAX_ATTEMPTS`, and that an error ends
it at once, is ours: retries that Ray counts are deprecated, and used up by a dead node before it is known to be dead.
"""

from __future__ import annotations

import importlib
import os
import pickle
import re
import signal
import socket
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from io import TextIOBase
from typing import Any, TextIO, TypeVar

PartitionT = TypeVar("PartitionT")
StatsT = TypeVar("StatsT")

MAX_ATTEMPTS = 4
"""How often a partition is begun. Without end it would be one that ends its worker each time, for want of memory."""
_CONNECT_S = 5.0
_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",  # nobody is told of it
    "RAY_DATA_LOG_LEVEL": "CRITICAL",
    "RAY_DEDUP_LOGS": "0",  # else what was held back is printed in the end
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


class RayFailed(Exception):
    """The cluster failed, or a partition time and again; the message is one line. What was written stays."""


def map_partitions(
    partitions: Sequence[PartitionT],
    make_worker: Callable[[], Callable[[PartitionT], StatsT]],
    *,
    address: str,
    num_workers: int,
    progress: Callable[[int, StatsT], object],
    num_cpus: float = 1,
    num_gpus: float = 0,
) -> None:
    """Do each partition on an actor of a Ray cluster.

    A partition may be begun more than once, and be done twice where a node dies with the answer: let it write
    atomically, and always the same.

    Args:
        partitions: what can be pickled.
        make_worker: called once an actor, on its node; of a module that every node has.
        address: `host:port` of a cluster, `auto` for the one that this machine belongs to, `local` to start one here.
        num_workers: actors; those for which there is no room wait for it.
        progress: called with a partition's index and what came of it, once each, as they end.
        num_cpus: cores of an actor.
        num_gpus: GPUs of an actor.

    Raises:
        RayFailed: when Ray is not installed, there is no cluster, it failed, or workers died time and again at the same
            partition.
        Exception: the first that a worker raised; a note tells its traceback. Nothing new is begun then.
    """
    with _connected(address) as ray:
        if not partitions:
            return
        attempts = ray.remote(num_cpus=0)(_Attempts).options(scheduling_strategy=_here(ray)).remote()
        rows = [{"index": index, "partition": pickle.dumps(item)} for index, item in enumerate(partitions)]
        data = ray.data.from_items(rows, override_num_blocks=len(rows)).map(
            _Actor,
            fn_constructor_args=(make_worker, attempts),
            compute=ray.data.ActorPoolStrategy(size=min(num_workers, len(rows)), max_tasks_in_flight_per_actor=1),
            num_cpus=num_cpus,
            num_gpus=num_gpus,
        )
        data.context.enable_progress_bars = False
        for row in data.iter_rows():
            progress(int(row["index"]), _value(pickle.loads(row["outcome"])))


class _Attempts:
    """Counts them on the node of the driver, without which all ends anyway."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def begin(self, index: int) -> int:
        self._counts[index] += 1
        return self._counts[index]


class _Actor:
    """Errors are outcomes, too: those that are raised come back in pages of Ray's."""

    def __init__(self, make_worker: Callable[[], Callable[[Any], Any]], attempts: Any) -> None:
        self._attempts = attempts
        self._worker, self._failure = None, None
        try:
            self._worker = make_worker()
        except Exception as error:
            self._failure = _portable(error)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        return {"index": row["index"], "outcome": pickle.dumps(self._outcome(row))}

    def _outcome(self, row: dict[str, Any]) -> tuple[bool, Any]:
        import ray

        if self._worker is None:
            return False, self._failure
        if ray.get(self._attempts.begin.remote(row["index"])) > MAX_ATTEMPTS:
            why = f"workers died {MAX_ATTEMPTS} times at partition {row['index']}; have they enough memory?"
            return False, RayFailed(why)
        try:
            return True, self._worker(pickle.loads(row["partition"]))
        except Exception as error:
            return False, _portable(error)


def _portable(error: Exception) -> Exception:
    """With its traceback as a note; an error that cannot be pickled is told in words."""
    error.add_note(f"on node {socket.gethostname()}:\n{''.join(traceback.format_exception(error))}")
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RayFailed(f"{type(error).__name__}: {error}")
    return error


def _value(outcome: tuple[bool, Any]) -> Any:
    is_done, value = outcome
    if not is_done:
        raise value
    return value


def _here(ray: Any) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)


@contextmanager
def _connected(address: str) -> Iterator[Any]:
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    try:
        ray = importlib.import_module("ray")
        importlib.import_module("ray.data")
    except ImportError as error:
        raise RayFailed(f"Ray is not installed ({error}): pip install 'bertline[ray]'") from error
    with redirect_stdout(_WithoutRay()):  # type: ignore[type-var]
        _connect(ray, address)
        try:
            yield ray
        except ray.exceptions.RayError as error:
            raise RayFailed(_one_line(error)) from error
        finally:
            ray.shutdown()


def _connect(ray: Any, address: str) -> None:
    if address not in ("auto", "local"):
        _check_reachable(address)
    on_signal = signal.getsignal(signal.SIGTERM)
    here = {"include_dashboard": False} if address == "local" else {}
    try:
        ray.init(address=address, log_to_driver=False, logging_level="CRITICAL", **here)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise RayFailed(f"cannot join the Ray cluster `{address}`: {_one_line(error)}") from error
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, on_signal)  # Ray sets one of its own


def _check_reachable(address: str) -> None:
    """Ray tries for minutes."""
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        raise RayFailed(f"not `auto`, `local` or host:port of a Ray cluster: `{address}`")
    try:
        socket.create_connection((host, int(port)), _CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise RayFailed(f"no Ray cluster at `{address}` ({error}); start one with `ray start --head`") from error


def _one_line(error: BaseException) -> str:
    if module := re.search(r"No module named '([\w.]+)'", str(error)):
        return f"a node of the Ray cluster has no module `{module[1]}`; install there what is installed here"
    return next(line for line in reversed(f"the Ray cluster failed\n{error}".splitlines()) if line.strip()).strip()


class _WithoutRay(TextIOBase):
    """Standard output without Ray's threads, which print the end of a node's log for each node that dies."""

    def __init__(self) -> None:
        self._file: TextIO = sys.stdout

    def write(self, text: str) -> int:
        is_ray = threading.current_thread().name.startswith("ray_")
        return len(text) if is_ray else self._file.write(text)

    def flush(self) -> None:
        self._file.flush()
