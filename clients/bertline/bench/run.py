"""`bertline bench`: what a server takes, and how soon it replies.

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
from bertline.bench.load_generator import Load, Loader, Samples, WatchedSelector
from bertline.bench.report import Report, Run
from bertline.bench.settings import BenchSettings
from bertline.client import Client
from bertline.errors import ConnectionFailed
from bertline.results import Model

_CHANNEL_OPTIONS = {
    "grpc.enable_retries": 0,  # a call that is refused is counted, not sent again
    "grpc.use_local_subchannel_pool": 1,  # channels otherwise share a connection
}
_TICK_S = 0.5
_SET_UP_S = 30.0
"""To find the model and to connect, however short --timeout is."""


class Progress(Protocol):
    """Shows how far a bench is."""

    def begin(self, load: Load, *, is_warm_up: bool) -> None:
        """A run, or its warm-up, begins."""

    def update(self, load: Load, samples: Samples, elapsed_s: float) -> None:
        """So much was done of it."""


def bench(settings: BenchSettings, progress: Progress | None = None) -> Report:
    """Load a server and measure. Ctrl-C ends it early, with what was measured until then.

    Args:
        progress: is told how far it is; nothing is shown without one.

    Raises:
        BertlineError: when the server cannot be reached, or has no such model. Calls that fail are counted, not raised.
        FileError: when the inputs cannot be read.
        ValueError: when an input cannot be sent.
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
    selector = WatchedSelector()
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        runs, interrupted = runner.run(_Bench(settings, connection, payloads, selector, progress).run())
    return _report(settings, model, payloads, len(inputs), started, runs, interrupted)


class _Bench:
    """The runs of one bench."""

    def __init__(
        self,
        settings: BenchSettings,
        connection: Connection,
        payloads: Payloads,
        selector: WatchedSelector,
        progress: Progress | None,
    ) -> None:
        self._settings, self._connection, self._payloads = settings, connection, payloads
        self._selector, self._progress = selector, progress

    async def run(self) -> tuple[list[Run], bool]:
        """All runs, and whether Ctrl-C ended them."""
        runs: list[Run] = []
        measuring = asyncio.create_task(self._measure(runs))
        with _ctrl_c_cancels(measuring):
            try:
                await measuring
            except asyncio.CancelledError:
                return runs, True
        return runs, False

    async def _measure(self, runs: list[Run]) -> None:
        """Add one run after the other, the last one also when it is cancelled."""
        async with AsyncExitStack() as stack:
            channels = await self._channels(stack)
            loader = Loader(channels, self._payloads, self._connection.metadata, self._selector)
            for load in self._settings.loads():
                if self._settings.warm_up_s:
                    await self._watched(loader, load.warm_up(self._settings.warm_up_s), is_warm_up=True)
                interrupted = True
                try:
                    await self._watched(loader, load)
                    interrupted = False
                finally:
                    runs.append(Run.of(load, loader.samples, loader.usage, interrupted=interrupted))

    async def _channels(self, stack: AsyncExitStack) -> Sequence[grpc.aio.Channel]:
        """Open connections."""
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

    async def _watched(self, loader: Loader, load: Load, *, is_warm_up: bool = False) -> None:
        """Run a load and tell how far it is."""
        if self._progress is None:
            await loader.run(load)
            return
        ticker = asyncio.create_task(self._tick(loader, load, is_warm_up))
        try:
            await loader.run(load)
        finally:
            ticker.cancel()

    async def _tick(self, loader: Loader, load: Load, is_warm_up: bool) -> None:
        assert self._progress
        self._progress.begin(load, is_warm_up=is_warm_up)
        while True:
            await asyncio.sleep(_TICK_S)
            self._progress.update(load, loader.samples, loader.elapsed_s)


@contextmanager
def _ctrl_c_cancels(task: asyncio.Task[None]) -> Iterator[None]:
    """Ctrl-C cancels a task, once; more of it, as `timeout -s INT` sends, does not keep the rest from being told."""
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
    runs: list[Run],
    interrupted: bool,
) -> Report:
    first = settings.loads()[0]
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
