"""`bertline bench` against a fake server in this process."""

from __future__ import annotations

import io
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from rich.console import Console

from bertline._connection import Priority
from bertline.bench.load_generator import CallResults, LoadProfile, ProcessUsage, due_times
from bertline.bench.report import BenchRun, HistogramBar, Latency, Report, StatusCount, TimingMedians, histogram
from bertline.bench.run import bench
from bertline.bench.settings import BenchSettings, read_numbers
from bertline.bench.view import BenchProgress, print_report
from bertline.cli import app
from bertline.errors import ConnectionFailed, ModelNotFound
from bertline.testing import FakeModel, FakeServer, vector
from bertline.testing._answers import tokens
from bertline.v1 import encoder_pb2 as pb
from tests.clients.command import received

METHODS = {
    "embedding": "Embed",
    "classification": "Classify",
    "regression": "Regress",
    "multiple-choice": "Choose",
    "spans": "Answer",
    "tagging": "Tag",
    "masked-lm": "FillMask",
}
TIMINGS = pb.Timings(tokenize_s=0.25, queue_s=0.5, inference_s=1.0)
FULL = "the queue [of 3] is full"


@pytest.fixture
def harmless_ctrl_c() -> Iterator[None]:
    """Ignore signals that arrive after the end of a bench."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    yield
    signal.signal(signal.SIGINT, before)


def settings_for(server: FakeServer, **options: Any) -> BenchSettings:
    """Return settings without a warm-up."""
    return BenchSettings(target=server.target, **{"warm_up_s": 0.0, **options})


def fail_each(server: FakeServer, number: int, num_failures: int, **failure: str) -> None:
    """Make the call with this number fail, as often as given."""
    for _ in range(num_failures):
        server.fail(**{"status": "RESOURCE_EXHAUSTED", "details": FULL, **failure}, method="Embed", after=number - 1)


def answer_with(server: FakeServer, timings: pb.Timings | None) -> None:
    """Make the server reply with these timings."""

    def embed(request: pb.EmbedRequest) -> pb.EmbedReply:
        vectors = b"".join(vector(text).tobytes() for text in request.texts)
        return pb.EmbedReply(model=server.models[0].ref, vectors=vectors, dim=server.models[0].dim, timings=timings)

    server.reply("Embed", embed)


def only(report: Report) -> BenchRun:
    (run,) = report.runs
    return run


def printed(report: Report, **options: Any) -> str:
    console = Console(file=io.StringIO(), width=80, **options)
    print_report(report, console)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_calls_texts_and_tokens_are_counted(server: FakeServer) -> None:
    """The server gets the requested number of calls, and the report counts calls, texts and tokens."""
    server.models = [FakeModel(max_seq_length=12)]
    report = bench(settings_for(server, num_requests=50, concurrency=(4,), batch_size=3))
    run = only(report)
    texts = [text for request in received(server) for text in request.texts]

    assert len(received(server)) == run.num_calls == run.num_ok == 50
    assert len(texts) == run.num_texts == 150
    num_tokens = [2 + len(tokens(text)) for text in texts]  # with [CLS] and [SEP]
    assert run.num_tokens == sum(min(12, number) for number in num_tokens)
    assert 0 < run.num_cut == sum(number > 12 for number in num_tokens) < 150
    assert run.models == {"fake/1": 50}
    assert run.texts_per_s == pytest.approx(150 / run.seconds)
    assert sum(bar.num_calls for bar in run.histogram) == 50
    assert server.max_in_flight <= 4
    assert report.exit_code() == 0


@pytest.mark.parametrize("status", ["RESOURCE_EXHAUSTED", "UNAVAILABLE"])
def test_failed_calls_are_counted_by_status(server: FakeServer, status: str) -> None:
    """The report counts each failed call once, with the first message of its status, and no call is repeated."""
    fail_each(server, 3, 20, status=status, details="the queue [of 3]\nis full")
    report = bench(settings_for(server, num_requests=60, concurrency=(4,)))
    run = only(report)
    by_status = {item.status: (item.num_calls, item.message) for item in run.statuses}

    assert by_status == {"OK": (40, ""), status: (20, "the queue [of 3] is full")}
    assert (len(received(server)), run.num_calls, run.num_ok, run.num_failed) == (60, 60, 40, 20)
    assert (report.exit_code(), report.exit_code(allow_failures=True)) == (1, 0)
    assert f"20 of 60 calls failed with {status}, the first: the queue [of 3] is full" in printed(report)


def test_bytes_of_failed_calls_do_not_count(server: FakeServer) -> None:
    """All rates, bytes included, count only answered calls."""
    server.fail("INTERNAL", method="Embed", times=4)
    run = only(bench(settings_for(server, num_requests=6, concurrency=(1,))))
    answered = received(server)[4:]

    assert run.sent_bytes_per_s * run.seconds == pytest.approx(sum(request.ByteSize() for request in answered))


def test_a_run_without_answers_fails(server: FakeServer) -> None:
    """The report of a run without an answered call is complete, and the exit code is 1 even if failures are allowed."""
    server.fail("INTERNAL", method="Embed", times=None)
    report = bench(settings_for(server, num_requests=5))
    run = only(report)

    assert (run.latency_s, run.server_medians, run.histogram, run.texts_per_s) == (None, None, [], 0)
    assert (report.exit_code(), report.exit_code(allow_failures=True)) == (1, 1)
    assert "5 of 5 calls failed" in printed(report)


def test_calls_have_the_deadline(server: FakeServer) -> None:
    """A call longer than --timeout fails with DEADLINE_EXCEEDED."""
    server.delay(0.3, method="Embed")
    run = only(bench(settings_for(server, num_requests=4, concurrency=(4,), timeout_s=0.05)))

    assert {item.status: item.num_calls for item in run.statuses} == {"DEADLINE_EXCEEDED": 4}


def test_the_warm_up_is_left_out(server: FakeServer) -> None:
    """The server gets the warm-up calls, and the figures leave them out."""
    server.delay(0.8, method="Embed", times=1)
    started = time.monotonic()
    run = only(bench(settings_for(server, num_requests=10, concurrency=(1,), warm_up_s=0.1)))
    took_s = time.monotonic() - started

    assert run.num_calls == run.num_ok == 10
    assert len(received(server)) == 11
    assert run.seconds < took_s - 0.8


def test_a_duration_ends_a_run(server: FakeServer) -> None:
    """No call begins after the duration, and calls in flight finish."""
    server.delay(0.05, method="Embed")
    run = only(bench(settings_for(server, duration_s=0.2, concurrency=(2,))))

    assert run.num_calls == run.num_ok == len(received(server))
    assert 2 <= run.num_calls <= 8
    assert run.seconds >= 0.2


def test_a_call_that_fails_late_does_not_lengthen_a_run(server: FakeServer) -> None:
    """The run waits for a call that fails late, but its rates leave out that time."""
    server.delay(5.0, method="Embed", after=5)
    started = time.monotonic()
    run = only(bench(settings_for(server, num_requests=6, concurrency=(1,), timeout_s=0.5)))
    took_s = time.monotonic() - started

    assert run.num_failed >= 1
    assert run.seconds < took_s - 0.5
    assert run.calls_per_s == pytest.approx(run.num_ok / run.seconds)


@pytest.mark.parametrize(
    ("load", "samples", "elapsed_s", "expected"),
    [
        (LoadProfile(concurrency=2, duration_s=10), CallResults(last_reply_s=10.5), 40, 10.5),
        (
            LoadProfile(concurrency=2, duration_s=10),
            CallResults(last_reply_s=5),
            40,
            10,
        ),  # no reply in the second half counts
        (LoadProfile(rate=2, duration_s=10), CallResults(last_reply_s=9), 10, 10),
        (LoadProfile(concurrency=2, duration_s=10), CallResults(last_reply_s=3), 4, 4),  # Ctrl-C
        (LoadProfile(concurrency=2, num_calls=9), CallResults(num_begun=9, last_begun_s=3, last_reply_s=4), 33, 4),
        (LoadProfile(concurrency=2, num_calls=9), CallResults(num_begun=9, last_begun_s=3, last_reply_s=2), 33, 3),
        (
            LoadProfile(concurrency=2, num_calls=9),
            CallResults(num_begun=8, last_begun_s=3, last_reply_s=2),
            33,
            33,
        ),  # Ctrl-C
    ],
)
def test_a_run_ends_with_its_load_or_the_last_reply(
    load: LoadProfile, samples: CallResults, elapsed_s: float, expected: float
) -> None:
    """A run ends with its load or with its last reply, whichever is later."""
    usage = ProcessUsage(seconds=elapsed_s, cpu_s=elapsed_s / 2, busy_s=elapsed_s / 4)
    run = BenchRun.of(load, samples, usage, interrupted=False)

    assert (run.seconds, run.client_cores, run.client_busy) == (expected, 0.5, 0.25)


def test_a_sweep_has_a_run_for_each_number(server: FakeServer) -> None:
    """A sweep has one run for each number in the given order, and its table fits into 80 columns."""
    report = bench(settings_for(server, num_requests=8, concurrency=(1, 4, 2)))
    lines = printed(report).splitlines()

    assert [(run.concurrency, run.num_ok) for run in report.runs] == [(1, 8), (4, 8), (2, 8)]
    assert [line.split()[0] for line in lines[2:5]] == ["1", "4", "2"]
    assert lines[1].split() == "in flight texts/s tokens/s p50 ms p90 p99 max queue inference failed".split()


def test_calls_go_over_all_channels(server: FakeServer) -> None:
    """Each channel is its own connection."""
    bench(settings_for(server, num_requests=12, channels=3))

    assert len({call.peer for call in server.calls if call.method == "Embed"}) == 3


@pytest.mark.parametrize("priority", ["bulk", "interactive"])
def test_calls_have_a_priority(server: FakeServer, priority: Priority) -> None:
    """Calls have the given priority."""
    report = bench(settings_for(server, num_requests=4, priority=priority))
    sent = {call.metadata.get("priority", "interactive") for call in server.calls if call.method == "Embed"}

    assert sent == {report.priority} == {priority}


@pytest.mark.parametrize("task", METHODS)
def test_the_model_chooses_the_call(server: FakeServer, task: str) -> None:
    """The model's task selects the RPC for the built-in texts."""
    server.models = [FakeModel(task=task)]
    report = bench(settings_for(server, num_requests=20))

    assert report.method == METHODS[task]
    assert only(report).num_ok == 20


