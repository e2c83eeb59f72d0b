"""The same as `worker_pool`, on a Ray cluster: what the workers of a node that dies were at is done by others."""

from __future__ import annotations

import importlib
import os
import pickle
import re
import signal
import socket
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import tasks
import training
from training.text.quiet import without_threads

ResultT = TypeVar("ResultT")

MAX_ATTEMPTS = 4
"""How often an item is begun: Ray itself would go on for ever with one that ends its worker each time."""
CONNECT_S = 5.0
_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DATA_LOG_LEVEL": "CRITICAL",
    "RAY_DEDUP_LOGS": "0",  # else what was held back is printed in the end
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


def map_on_ray(
    function: Callable[..., ResultT], arguments: Iterable[tuple[Any, ...]], *, num_workers: int, address: str
) -> Iterator[ResultT]:
    """Results of a function, in order, from tasks of one core each.

    Args:
        function: of a module of ours; the modules travel, other libraries have to be on every node.
        arguments: read whole before anything begins, so they should be small.
        num_workers: at the same time; 0 for one a core of the cluster.
        address: `host:port` of a cluster, `auto` for the one that this machine belongs to, `local` to start one here.

    Raises:
        ChildProcessError: when Ray is not installed, there is no cluster or it failed, or an item ended its worker time
            and again; also what the function raises.
    """
    rows = [{"number": number, "item": pickle.dumps(items)} for number, items in enumerate(arguments)]
    with _connected(address) as ray:
        if not rows:
            return
        attempts = ray.remote(num_cpus=0)(_Attempts).options(scheduling_strategy=_here(ray)).remote()
        data = ray.data.from_items(rows, override_num_blocks=len(rows))
        call = {"function": function, "attempts": attempts}
        data = data.map(_call, fn_kwargs=call, num_cpus=1, concurrency=num_workers or None)
        data.context.execution_options.preserve_order = True
        data.context.enable_progress_bars = False
        for row in data.iter_rows():
            yield _result(pickle.loads(row["outcome"]))


class _Attempts:
    """On the node of the command, which has to live anyway."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def begin(self, number: int) -> int:
        self._counts[number] += 1
        return self._counts[number]


def _here(ray: Any) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)


def _call(row: dict[str, Any], function: Callable[..., Any], attempts: Any) -> dict[str, Any]:
    """In a worker. An error is a result, too: Ray would wrap it in pages."""
    import ray

    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there is a worker for each core already
    try:
        if ray.get(attempts.begin.remote(row["number"])) > MAX_ATTEMPTS:
            raise ChildProcessError(f"a worker died {MAX_ATTEMPTS} times at the same work; is there enough memory?")
        outcome = True, function(*pickle.loads(row["item"]))
    except (ValueError, OSError, MemoryError) as error:
        outcome = False, error
    except Exception:
        outcome = False, RuntimeError(traceback.format_exc())
    return {"outcome": pickle.dumps(outcome)}


def _result(outcome: tuple[bool, Any]) -> Any:
    if not outcome[0]:
        raise outcome[1]
    return outcome[1]


@contextmanager
def _connected(address: str) -> Iterator[Any]:
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    try:
        ray = importlib.import_module("ray")
        importlib.import_module("ray.data")
    except ImportError as error:
        raise ChildProcessError(
            f"--ray needs what is not installed ({error}): python -m pip install --group ray -c constraints.txt"
        ) from error
    with without_threads("ray_"):
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
    packages = [str(Path(str(package.__file__)).parent) for package in (tasks, training)]
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
        signal.signal(signal.SIGTERM, on_signal)  # Ray's would make another exit code of it


def _check_reachable(address: str) -> None:
    """Ray would try for minutes."""
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
        return f"a node of the Ray cluster has no module `{module[1]}`; install there what is installed here"
    return next(line for line in reversed(f"the Ray cluster failed\n{error}".splitlines()) if line.strip()).strip()
