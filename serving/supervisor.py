"""Several processes that serve the same models on the same ports, and their supervisor, which serves nothing.

The supervisor loads the models once. The processes are forked from it, so that they share this memory, and the system
spreads connections over them (SO_REUSEPORT). It runs Python in one thread when it forks, as a fork copies only the
thread that forks. A process that ends, hangs or fails its canary is replaced.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import math
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from serving.core.models import Model
from serving.core.session import choose_execution
from serving.grpc_api.listening import check_free
from serving.process.members import Board, Member
from serving.process.ready import notify
from serving.server import model_loader
from serving.settings import Settings
from tasks.bundle.model_directory import model_folders, read_model_directory, version_paths
from tasks.bundle.providers import CPU

SILENT_S = 30.0
"""Seconds without a sign of life of its event loop after which a process is killed."""
TICK_S = 0.2
"""Seconds between looks at the processes."""
LATE_S = 5.0
"""Seconds between two looks after which silence proves nothing: the supervisor, too, was stopped."""
KILL_S = 10.0
"""Seconds after the grace period after which processes that have not ended are killed."""
FIRST_DELAY_S, MAX_DELAY_S = 0.5, 30.0
"""First and maximum delay before a process is replaced; it doubles each time."""
LIVED_S = 60.0
"""Seconds after which a process has lived long: its end does not prolong the delay."""
END_NOW = signal.SIGUSR1
"""Tells a process that drains to end without waiting for calls."""
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
PR_SET_PDEATHSIG = 1
"""Constant of Linux' prctl.h."""

logger = logging.getLogger("serving")


