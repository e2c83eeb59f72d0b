"""Pool of actors on a Ray cluster: partitions of a node that dies are done again on the others.

Ray Data gives each actor one partition at a time, and restarts actors and partitions of a dead node elsewhere, without
limit. This module adds the limit MAX_ATTEMPTS, and stops at the first error of a worker. Ray's own retry counts are
deprecated, and a dead node uses them up before Ray knows that it is dead.
"""

# training/text/ray_pool.py is a separate pool: `training` and `bertline` must not import each other.

from __future__ import annotations

import importlib
import os
import pickle
import re
import signal
import socket
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from typing import Any, TypeVar

PartitionT = TypeVar("PartitionT")
StatsT = TypeVar("StatsT")

MAX_ATTEMPTS = 4
"""Maximum number of times that a partition is started; one that needs too much memory kills its worker each time."""
_CONNECT_S = 5.0
_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",  # send no usage statistics
    "RAY_DATA_LOG_LEVEL": "CRITICAL",
    "RAY_DEDUP_LOGS": "0",  # else Ray prints repeated lines at the end
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


class RayFailed(Exception):
    """Error of the cluster, or of a partition that failed MAX_ATTEMPTS times; one line. Finished work stays."""


def map_partitions(
    partitions: Sequence[PartitionT],
    make_worker: Callable[[], Callable[[PartitionT], StatsT]],
    *,
    address: str,
    num_workers: int,
    progress: Callable[[int, StatsT], object],
) -> None:
    """Process each partition on an actor of a Ray cluster.

    A partition may run more than once, also after it was done if its node dies: it must write atomically, and the same
    each time.

    Args:
        partitions: picklable descriptions of the work.
        make_worker: called once an actor, on its node; every node must have its module.
        address: `host:port` of a cluster, `auto` for the one that this machine belongs to, `local` to start one here.
        num_workers: number of actors; they start as the cluster has room.
        progress: called with index and result of each partition, once, as it ends.

    Raises:
        RayFailed: when Ray is not installed, no cluster is there, the cluster fails, or workers die MAX_ATTEMPTS times
            at the same partition.
        Exception: the first error of a worker, with its traceback as a note. No further partition is started.
    """
    with _connected(address) as ray:
        if not partitions:
            return
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        attempts = ray.remote(num_cpus=0)(_Attempts).options(scheduling_strategy=here).remote()
        rows = [{"index": index, "partition": pickle.dumps(item)} for index, item in enumerate(partitions)]
        data = ray.data.from_items(rows, override_num_blocks=len(rows)).map(
            _Actor,
            fn_constructor_args=(make_worker, attempts),
            compute=ray.data.ActorPoolStrategy(size=min(num_workers, len(rows)), max_tasks_in_flight_per_actor=1),
            num_cpus=1,
        )
        data.context.enable_progress_bars = False
        for row in data.iter_rows():
            is_done, value = pickle.loads(row["outcome"])
            if not is_done:
                raise value
            progress(int(row["index"]), value)


class _Attempts:
    """Counter of the attempts of each partition, on the driver's node."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def begin(self, index: int) -> int:
        self._counts[index] += 1
        return self._counts[index]


class _Actor:
    """Actor that returns errors as values: Ray would wrap an error that it raises in its own traceback."""

    def __init__(self, make_worker: Callable[[], Callable[[Any], Any]], attempts: Any) -> None:
        self._attempts = attempts
        self._worker, self._failure = None, None
        try:
            self._worker = make_worker()
        except Exception as error:
            self._failure = _with_traceback(error)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        return {"index": row["index"], "outcome": pickle.dumps(self._outcome(row))}

    def _outcome(self, row: dict[str, Any]) -> tuple[bool, Any]:
        import ray

        if self._worker is None:
            return False, self._failure
        if ray.get(self._attempts.begin.remote(row["index"])) > MAX_ATTEMPTS:
            reason = f"workers died {MAX_ATTEMPTS} times at partition {row['index']}; give them more memory"
            return False, RayFailed(reason)
        try:
            return True, self._worker(pickle.loads(row["partition"]))
        except Exception as error:
            return False, _with_traceback(error)


def _with_traceback(error: Exception) -> Exception:
    """Add the traceback as a note, which survives pickling."""
    error.add_note(f"on node {socket.gethostname()}:\n{''.join(traceback.format_exception(error))}")
    return error


@contextmanager
def _connected(address: str) -> Iterator[Any]:
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    try:
        ray = importlib.import_module("ray")
        importlib.import_module("ray.data")
    except ImportError as error:
        raise RayFailed(
            f"Ray is not installed ({error}): install the extra `ray`, such as pip install './clients[ray]'"
        ) from error
    with redirect_stdout(StringIO()):  # Ray's threads print the log of each dead node
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
    options = {"include_dashboard": False} if address == "local" else {}
    try:
        ray.init(address=address, log_to_driver=False, logging_level="CRITICAL", **options)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise RayFailed(f"cannot join the Ray cluster `{address}`: {_one_line(error)}") from error
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, on_signal)  # Ray sets its own


def _check_reachable(address: str) -> None:
    """Connect once: Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        raise RayFailed(f"address of a Ray cluster must be `auto`, `local` or host:port: `{address}`")
    try:
        socket.create_connection((host, int(port)), _CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise RayFailed(f"no Ray cluster at `{address}` ({error}); start one with `ray start --head`") from error


def _one_line(error: BaseException) -> str:
    if module := re.search(r"No module named '([\w.]+)'", str(error)):
        return f"a node of the Ray cluster lacks the module `{module[1]}`; install the same packages on all nodes"
    return next(line for line in reversed(f"the Ray cluster failed\n{error}".splitlines()) if line.strip()).strip()