def test_an_unknown_task_is_one_line(server: FakeServer) -> None:
    """A model with a task unknown to the client is refused."""
    server.reply("GetModel", lambda request: pb.ModelInfo(model=server.models[0].ref, task="summary"))
    with pytest.raises(ValueError, match="this client does not know task `summary`; update it"):
        bench(settings_for(server))


def test_a_named_model_is_called(server: FakeServer) -> None:
    """Calls name the given model and version, and a missing model is an error before any call."""
    settings = settings_for(server, num_requests=2, model="fake", version="1")
    bench(settings)

    assert {(request.model.name, request.model.version) for request in server.requests} == {("fake", "1")}
    with pytest.raises(ModelNotFound):
        bench(BenchSettings(target=settings.target, model="other"))


def test_no_server_is_an_error(dead_target: str) -> None:
    """Without a server the bench raises ConnectionFailed."""
    with pytest.raises(ConnectionFailed):
        bench(BenchSettings(target=dead_target))


def test_latency_counts_from_when_a_call_was_due(server: FakeServer) -> None:
    """A stall of the server lengthens the latency of every call that was due in it."""
    server.delay(0.8, method="Embed", times=1)
    open_loop = {"rate": (100.0,), "arrivals": "constant", "num_requests": 30, "max_in_flight": 1}
    run = only(bench(settings_for(server, **open_loop)))

    assert run.num_ok == 30
    assert run.latency_s
    assert run.service_s
    assert run.latency_s.min > 0.4  # the last call was due at 0.29 s, and the first reply came at 0.8 s
    assert run.service_s.p50 < run.latency_s.p50 / 2
    assert run.max_late_s > 0.4
    assert any("their latency includes this" in warning for warning in run.warnings)


