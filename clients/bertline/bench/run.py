"""Run `bertline bench`: throughput and latency of a server under load.

report = bench(BenchSettings(target="127.0.0.1:50051", concurrency=(1, 4, 16), duration_s=10))
print(json.dumps(report.to_dict()))
"""

from __future__ import annotations

import asyncio
import os
import platform
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Protocol

import grpc
import grpc.aio

from bertline._connection import Connection
from bertline.bench.inputs import Payloads, make_payloads, read_inputs
from bertline.bench.load_generator import CallResults, IdleTimeSelector, LoadGenerator, LoadProfile
from bertline.bench.report import BenchRun, Report
from bertline.bench.settings import BenchSettings
from bertline.client import Client
from bertline.errors import ConnectionFailed
from bertline.results import Model

_CHANNEL_OPTIONS = {
    "grpc.enable_retries": 0,  # refused calls are counted, not sent again
    "grpc.use_local_subchannel_pool": 1,  # else all channels use one connection
}
_TICK_S = 0.5
_SET_UP_S = 30.0
"""Timeout for connecting and finding the model. --timeout applies only to the measured calls."""


class Progress(Protocol):
    """Display of the progress."""

    def begin(self, profile: LoadProfile, *, is_warm_up: bool) -> None:
        """Show that a run or its warm-up starts."""

    def update(self, profile: LoadProfile, results: CallResults, elapsed_s: float) -> None:
        """Show the results so far."""


def bench(settings: BenchSettings, progress: Progress | None = None) -> Report:
    """Load a server and measure. Ctrl-C ends the measurement early and keeps its results.

    Args:
        settings: settings of the measurement.
        progress: display; None shows nothing.

    Raises:
        BertlineError: if the server cannot be reached, or has no such model. Failed calls are counted, not raised.
        FileError: if the inputs cannot be read.
        ValueError: if an input cannot be sent.
    """
    connection = Connection(
        target=settings.target,
        timeout=settings.timeout_s,
        batch_size=settings.batch_size,
        num_in_flight=1,
        credentials=settings.credentials,
        token=settings.token,
        check_health=False,
        priority=settings.priority,
    )
    model = _model(settings)
    inputs = read_inputs(model.task, settings.input_path, settings.format)
    payloads = make_payloads(
        model.task,
        inputs,
        batch_size=settings.batch_size,
        model=settings.model,
        version=settings.version,
        truncate=settings.truncate,
    )
    started = datetime.now(UTC)
    selector = IdleTimeSelector()
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        runs, interrupted = runner.run(_Benchmark(settings, connection, payloads, selector, progress).run())
    return _report(settings, model, payloads, len(inputs), started, runs, interrupted)


class _Benchmark:
    """All runs of a benchmark."""

    def __init__(
        self,
        settings: BenchSettings,
        connection: Connection,
        payloads: Payloads,
        selector: IdleTimeSelector,
        progress: Progress | None,
    ) -> None:
        self._settings, self._connection, self._payloads = settings, connection, payloads
        self._selector, self._progress = selector, progress

    async def run(self) -> tuple[list[BenchRun], bool]:
        """Return all runs, and whether Ctrl-C ended them."""
        runs: list[BenchRun] = []
        measuring = asyncio.create_task(self._measure(runs))
        with _ctrl_c_cancels(measuring):
            try:
                await measuring
            except asyncio.CancelledError:
                return runs, True
        return runs, False

    async def _measure(self, runs: list[BenchRun]) -> None:
        """Append one run after the other. A cancelled run is appended, too."""
        async with AsyncExitStack() as stack:
            channels = await self._channels(stack)
            generator = LoadGenerator(channels, self._payloads, self._connection.metadata, self._selector)
            for profile in self._settings.profiles():
                if self._settings.warm_up_s:
                    await self._run_with_progress(generator, profile.warm_up(self._settings.warm_up_s), is_warm_up=True)
                interrupted = True
                try:
                    await self._run_with_progress(generator, profile)
                    interrupted = False
                finally:
                    runs.append(BenchRun.of(profile, generator.results, generator.usage, interrupted=interrupted))

    async def _channels(self, stack: AsyncExitStack) -> Sequence[grpc.aio.Channel]:
        """Open the channels and wait until they are connected."""
        opened = [
            self._connection.open(grpc.aio, check_health=False, more_options=_CHANNEL_OPTIONS)
            for _ in range(self._settings.channels)
        ]
        for channel in opened:
            await stack.enter_async_context(channel)
        try:
            async with asyncio.timeout(_SET_UP_S):
                for channel in opened:
                    await channel.channel_ready()
        except TimeoutError as error:
            raise ConnectionFailed(f"no connection to `{self._connection.target}` within {_SET_UP_S:g} s") from error
        return opened

    async def _run_with_progress(
        self, generator: LoadGenerator, profile: LoadProfile, *, is_warm_up: bool = False
    ) -> None:
        """Run a profile and show its progress."""
        if self._progress is None:
            await generator.run(profile)
            return
        ticker = asyncio.create_task(self._tick(generator, profile, is_warm_up))
        try:
            await generator.run(profile)
        finally:
            ticker.cancel()

    async def _tick(self, generator: LoadGenerator, profile: LoadProfile, is_warm_up: bool) -> None:
        assert self._progress
        self._progress.begin(profile, is_warm_up=is_warm_up)
        while True:
            await asyncio.sleep(_TICK_S)
            self._progress.update(profile, generator.results, generator.elapsed_s)


@contextmanager
def _ctrl_c_cancels(task: asyncio.Task[None]) -> Iterator[None]:
    """Cancel a task at the first Ctrl-C, and ignore further ones, so that the report is still printed."""
    loop, before = asyncio.get_running_loop(), signal.getsignal(signal.SIGINT)

    def cancel() -> None:
        if not task.cancelling():
            task.cancel()

    if threading.current_thread() is not threading.main_thread() or before in (signal.SIG_IGN, None):
        yield
        return
    signal.signal(signal.SIGINT, lambda *_: loop.call_soon_threadsafe(cancel))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _model(settings: BenchSettings) -> Model:
    with Client(settings.target, timeout=_SET_UP_S, credentials=settings.credentials, token=settings.token) as client:
        return client.model(settings.model, settings.version)


def _report(
    settings: BenchSettings,
    model: Model,
    payloads: Payloads,
    num_inputs: int,
    started: datetime,
    runs: list[BenchRun],
    interrupted: bool,
) -> Report:
    first = settings.profiles()[0]
    return Report(
        started=started.isoformat(timespec="seconds"),
        target=settings.target,
        model=f"{model.name}/{model.version}",
        task=model.task,
        precision=model.precision,
        max_seq_length=model.max_seq_length,
        method=payloads.method,
        input_path=settings.input_path,
        num_inputs=num_inputs,
        batch_size=settings.batch_size,
        channels=settings.channels,
        priority=settings.priority,
        arrivals=settings.arrivals,
        max_in_flight=settings.max_in_flight,
        seed=settings.seed,
        duration_s=first.duration_s,
        num_requests=first.num_calls,
        warm_up_s=settings.warm_up_s,
        timeout_s=settings.timeout_s,
        truncate=settings.truncate,
        client={
            "bertline": version("bertline"),
            "grpcio": grpc.__version__,
            "python": platform.python_version(),
            "cores": os.cpu_count() or 0,
        },
        interrupted=interrupted,
        runs=runs,
    )
