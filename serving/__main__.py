"""Serve a directory of models until SIGTERM or SIGINT.

python -m serving models
python -m serving models --port 0 --metrics-port 0
BERTLINE_MODELS_DIR=/models BERTLINE_HOST=0.0.0.0 python -m serving
python -m serving --print-config
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends the process during the imports below, which are slow
signal.signal(signal.SIGHUP, signal.SIG_IGN)  # requests a scan of the models, which the first load does anyway
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # the workers need these cores

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # failed handshakes of port scanners would fill the log

from serving.process import memory_trim, streams  # noqa: E402

streams.open_missing()  # before any file is opened that stays open
memory_trim.use_one_arena()  # before any thread starts

import uvloop  # noqa: E402

from serving.core.errors import error_line  # noqa: E402
from serving.process import descriptors, logs, ready  # noqa: E402
from serving.process.members import Member  # noqa: E402
from serving.process.print_config import describe_settings, versions  # noqa: E402
from serving.process.ready import notify  # noqa: E402
from serving.server import Server  # noqa: E402
from serving.settings import Settings, read_settings, unknown_variables  # noqa: E402
from serving.supervisor import END_NOW, Supervisor  # noqa: E402

logger = logging.getLogger("serving")

GC_THRESHOLDS = (20_000, 20, 100)
"""Thresholds of the garbage collector, which calls leave little work: collections take 5% of a call with Python's."""
THREAD_SWITCH_S = 0.001
"""Seconds between switches of Python threads, instead of 5 ms: a worker that ends a run gets its turn sooner."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until a signal comes; with --print-config or --version, print and return.

    Returns:
        Exit code: 0 after a drain; 2 for a wrong setting or model, named in one line on stderr; 1 if the storage of the
        models hangs. The process also ends with 1 if a run cannot be aborted or gRPC stops by itself.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if "--version" in arguments:
        print(versions())
        return 0
    if "--print-config" in arguments:
        arguments.remove("--print-config")
        return _exit_code(lambda: _print_config(arguments))
    return _exit_code(lambda: _start(arguments))


def _exit_code(run: Callable[[], int | None]) -> int:
    """Run a command and return its exit code; print an error of the user as one line."""
    try:
        return run() or 0
    except (ValueError, OSError) as error:
        print(f"error: {error_line(error)}", file=sys.stderr)
        return 1 if isinstance(error, TimeoutError) else 2  # hanging storage: a restart may help


def _print_config(arguments: Sequence[str]) -> None:
    print(describe_settings(arguments))
    _warn_of_unknown_variables()


def _start(arguments: Sequence[str]) -> int:
    settings = read_settings(arguments)
    if settings.processes == 1:
        return _serve(settings)
    logs.configure(settings.log_format, settings.log_level)
    logging.raiseExceptions = False  # lines that cannot be written are lost
    streams.unblock(2)
    return Supervisor(settings, _serve).run()


def _serve(settings: Settings, member: Member | None = None) -> int:
    """Serve in this process, alone or as one of several; return the exit code."""
    with streams.non_blocking():
        return _exit_code(lambda: _run(settings, member))


def _run(settings: Settings, member: Member | None) -> None:
    logs.configure(settings.log_format, settings.log_level, member.number if member else None)
    if not member or member.is_first:
        _warn_of_unknown_variables()
    descriptors.raise_limit()
    sys.setswitchinterval(THREAD_SWITCH_S)
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        uvloop.run(run(settings, member))
    except RuntimeError as error:
        logger.critical("%s", error)
        _exit(1)


async def run(settings: Settings, member: Member | None = None) -> None:
    """Run the server: load the models, announce that it is ready, and drain on SIGTERM or SIGINT.

    A second signal ends it without waiting for calls. SIGHUP scans the directory of models. One of several processes
    listens when the models are loaded, as others may answer until then, and its supervisor gives the second signal.

    Args:
        settings: settings of the server.
        member: what it shares with the other processes that serve the same ports; None if there are none.

    Raises:
        ValueError: when no model can be served.
        OSError: when a port is not available.
    """
    loop = asyncio.get_running_loop()
    first, second = loop.create_future(), loop.create_future()

    def receive(number: int) -> None:
        if not first.done():
            first.set_result(number)
        elif not second.done() and (not member or number == END_NOW):
            second.set_result(number)

    for number in (signal.SIGTERM, END_NOW if member else signal.SIGINT):
        loop.add_signal_handler(number, receive, number)
    server = Server(settings, member)
    loop.add_signal_handler(signal.SIGHUP, server.reload)

    async def begin() -> None:
        steps = (server.start, server.load)
        for step in reversed(steps) if member else steps:
            await step()

    try:
        loading = asyncio.create_task(begin())
        await asyncio.wait((loading, first), return_when=asyncio.FIRST_COMPLETED)
        if loading.done():
            await loading
            if member:
                member.board.set_ready(member.number)
            else:
                gc.freeze()  # what is loaded stays
            if not member or member.is_first:
                ready.announce(server.ready(), settings.log_format, settings.ready_fd)
            notify("READY=1")
            monitoring = asyncio.create_task(server.monitor_workers())
            await asyncio.wait((monitoring, first), return_when=asyncio.FIRST_COMPLETED)
            if monitoring.done():
                await monitoring
            monitoring.cancel()
        loading.cancel()
    finally:
        notify("STOPPING=1")
        if member:
            member.board.clear(member.number)
        if first.done() and not member:
            name = signal.Signals(first.result()).name
            logger.info("received %s: draining for at most %g s", name, settings.grace_s)
        is_alone = member is None or first.done()
        draining = asyncio.create_task(server.stop(settings.grace_s, others_serve=not is_alone))
        await asyncio.wait((draining, second), return_when=asyncio.FIRST_COMPLETED)
        await server.stop(0)
        await draining
        if first.done():
            if not member:
                logger.info("ended")
            if server.is_busy:
                _exit(0)


def _exit(code: int) -> NoReturn:
    """End the process immediately, without waiting for threads that compute, load or read."""
    logging.shutdown()
    streams.flush()
    os._exit(code)


def _warn_of_unknown_variables() -> None:
    for name in unknown_variables():
        logger.warning("unknown environment variable `%s` has no effect; see --help for the settings", name)


if __name__ == "__main__":
    sys.exit(main())