def test_an_open_loop_does_not_wait_for_replies(server: FakeServer) -> None:
    """An open loop sends calls on time while the server stalls."""
    server.delay(0.5, method="Embed")
    run = only(bench(settings_for(server, rate=(100.0,), arrivals="constant", num_requests=8)))

    assert run.num_ok == 8
    assert server.max_in_flight > 2


def test_an_open_loop_keeps_its_rate(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """An open loop sends all calls due in its duration, and lasts as long."""
    monkeypatch.setattr("bertline.bench.load_generator._MAX_LATE_S", 30.0)  # allows a busy machine
    run = only(bench(settings_for(server, rate=(50.0,), arrivals="constant", duration_s=0.99)))

    assert (run.num_calls, run.num_ok, len(received(server)), run.num_unsent) == (50, 50, 50, 0)
    assert run.seconds >= 0.99


def test_unsent_calls_are_reported(server: FakeServer) -> None:
    """An open loop that cannot keep its rate reports the number of calls it did not send."""
    server.delay(0.1, method="Embed")
    report = bench(settings_for(server, rate=(500.0,), arrivals="constant", duration_s=0.3, max_in_flight=2))
    run = only(report)

    assert run.num_calls + run.num_unsent == pytest.approx(150, abs=2)
    assert run.num_unsent > 100
    assert report.exit_code() == 1
    assert run.warnings[0].startswith(f"about {run.num_unsent:,} calls were due but never sent")


@pytest.mark.usefixtures("harmless_ctrl_c")
@pytest.mark.parametrize(
    ("length", "least", "most"), [({"duration_s": 60.0}, 91, 10**6), ({"num_requests": 10, "duration_s": None}, 9, 9)]
)
def test_ctrl_c_reports_unsent_calls(server: FakeServer, length: dict[str, Any], least: int, most: int) -> None:
    """After Ctrl-C the report counts calls that were due but not sent."""
    server.delay(60.0, method="Embed")
    options = {"rate": (1000.0,), "arrivals": "constant", "max_in_flight": 1, **length}

    def interrupt() -> None:
        while not received(server):
            time.sleep(0.01)
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    run = only(bench(settings_for(server, **options)))
    thread.join()

    assert (run.num_calls, run.num_abandoned) == (1, 1)
    assert least <= run.num_unsent <= min(most, run.seconds * 1000)


def test_poisson_arrivals_are_those_of_the_seed() -> None:
    """Gaps between Poisson arrivals are exponential with the mean of the rate, and depend only on the seed."""
    load = LoadProfile(rate=200.0, num_calls=20_000, seed=1)
    times = np.fromiter(due_times(load, 200.0, 5.0), float)
    gaps = np.diff(times)

    assert len(times) == 20_000
    assert times[0] == 5
    assert gaps.mean() == pytest.approx(1 / 200, rel=0.05)
    assert gaps.std() == pytest.approx(1 / 200, rel=0.05)
    assert list(due_times(load, 200.0, 5.0)) == list(times)
    assert list(due_times(LoadProfile(rate=200.0, num_calls=20_000, seed=2), 200.0, 5.0)) != list(times)


def test_constant_arrivals_are_evenly_spaced() -> None:
    """Constant arrivals at a rate of 4 are a quarter of a second apart."""
    load = LoadProfile(rate=4.0, arrivals="constant", num_calls=5)

    assert list(due_times(load, 4.0, 1.0)) == [1.0, 1.25, 1.5, 1.75, 2.0]


def test_percentiles_are_latencies_of_calls() -> None:
    """A percentile is the latency of a call, such as 500 ms for p50 of 1 to 1000 ms."""
    values = [number / 1000 for number in range(1, 1001)]
    random.Random(0).shuffle(values)
    latency = Latency.of(values)

    assert latency == Latency(
        mean=pytest.approx(0.5005), min=0.001, p50=0.5, p90=0.9, p95=0.95, p99=0.99, p99_9=0.999, max=1.0
    )
    assert Latency.of([]) is None


def test_percentiles_agree_with_numpy() -> None:
    """The percentiles of a long-tailed sample equal numpy's without interpolation."""
    values = np.random.default_rng(0).lognormal(size=1237)
    latency = Latency.of(list(values))

    assert latency
    found = [latency.p50, latency.p90, latency.p95, latency.p99, latency.p99_9]
    assert found == list(np.quantile(values, [0.5, 0.9, 0.95, 0.99, 0.999], method="inverted_cdf"))


@pytest.mark.parametrize(
    "values", [[0.25], [0.5] * 7, [0.001, 1.0], list(np.random.default_rng(1).lognormal(size=999))]
)
def test_histograms_hold_every_call(values: list[float]) -> None:
    """The bars cover the range of latencies without gaps, and hold every call."""
    bars = histogram(values)
    ends = [(bar.from_s, bar.to_s) for bar in bars]

    assert sum(bar.num_calls for bar in bars) == len(values)
    assert (ends[0][0], ends[-1][1]) == (min(values), max(values))
    assert [a for _, a in ends[:-1]] == [b for b, _ in ends[1:]]
    for bar in bars[1:]:
        assert bar.num_calls == sum(bar.from_s < value <= bar.to_s for value in values)


def test_server_timings_are_reported(server: FakeServer) -> None:
    """The report has medians of the server's timings, and a warning counts replies without timings."""
    answer_with(server, TIMINGS)
    run = only(bench(settings_for(server, num_requests=6)))
    answer_with(server, None)
    untimed = only(bench(settings_for(server, num_requests=6)))

    assert isinstance(run.server_medians, TimingMedians)
    assert (run.server_medians.tokenize_s, run.server_medians.queue_s, run.server_medians.inference_s) == (
        0.25,
        0.5,
        1.0,
    )
    assert run.warnings == []
    assert untimed.server_medians is None
    assert "6 of 6 replies carry no timings" in untimed.warnings[0]


def test_a_busy_client_is_reported() -> None:
    """A warning reports that the client was the bottleneck."""
    samples = CallResults()
    busy = BenchRun.of(
        LoadProfile(concurrency=1), samples, ProcessUsage(seconds=10, cpu_s=9, busy_s=9.5), interrupted=False
    )
    idle = BenchRun.of(
        LoadProfile(concurrency=1), samples, ProcessUsage(seconds=10, cpu_s=9, busy_s=5), interrupted=False
    )

    assert "the client was the bottleneck: its event loop was busy 95% of the time" in busy.warnings[0]
    assert (busy.client_busy, busy.client_cores) == pytest.approx((0.95, 0.9))
    assert idle.warnings == []


def test_idle_time_of_the_event_loop_is_measured(server: FakeServer) -> None:
    """The event loop of a client that waits for a slow server is mostly idle."""
    server.delay(0.5, method="Embed")
    run = only(bench(settings_for(server, num_requests=2, concurrency=(1,))))

    assert 0 < run.client_busy < 0.5
    assert run.client_cores > 0


@pytest.mark.usefixtures("harmless_ctrl_c")
def test_ctrl_c_reports_what_was_measured(server: FakeServer) -> None:
    """Ctrl-C, once or more often, ends the runs, and the report has all answered calls."""
    server.delay(0.02, method="Embed")
    settings = settings_for(server, concurrency=(4, 8), duration_s=60.0)

    def interrupt() -> None:
        while len(received(server)) < 20:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=interrupt)
    thread.start()
    report = bench(settings)
    thread.join()
    run = only(report)

    assert signal.getsignal(signal.SIGINT) is before
    assert report.interrupted
    assert run.interrupted
    assert run.num_ok >= 16
    assert 0 < run.num_abandoned <= 4
    assert run.num_calls == run.num_ok + run.num_abandoned
    assert run.seconds < 30
    assert (report.exit_code(), report.exit_code(allow_failures=True)) == (130, 130)
    assert "interrupted by Ctrl-C" in printed(report)