def share_of(settings: Settings, number: int) -> Settings:
    """Return the settings of one of several processes: its part of the cores, memory, cache and connections.

    Args:
        settings: settings of all processes together.
        number: number of the process, from 0.
    """
    count = settings.processes
    parts = {
        "workers": math.ceil((settings.workers - number) / count),  # the first get what is left
        "buffer_bytes": max(settings.buffer_bytes // count, 4 * settings.max_request_bytes),
        "cache_bytes": settings.cache_bytes // count,
        "max_connections": math.ceil(settings.max_connections / count),
    }
    if settings.max_concurrent_per_client:
        parts["max_concurrent_per_client"] = math.ceil(settings.max_concurrent_per_client / count)
    return settings.model_copy(update=parts | {"workers": max(1, parts["workers"])})


def preload(settings: Settings) -> dict[Path, Model]:
    """Load the models that processes may share, and return them by path; the processes report the others' errors.

    Those are graphs of ONNX Runtime on one thread of a CPU: threads of other engines would not be in the processes.
    """
    load, loaded = model_loader(settings, {}), {}
    with suppress(ValueError, OSError):
        for folder in model_folders(settings.models_dir):
            for path in version_paths(folder)[-(settings.max_versions or 0) :]:
                with suppress(Exception):  # the process that tries again says why
                    manifest = read_model_directory(path).manifest
                    execution = choose_execution(manifest, path, engine_fallback=settings.engine_fallback)
                    if execution.provider == CPU and (settings.num_threads or execution.num_threads) == 1:
                        loaded[path] = load(path)
    return loaded


@dataclass
class _Process:
    """A process, or the one that will replace it."""

    number: int
    pid: int = 0
    """0 while there is none."""
    started_s: float = 0.0
    due_s: float = 0.0
    """Monotonic time from which it may be started."""
    delay_s: float = 0.0
    """Delay before it was last started."""


class Supervisor:
    """Starts processes, and replaces them until it gets SIGTERM or SIGINT."""

    def __init__(self, settings: Settings, serve: Callable[[Settings, Member], int]) -> None:
        """Reserve the ports.

        Args:
            settings: settings of all processes together.
            serve: serves as one of the processes, and returns its exit code.

        Raises:
            OSError: when a port is not available.
        """
        count = settings.processes
        self._count, self._serve, self._board = count, serve, Board(count)
        self._reserved: list[socket.socket] = []
        """Sockets that keep the ports."""
        places = {
            "port": (settings.host, settings.port),
            "metrics_port": (settings.metrics_host or settings.host, settings.metrics_port),
            "http_port": (settings.host, settings.http_port),
        }
        ports = {name: self._reserve(host, port, name) for name, (host, port) in places.items() if port is not None}
        self._settings = settings.model_copy(update=ports)
        self._pages = tuple(socket.create_server(("127.0.0.1", 0)) for _ in range(count))
        self._processes = [_Process(number) for number in range(count)]
        self._cpus = sorted(os.sched_getaffinity(0))
        self._loaded: Mapping[Path, Model] = {}
        self._is_ready = False
        self._num_stops = 0
        self._kill_s = math.inf
        self._looked_s = time.monotonic()

    def _reserve(self, host: str, port: int, name: str) -> int:
        """Bind a port without listening on it, so that no other program takes it while processes are replaced."""
        check_free(host, port, f"--{name.replace('_', '-')}")
        for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            self._reserved.append(bound := socket.socket(family, kind, protocol))
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            with suppress(OSError):  # an address that this machine lacks
                bound.bind((address[0], port, *address[2:]))
                port = bound.getsockname()[1]
        return port

    def run(self) -> int:
        """Run until all processes have ended.

        Returns:
            Exit code: 0 after a drain; that of the first process if it ends before it takes calls.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # for `sigtimedwait`
        self._loaded = preload(self._settings)
        gc.collect()
        gc.freeze()  # otherwise the collector of each process would write to all objects, which copies them
        first = self._processes[0]
        self._start(first)  # alone: if it cannot serve, none can
        while True:
            if found := signal.sigtimedwait(SIGNALS, TICK_S):
                self._handle(found.si_signo)
            for process, code in self._ended():
                if not self._is_ready and not self._num_stops:
                    return code if code > 0 else 1
                self._board.clear(process.number)
                if not self._num_stops:
                    self._replace(process, code)
            if self._num_stops and not any(process.pid for process in self._processes):
                logger.info("ended")
                return 0
            self._look()

    def _handle(self, number: int) -> None:
        if number == signal.SIGHUP:
            self._tell(signal.SIGHUP)
        elif number != signal.SIGCHLD:
            self._num_stops += 1
            grace_s = self._settings.grace_s
            self._kill_s = min(self._kill_s, time.monotonic() + grace_s + KILL_S)
            if self._num_stops == 1:
                notify("STOPPING=1")
                logger.info("received %s: draining for at most %g s", signal.Signals(number).name, grace_s)
            self._tell(signal.SIGTERM if self._num_stops == 1 else END_NOW)

    def _tell(self, number: int) -> None:
        for process in self._processes:
            if process.pid:
                os.kill(process.pid, number)

    def _ended(self) -> list[tuple[_Process, int]]:
        """Return the processes that have ended, with their exit codes; negative ones are signals."""
        ended = []
        for process in self._processes:
            if process.pid and (found := os.waitpid(process.pid, os.WNOHANG))[0]:
                process.pid = 0
                ended.append((process, os.waitstatus_to_exitcode(found[1])))
        return ended

    def _replace(self, process: _Process, code: int) -> None:
        """Start another process soon; later, if this one did not live long."""
        lived_s = time.monotonic() - process.started_s
        has_lived = lived_s > LIVED_S
        process.delay_s = FIRST_DELAY_S if has_lived else min(max(FIRST_DELAY_S, 2 * process.delay_s), MAX_DELAY_S)
        process.due_s = time.monotonic() + process.delay_s
        self._board.count_replaced(process.number)
        reason = f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
        logger.error(
            "process %d ended after %.0f s (%s); another one starts in %g s",
            *(process.number, lived_s, reason, process.delay_s),
        )

    def _look(self) -> None:
        """Announce the server, start the processes that are due, and kill those that hang."""
        now_s = time.monotonic()
        was_late, self._looked_s = now_s - self._looked_s > LATE_S, now_s
        if not self._is_ready and self._board.is_ready(0):
            self._is_ready = True
            notify("READY=1")
        for process in self._processes:
            if not process.pid and self._is_ready and not self._num_stops and now_s >= process.due_s:
                self._start(process)
            elif process.pid and now_s > self._kill_s:
                os.kill(process.pid, signal.SIGKILL)
            elif process.pid and self._board.is_ready(process.number):
                if was_late:
                    self._board.beat(process.number)
                elif self._board.silent_s(process.number) > SILENT_S:
                    logger.error("process %d hangs: it is killed", process.number)
                    os.kill(process.pid, signal.SIGKILL)
                    self._board.clear(process.number)

    def _start(self, process: _Process) -> None:
        parent = os.getpid()
        if pid := os.fork():
            process.pid, process.started_s = pid, time.monotonic()
            if (ready_fd := self._settings.ready_fd) is not None:  # the first process has it
                os.close(ready_fd)
                self._settings = self._settings.model_copy(update={"ready_fd": None})
            return
        code = 1
        try:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)  # otherwise it would outlive the supervisor
            if os.getppid() == parent:
                code = self._serve(*self._role(process.number))
        except BaseException:
            logger.exception("process %d failed", process.number)
        finally:
            os._exit(code)

    def _role(self, number: int) -> tuple[Settings, Member]:
        """Prepare this process to serve, and return its settings."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the supervisor says when to end
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        os.environ.pop("NOTIFY_SOCKET", None)
        cpus = self._cpus[number :: self._count]  # as many as `share_of` gives it workers
        os.sched_setaffinity(0, cpus or [self._cpus[number % len(self._cpus)]])
        member = Member(number, self._count, self._board, self._pages, self._loaded, not self._is_ready)
        return share_of(self._settings, number), member
