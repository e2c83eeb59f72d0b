"""Serve a directory of models until SIGTERM or SIGINT.

python -m serving models
python -m serving models --port 0 --metrics-port 0
BERTLINE_MODELS_DIR=/models BERTLINE_HOST=0.0.0.0 python -m serving
python -m serving --print-config
"""

from __future__ import annotations

import asyncio
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
from serving.process.print_config import describe_settings, versions  # noqa: E402
from serving.process.ready import notify  # noqa: E402
from serving.server import Server  # noqa: E402
from serving.settings import Settings, read_settings, unknown_variables  # noqa: E402

logger = logging.getLogger("serving")

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
    with streams.non_blocking():
        return _exit_code(lambda: _serve(arguments))


def _exit_code(run: Callable[[], None]) -> int:
    """Run a command and return its exit code; print an error of the user as one line."""
    try:
        run()
    except (ValueError, OSError) as error:
        print(f"error: {error_line(error)}", file=sys.stderr)
        return 1 if isinstance(error, TimeoutError) else 2  # hanging storage: a restart may help
    return 0


def _print_config(arguments: Sequence[str]) -> None:
    print(describe_settings(arguments))
    _warn_of_unknown_variables()


def _serve(arguments: Sequence[str]) -> None:
    settings = read_settings(arguments)
    logs.configure(settings.log_format, settings.log_level)
    _warn_of_unknown_variables()
    descriptors.raise_limit()
    sys.setswitchinterval(THREAD_SWITCH_S)
    try:
        uvloop.run(run(settings))
    except RuntimeError as error:
        logger.critical("%s", error)
        _exit(1)


async def run(settings: Settings) -> None:
    """Run the server: load the models, announce that it is ready, and drain on SIGTERM or SIGINT.

    A second signal ends it without waiting for calls. SIGHUP scans the directory of models.

    Args:
        settings: settings of the server.

    Raises:
        ValueError: when no model can be served.
        OSError: when a port is not available.
    """
    signals: asyncio.Queue[int] = asyncio.Queue()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, signals.put_nowait, number)
    first, second = (asyncio.create_task(signals.get()) for _ in range(2))
    server = Server(settings)
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, server.reload)
    try:
        await server.start()
        loading = asyncio.create_task(server.load())
        await asyncio.wait((loading, first), return_when=asyncio.FIRST_COMPLETED)
        if loading.done():
            await loading
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
        if first.done():
            name = signal.Signals(first.result()).name
            logger.info("received %s: draining for at most %g s", name, settings.grace_s)
        draining = asyncio.create_task(server.stop(settings.grace_s))
        await asyncio.wait((draining, second), return_when=asyncio.FIRST_COMPLETED)
        await server.stop(0)
        await draining
        if first.done():
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