@pytest.mark.usefixtures("harmless_ctrl_c")
def test_ctrl_c_in_the_warm_up(server: FakeServer) -> None:
    """After Ctrl-C in the warm-up the report says that nothing was measured."""
    settings = settings_for(server, warm_up_s=60.0)

    def interrupt() -> None:
        while len(received(server)) < 3:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    report = bench(settings)
    thread.join()

    assert report.runs == []
    assert report.exit_code() == 130
    assert "interrupted by Ctrl-C before anything was measured" in printed(report)


def test_the_json_holds_everything(server: FakeServer) -> None:
    """The JSON has every field of the report and its runs, and only values that JSON allows."""
    report = bench(settings_for(server, num_requests=5, rate=(100.0,)))
    found = json.loads(json.dumps(report.to_dict(), allow_nan=False))

    assert set(found) == {field.name for field in fields(Report)}
    assert set(found["runs"][0]) == {field.name for field in fields(BenchRun)}
    assert set(found["runs"][0]["latency_s"]) == {"mean", "min", "p50", "p90", "p95", "p99", "p99_9", "max"}
    assert set(found["runs"][0]["server_medians"]) == {"tokenize_s", "queue_s", "inference_s", "rest_s"}
    assert set(found["runs"][0]["histogram"][0]) == {"from_s", "to_s", "num_calls"}
    assert found["runs"][0]["statuses"] == [{"status": "OK", "num_calls": 5, "message": ""}]
    assert (found["format"], found["model"], found["method"], found["num_requests"]) == (1, "fake/1", "Embed", 5)


