"""Shared state of the processes of one server: signs of life, pages of metrics, and models that were loaded once."""

from __future__ import annotations

import http.client
import mmap
import os
import socket
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from serving.core.models import Model

PAGE_S = 2.0
"""Maximum seconds to wait for the page of another process."""
LABEL = "process"
"""Label of the series of a process. They are not added up here: a process that is replaced starts its counters at 0,
which a sum would hide from `rate`."""
PROCESS = "bertline-process"
"""Metadata of replies: an id of the server, the number of the process, and the number of processes."""


class Board:
    """Memory that the supervisor and all processes read and write."""

    def __init__(self, count: int) -> None:
        self.server = os.urandom(4).hex()
        """Id of the server."""
        kinds = np.dtype([("beat_s", "f8"), ("num_replaced", "i8"), ("is_ready", "i8")])
        self._slots = np.frombuffer(mmap.mmap(-1, count * kinds.itemsize), kinds)

    def clear(self, number: int) -> None:
        """Forget the process of a slot."""
        self._slots["is_ready"][number] = 0

    def set_ready(self, number: int) -> None:
        """Note that a process takes calls."""
        self.beat(number)
        self._slots["is_ready"][number] = 1

    def is_ready(self, number: int) -> bool:
        """Return whether the process of a slot takes calls."""
        return bool(self._slots["is_ready"][number])

    def beat(self, number: int) -> None:
        """Note that the event loop of a process runs."""
        self._slots["beat_s"][number] = time.monotonic()

    def silent_s(self, number: int) -> float:
        """Return the seconds since the event loop of a process ran."""
        return time.monotonic() - float(self._slots["beat_s"][number])

    def count_replaced(self, number: int) -> None:
        """Count a process that was replaced."""
        self._slots["num_replaced"][number] += 1

    def num_replaced(self, number: int) -> int:
        """Return how many processes of a slot were replaced."""
        return int(self._slots["num_replaced"][number])


@dataclass(frozen=True, slots=True)
class Member:
    """One of several processes that serve the same ports."""

    number: int
    count: int
    board: Board
    pages: tuple[socket.socket, ...]
    """Listening sockets of the processes' own pages of metrics, on loopback."""
    loaded: Mapping[Path, Model]
    """Models that were loaded before the processes began, by path."""
    is_first: bool
    """True for the first process of the server, which prints the ready line."""

    def __str__(self) -> str:
        return f"{self.board.server}/{self.number}/{self.count}"

    @property
    def page(self) -> socket.socket:
        """Listening socket of this process' own page of metrics."""
        return self.pages[self.number]


class MemberMetrics(Collector):
    """Metrics of all processes, each with its number as a label."""

    def __init__(self, member: Member, own: CollectorRegistry) -> None:
        self._member, self._own = member, own
        self._threads = ThreadPoolExecutor(member.count, thread_name_prefix="metrics")

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of all processes that take calls."""
        member = self._member
        families: dict[str, Metric] = {}
        others = [n for n in range(member.count) if n != member.number and member.board.is_ready(n)]
        pages = dict(zip(others, self._threads.map(self._page, others), strict=True))
        pages[member.number] = list(self._own.collect())
        for number in sorted(pages):
            for family in pages[number]:
                merged = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                merged.samples += [item._replace(labels={**item.labels, LABEL: str(number)}) for item in family.samples]
        yield from families.values()
        replaced = CounterMetricFamily(
            "bertline_process_replaced", "Processes that ended and were replaced.", labels=[LABEL]
        )
        for number in range(member.count):
            replaced.add_metric([str(number)], member.board.num_replaced(number))
        yield replaced
        yield GaugeMetricFamily("bertline_processes", "Processes that should run.", member.count)

    def _page(self, number: int) -> list[Metric]:
        """Return the metrics of another process; none if it does not answer."""
        host, port = self._member.pages[number].getsockname()
        connection = http.client.HTTPConnection(host, port, timeout=PAGE_S)
        try:
            connection.request("GET", "/metrics")
            return list(text_string_to_metric_families(connection.getresponse().read().decode()))
        except (OSError, http.client.HTTPException, ValueError):  # it has just ended
            return []
        finally:
            connection.close()
