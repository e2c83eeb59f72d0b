"""Terminal output of `bertline bench`: progress, then the report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.table import Table
from rich.text import Text

from bertline.bench.load_generator import CallResults, LoadProfile
from bertline.bench.report import BenchRun, HistogramBar, Latency, Report

_BAR_WIDTH, _MESSAGE_WIDTH = 40, 300


class BenchProgress:
    """Progress line with the current run, its progress and its failures. Shown only on a terminal.

    It is drawn by `update`, not by a thread of its own, which would disturb the measurement.
    """

    def __init__(self, console: Console) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(20),
            TimeElapsedColumn(),
            TextColumn("{task.fields[now]}"),
        )
        self._bars = Bars(
            *columns, console=console, auto_refresh=False, transient=True, disable=not console.is_terminal
        )
        self._task: Any = None
        self._last = (0.0, 0)

    def __enter__(self) -> BenchProgress:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bars.stop()

    def begin(self, profile: LoadProfile, *, is_warm_up: bool) -> None:
        """Show that a run or its warm-up starts."""
        if self._task is not None:
            self._bars.remove_task(self._task)
        label = f"{run_name(profile.concurrency, profile.rate)}{', warm-up' if is_warm_up else ''}"
        self._task = self._bars.add_task(label, total=profile.duration_s or profile.num_calls, now="")
        self._last = (0.0, 0)
        self._bars.refresh()

    def update(self, profile: LoadProfile, results: CallResults, elapsed_s: float) -> None:
        """Show the results so far."""
        last_s, last_texts = self._last
        self._last = (elapsed_s, results.num_texts)
        texts_per_s = (results.num_texts - last_texts) / max(elapsed_s - last_s, 1e-9)
        done = results.statuses.total() if profile.duration_s is None else elapsed_s
        now = f"{_count(texts_per_s)} texts/s, {results.num_failed:,} failed"
        self._bars.update(self._task, completed=done, now=now, refresh=True)


def print_report(report: Report, console: Console) -> None:
    """Print a report: all figures of a single run, or a table with a line per run."""
    say = _Printer(console)
    texts = "1 text" if report.batch_size == 1 else f"{report.batch_size} texts"
    say(f"{report.model} ({report.task}, {report.precision}) at {report.target}: {report.method}, {texts} a call")
    if len(report.runs) == 1:
        _print_run(report.runs[0], console, say)
    elif report.runs:
        console.print(_runs_table(report.runs))
    for run in report.runs:
        place = f"{run_name(run.concurrency, run.rate)}: " if len(report.runs) > 1 else ""
        for line in _remarks(run):
            say(f"{place}{line}")
    if num_cut := sum(run.num_cut for run in report.runs):
        num_texts = sum(run.num_texts for run in report.runs)
        say(f"{num_cut:,} of {num_texts:,} texts were too long for the model and truncated")
    if report.interrupted:
        say("interrupted by Ctrl-C" + ("" if report.runs else " before anything was measured"))


def run_name(concurrency: int | None, rate: float | None) -> str:
    """Return a short name of a run."""
    return f"{concurrency} in flight" if rate is None else f"{rate:g} calls/s due"


class _Printer:
    """Printer of plain lines: brackets in a server's texts are no markup."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def __call__(self, line: str = "") -> None:
        self._console.print(Text(line), soft_wrap=True)


def _print_run(run: BenchRun, console: Console, say: _Printer) -> None:
    say()
    say(f"{run_name(run.concurrency, run.rate)}: {run.num_calls:,} calls in {run.seconds:.2f} s")
    say(f"  {_count(run.calls_per_s)} calls/s, {_count(run.texts_per_s)} texts/s, {_count(run.tokens_per_s)} tokens/s")
    say(f"  {_bytes(run.sent_bytes_per_s)}/s sent, {_bytes(run.received_bytes_per_s)}/s received")
    if run.latency_s:
        say()
        console.print(_latency_table(run))
        say()
        for line in _histogram_lines(run.histogram, "█" if console.encoding.startswith("utf") else "#"):
            say(line)
        say()
    if parts := run.server_medians:
        names = {"tokenize": parts.tokenize_s, "queue": parts.queue_s, "inference": parts.inference_s}
        line = ", ".join(f"{name} {_ms(value)}" for name, value in (names | {"elsewhere": parts.rest_s}).items())
        say(f"where the time goes (medians, ms): {line}")
    say(f"this client: {run.client_cores:.2f} cores, event loop busy {run.client_busy:.0%}")


def _latency_table(run: BenchRun) -> Table:
    table = _table("ms", *_LATENCY_TITLES, min_width=6)
    assert run.latency_s
    assert run.service_s
    table.add_row("latency", *_latency_cells(run.latency_s))
    if run.rate is not None:
        table.add_row("from sending", *_latency_cells(run.service_s))
    return table


def _histogram_lines(bars: list[HistogramBar], block: str) -> Iterator[str]:
    most = max(bar.num_calls for bar in bars)
    width = max(len(f"{bar.num_calls:,}") for bar in bars)
    for bar in bars:
        filled = block * -(-bar.num_calls * _BAR_WIDTH // most)
        yield f"{_ms(bar.from_s):>7} - {_ms(bar.to_s):>5} ms  {bar.num_calls:>{width},} {filled}".rstrip()


_LATENCY_TITLES = ("mean", "p50", "p90", "p95", "p99", "p99.9", "max")


def _latency_cells(latency: Latency) -> Iterator[str]:
    values = (latency.mean, latency.p50, latency.p90, latency.p95, latency.p99, latency.p99_9, latency.max)
    return map(_ms, values)


def _runs_table(runs: Sequence[BenchRun]) -> Table:
    """Return a table that fits into 80 columns. calls/s are left out: they are texts/s by the batch size."""
    first = "in flight" if runs[0].rate is None else "due/s"
    table = _table(first, "texts/s", "tokens/s", "p50 ms", "p90", "p99", "max", "queue", "inference", "failed")
    for run in runs:
        latency, parts = run.latency_s, run.server_medians
        cells = [f"{run.concurrency}" if run.rate is None else f"{run.rate:g}"]
        cells += map(_count, (run.texts_per_s, run.tokens_per_s))
        cells += map(_ms, (latency.p50, latency.p90, latency.p99, latency.max)) if latency else ("",) * 4
        cells += map(_ms, (parts.queue_s, parts.inference_s)) if parts else ("",) * 2
        table.add_row(*cells, f"{run.num_failed:,}")
    return table


def _remarks(run: BenchRun) -> Iterator[str]:
    """Yield failures and warnings of a run."""
    for status in run.statuses:
        if status.status != "OK":
            message = f": {status.message[:_MESSAGE_WIDTH]}" if status.message else ""
            yield f"{status.num_calls:,} of {run.num_calls:,} calls failed with {status.status}, the first{message}"
    if run.num_abandoned:
        yield f"{run.num_abandoned:,} calls in flight were abandoned"
    yield from (f"warning: {warning}" for warning in run.warnings)


def _table(*titles: str, min_width: int | None = None) -> Table:
    table = Table(box=None, padding=(0, 1), pad_edge=False, collapse_padding=True)
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True, min_width=min_width)
    return table


def _ms(seconds: float) -> str:
    """Format seconds as milliseconds with three digits."""
    value = seconds * 1000
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _bytes(value: float) -> str:
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} GB"