def test_the_page_names_every_option_and_key() -> None:
    """The page docs/guides/load-test.md names every option of the command and every key of its JSON."""
    page = (Path(__file__).parents[2] / "docs" / "guides" / "load-test.md").read_text(encoding="utf-8")
    options = typer.main.get_command(app).commands["bench"].params  # type: ignore[attr-defined]
    keys = {
        field.name
        for kind in (Report, BenchRun, Latency, TimingMedians, HistogramBar, StatusCount)
        for field in fields(kind)
    }

    for option in options:
        assert any(f"`{name}{end}" in page for name in (*option.opts, *option.secondary_opts) for end in "` "), option
    assert [key for key in sorted(keys) if f"`{key}`" not in page] == []


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_full_disk_is_reported_in_one_line(
    server: FakeServer, options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk is an error of one line with exit code 1."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    with open("/dev/full", "wb") as full:
        process = subprocess.run(
            [
                sys.executable,
                "-m",
                "bertline.cli",
                "bench",
                "-t",
                server.target,
                "--requests",
                "2",
                "--warm-up=0",
                *options,
            ],
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )

    assert process.returncode == 1
    assert process.stderr == b"bertline: No space left on device: `standard output`\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"concurrency": (1,), "rate": (1.0,)}, "--concurrency"),
        ({"duration_s": 1.0, "num_requests": 1}, "--duration or --requests, not both"),
        ({"concurrency": (4, 0)}, "--concurrency must be at least 1: `0`"),
        ({"batch_size": 0}, "--batch-size must be at least 1: `0`"),
        ({"priority": "low"}, "--priority must be one of interactive, bulk: `low`"),
        ({"channels": -1}, "--channels must be at least 1: `-1`"),
        ({"num_requests": 0}, "--requests must be at least 1: `0`"),
        ({"max_in_flight": 0}, "--max-in-flight must be at least 1: `0`"),
        ({"rate": (0.0,)}, "--rate must be above 0 and finite: `0`"),
        ({"rate": (float("nan"),)}, "--rate must be above 0 and finite: `nan`"),
        ({"duration_s": float("inf")}, "--duration must be above 0 and finite: `inf`"),
        ({"timeout_s": -1.0}, "--timeout must be above 0 and finite: `-1`"),
        ({"warm_up_s": -1.0}, "--warm-up must be 0 or more seconds: `-1`"),
        ({"arrivals": "bursts"}, "--arrivals must be one of poisson, constant: `bursts`"),
    ],
)
def test_bad_options_are_one_line(options: dict[str, Any], message: str) -> None:
    """The error names the option and its value."""
    with pytest.raises(ValueError, match=r"^[^\n]+$") as error:
        BenchSettings(**options)

    assert message in str(error.value)


