"""Pool of workers on a Ray cluster, like `worker_pool`; if a node dies, other nodes do its work."""

# clients/bertline/jobs/ray_pool.py is a separate pool: `training` and `bertline` must not import each other.

from __future__ import annotations

import importlib
import io
import os
import pickle
import re
import signal
import socket
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, TextIO, TypeVar

ResultT = TypeVar("ResultT")

MAX_ATTEMPTS = 4
"""Largest number of starts of an item; Ray itself retries an item forever if it kills its worker each time."""
CONNECT_S = 5.0
_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DATA_LOG_LEVEL": "CRITICAL",
    "RAY_DEDUP_LOGS": "0",  # prints held-back messages at the end
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


def map_on_ray(
    function: Callable[..., ResultT], arguments: Iterable[tuple[Any, ...]], *, num_workers: int, address: str
) -> Iterator[ResultT]:
    """Yield the results of a function, in order; each call runs on one core of the cluster.

    Args:
        function: function of `training` or `tasks`; Ray ships these packages, all other libraries must be installed on
            every node.
        arguments: arguments of each call; all are read before the first call, so they should be small.
        num_workers: calls at the same time; 0 for one for each core of the cluster.
        address: `host:port` of a cluster, `auto` for the cluster of this machine, `local` to start one here.

    Raises:
        ChildProcessError: if Ray is not installed, no cluster answers or it failed, or an item killed its worker
            repeatedly.
        Exception: any error of the function.
    """
    rows = [{"number": number, "item": pickle.dumps(items)} for number, items in enumerate(arguments)]
    with _connected(address) as ray:
        if not rows:
            return
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        attempts = ray.remote(num_cpus=0)(_Attempts).options(scheduling_strategy=here).remote()
        data = ray.data.from_items(rows, override_num_blocks=len(rows))
        call = {"function": function, "attempts": attempts}
        data = data.map(_call, fn_kwargs=call, num_cpus=1, concurrency=num_workers or None)
        data.context.execution_options.preserve_order = True
        data.context.enable_progress_bars = False
        for row in data.iter_rows():
            is_done, value = pickle.loads(row["outcome"])
            if not is_done:
                raise value
            yield value


class _Attempts:
    """Ray actor that counts attempts; it runs on the node of the command, which must live anyway."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def begin(self, number: int) -> int:
        self._counts[number] += 1
        return self._counts[number]


def _call(row: dict[str, Any], function: Callable[..., Any], attempts: Any) -> dict[str, Any]:
    """Call the function in a worker. Return errors as results, as Ray would wrap them in pages of text."""
    import ray

    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there is already a worker for each core
    try:
        if ray.get(attempts.begin.remote(row["number"])) > MAX_ATTEMPTS:
            raise ChildProcessError(f"a worker died {MAX_ATTEMPTS} times at the same item; is there enough memory?")
        outcome = True, function(*pickle.loads(row["item"]))
    except (ValueError, OSError, MemoryError) as error:
        outcome = False, error
    except Exception:
        outcome = False, RuntimeError(traceback.format_exc())
    return {"outcome": pickle.dumps(outcome)}


class _StdoutWithoutRayLogs(io.TextIOBase):
    """Drops what Ray's threads print: the end of a node's log for each node that dies."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> int:
        if threading.current_thread().name.startswith("ray_"):
            return len(text)
        return self._file.write(text)

    def flush(self) -> None:
        self._file.flush()


@contextmanager
def _connected(address: str) -> Iterator[Any]:
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    try:
        ray = importlib.import_module("ray")
        importlib.import_module("ray.data")
    except ImportError as error:
        raise ChildProcessError(
            f"--ray needs Ray ({error}): python -m pip install --group ray -c constraints.txt"
        ) from error
    with redirect_stdout(_StdoutWithoutRayLogs(sys.stdout)):  # type: ignore[type-var]
        _connect(ray, address)
        try:
            yield ray
        except ray.exceptions.RayError as error:
            raise ChildProcessError(_one_line(error)) from error
        finally:
            ray.shutdown()


def _connect(ray: Any, address: str) -> None:
    if address not in ("auto", "local"):
        _check_reachable(address)
    packages = [str(Path(__file__).parents[2] / name) for name in ("tasks", "training")]
    on_signal = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(
            address=address,
            include_dashboard=False if address == "local" else None,
            runtime_env={"py_modules": packages},
            log_to_driver=False,
            logging_level="CRITICAL",
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ChildProcessError(f"cannot join the Ray cluster `{address}`: {_one_line(error)}") from error
    finally:
        signal.signal(signal.SIGTERM, on_signal)  # Ray's handler would change the exit code


def _check_reachable(address: str) -> None:
    """Raise immediately if nothing listens at the address; Ray would retry for minutes."""
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        raise ChildProcessError(f"--ray must be `auto`, `local` or host:port of a cluster's head: `{address}`")
    try:
        socket.create_connection((host, int(port)), CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise ChildProcessError(
            f"no Ray cluster at `{address}` ({error}); start one with `ray start --head`, or give --ray local"
        ) from error


def _one_line(error: BaseException) -> str:
    if module := re.search(r"No module named '([\w.]+)'", str(error)):
        return f"a node of the Ray cluster has no module `{module[1]}`; install the same packages as on this machine"
    return next(line for line in reversed(f"the Ray cluster failed\n{error}".splitlines()) if line.strip()).strip()