def test_numbers_with_commas() -> None:
    """Options of a sweep are numbers separated by commas."""
    assert read_numbers("--concurrency", "1,2, 16", int) == (1, 2, 16)
    assert read_numbers("--rate", "0.5", float) == (0.5,)
    for text in ("", "1,,2", "1;2", "2.5"):
        with pytest.raises(ValueError, match=r"--concurrency must be a whole number, or several separated by commas"):
            read_numbers("--concurrency", text, int)


def test_the_report_of_one_run(server: FakeServer) -> None:
    """The report of a single run has throughput, percentiles, a histogram and server timings, on any terminal."""
    answer_with(server, TIMINGS)
    report = bench(settings_for(server, num_requests=40, batch_size=2, rate=(1000.0,)))
    text = printed(report)
    ascii_console = Console(file=io.TextIOWrapper(io.BytesIO(), encoding="ascii"), width=80)
    print_report(report, ascii_console)

    assert text.startswith("fake/1 (embedding, fp32) at 127.0.0.1:")
    assert "Embed, 2 texts a call" in text
    assert "1000 calls/s due: 40 calls in" in text
    assert all(word in text for word in ("texts/s", "tokens/s", "p99.9", "from sending", "█"))
    assert "where the time goes (medians, ms): tokenize 250, queue 500, inference 1,000, elsewhere" in text
    assert "event loop busy" in text


def test_progress_is_shown_on_a_terminal_only(server: FakeServer) -> None:
    """A terminal shows progress with rate and failures, and other outputs get nothing."""
    server.delay(0.01, method="Embed")
    fail_each(server, 2, 500)
    settings = settings_for(server, duration_s=0.8, warm_up_s=0.1, concurrency=(2,))
    for is_terminal in (True, False):
        console = Console(file=io.StringIO(), force_terminal=is_terminal, width=100)
        with BenchProgress(console) as progress:
            bench(settings, progress)
        shown = console.file.getvalue()  # type: ignore[attr-defined]

        assert ("2 in flight, warm-up" in shown) is is_terminal
        assert ("texts/s, " in shown) is is_terminal
        assert bool(shown) is is_terminal
