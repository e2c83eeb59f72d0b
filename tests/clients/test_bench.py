"""`bertline bench` against a fake server in this process."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertline.bench.inputs import make_calls, read_inputs
from bertline.bench.report import Load
from bertline.bench.report import Run as BenchRun
from bertline.jobs.sources import Format
from bertline.jobs.storage import FileError
from bertline.testing import FakeModel, FakeServer, vector
from bertline.testing._answers import tokens
from bertline.v1 import encoder_pb2 as pb
from tests.clients.command import Run, fails, parsed, received

METHODS = {
    "embedding": "Embed",
    "sparse-embedding": "EmbedSparse",
    "token-embedding": "EmbedTokens",
    "classification": "Classify",
    "regression": "Regress",
    "multiple-choice": "Choose",
    "spans": "Answer",
    "tagging": "Tag",
    "masked-lm": "FillMask",
}
CONSTANT = ("--arrivals", "constant")


def figures(run: Run, *options: str, code: int = 0) -> dict[str, Any]:
    """Return the JSON of a bench without a warm-up."""
    result = run("bench", "--warm-up", "0", "--json", *options)

    assert (result.code, result.err) == (code, "")
    return parsed(result.out)  # type: ignore[no-any-return]


def figures_of_run(run: Run, *options: str, code: int = 0) -> dict[str, Any]:
    """Return the only run in the JSON of a bench."""
    (found,) = figures(run, *options, code=code)["runs"]
    return found  # type: ignore[no-any-return]


def answer_with(server: FakeServer, timings: pb.Timings | None) -> None:
    """Make the server reply with these timings."""

    def embed(request: pb.EmbedRequest) -> pb.EmbedReply:
        vectors = b"".join(vector(text).tobytes() for text in request.texts)
        return pb.EmbedReply(model=server.models[0].ref, vectors=vectors, dim=server.models[0].dim, timings=timings)

    server.reply("Embed", embed)


def test_calls_texts_and_tokens_are_counted(run: Run, server: FakeServer) -> None:
    """The server gets the requested number of calls, and the report counts calls, texts and tokens."""
    server.models = [FakeModel(max_seq_length=12)]
    report = figures(run, "--requests", "50", "--concurrency", "4", "--batch-size", "3", "--model", "fake/1")
    (found,) = report["runs"]
    texts = [text for request in received(server) for text in request.texts]

    assert len(received(server)) == found["num_calls"] == found["num_ok"] == 50
    assert len(texts) == found["num_texts"] == 150
    num_tokens = [2 + len(tokens(text)) for text in texts]  # with [CLS] and [SEP]
    assert found["num_tokens"] == sum(min(12, number) for number in num_tokens)
    assert 0 < found["num_truncated"] == sum(number > 12 for number in num_tokens) < 150
    assert found["models"] == {"fake/1": 50}
    assert found["texts_per_s"] == pytest.approx(150 / found["seconds"])
    assert server.max_in_flight <= 4
    assert {(request.model.name, request.model.version) for request in server.requests} == {("fake", "1")}
    assert {call.metadata.get("priority") for call in server.calls if call.method == "Embed"} == {"bulk"}
    assert (report["model"], report["method"], report["batch_size"]) == ("fake/1", "Embed", 3)


def test_failed_calls_are_counted_by_status(run: Run, server: FakeServer) -> None:
    """Each failed call counts once, with the first message of its status, and no call is repeated."""
    status = "UNAVAILABLE"
    for _ in range(20):
        server.fail(status, "the queue [of 3]\nis full", method="Embed", after=2)
    found = figures_of_run(run, "--requests", "60", "--concurrency", "4", code=1)

    assert (found["statuses"], found["messages"]) == ({"OK": 40, status: 20}, {status: "the queue [of 3] is full"})
    assert (len(received(server)), found["num_calls"], found["num_ok"], found["num_failed"]) == (60, 60, 40, 20)


def test_a_run_without_answers_fails(run: Run, server: FakeServer) -> None:
    """The table of a run without an answered call is complete, and the first message follows."""
    server.fail("INTERNAL", "the queue [of 3] is full", method="Embed", times=None)
    result = run("bench", "--requests", "5", "--warm-up", "0")
    row, remark = result.out.splitlines()[2:]

    assert (result.code, row.split()) == (1, ["8", "0", "0", "5"])
    assert remark == "8 in flight: 5 of 5 calls failed with INTERNAL, the first: the queue [of 3] is full"


def test_calls_have_the_deadline(run: Run, server: FakeServer) -> None:
    """A call longer than --timeout fails with DEADLINE_EXCEEDED."""
    server.delay(0.3, method="Embed")
    found = figures_of_run(run, "--requests", "4", "--concurrency", "4", "--timeout", "0.05", code=1)

    assert found["statuses"] == {"DEADLINE_EXCEEDED": 4}


def test_the_warm_up_is_left_out(run: Run, server: FakeServer) -> None:
    """The server gets the warm-up calls, and the figures leave them out."""
    server.delay(0.8, method="Embed", times=1)
    found = figures_of_run(run, "--requests", "10", "--concurrency", "1", "--warm-up", "0.1")

    assert found["num_calls"] == found["num_ok"] == 10
    assert len(received(server)) == 11
    assert found["latency_s"]["max"] < 0.8


def test_a_duration_ends_a_run(run: Run, server: FakeServer) -> None:
    """No call begins after the duration, and calls in flight finish."""
    server.delay(0.05, method="Embed")
    found = figures_of_run(run, "--duration", "0.2", "--concurrency", "2")

    assert found["num_calls"] == found["num_ok"] == len(received(server))
    assert 2 <= found["num_calls"] <= 8
    assert found["seconds"] >= 0.2


@pytest.mark.parametrize(
    ("load", "measured", "expected"),
    [
        (Load(duration_s=10), {"last_reply_s": 10.5, "elapsed_s": 40}, 10.5),
        (Load(duration_s=10), {"last_reply_s": 5, "elapsed_s": 40}, 10),  # no reply in the second half counts
        (Load(duration_s=10, rate=2), {"last_reply_s": 9, "elapsed_s": 10}, 10),
        (Load(duration_s=10), {"last_reply_s": 3, "elapsed_s": 4}, 4),  # Ctrl-C
        (Load(duration_s=None, num_calls=9), {"num_sent": 9, "last_sent_s": 3, "last_reply_s": 4, "elapsed_s": 33}, 4),
        (Load(duration_s=None, num_calls=9), {"num_sent": 9, "last_sent_s": 3, "last_reply_s": 2, "elapsed_s": 33}, 3),
        (Load(duration_s=None, num_calls=9), {"num_sent": 8, "last_sent_s": 3, "elapsed_s": 33}, 33),  # Ctrl-C
    ],
)
def test_a_run_ends_with_its_load_or_the_last_reply(load: Load, measured: dict[str, Any], expected: float) -> None:
    """A run ends with its load or with its last reply, whichever is later; calls that fail later do not lengthen it."""
    assert BenchRun(load, **measured).seconds == expected


def test_a_sweep_has_a_line_for_each_number(run: Run) -> None:
    """A table has one line for each number in the given order, and fits into 80 columns."""
    result = run("bench", "--requests", "8", "--warm-up", "0", "--concurrency", "1,4,2", "--batch-size", "2")
    title, heads, *rows = result.out.splitlines()

    assert title.startswith("fake/1 (embedding, fp32) at 127.0.0.1:")
    assert title.endswith(": Embed, 2 texts a call")
    assert heads.split() == "in flight texts/s tokens/s p50 ms p90 p99 max queue inference failed".split()
    assert [row.split()[0] for row in rows] == ["1", "4", "2"]
    assert max(map(len, (heads, *rows))) <= 80


@pytest.mark.parametrize("task", METHODS)
def test_the_model_chooses_the_call(run: Run, server: FakeServer, task: str) -> None:
    """The model's task selects the RPC for the built-in texts."""
    server.models = [FakeModel(task=task)]
    report = figures(run, "--requests", "20")

    assert report["method"] == METHODS[task]
    assert report["runs"][0]["num_ok"] == 20


def test_latency_counts_from_when_a_call_was_due(run: Run, server: FakeServer) -> None:
    """A stall of the server lengthens the latency of every call that was due in it."""
    server.delay(0.8, method="Embed", times=1)
    found = figures_of_run(run, "--rate", "100", *CONSTANT, "--requests", "30", "--max-in-flight", "1")

    assert found["num_ok"] == 30
    assert found["latency_s"]["min"] > 0.4  # the last call was due at 0.29 s, and the first reply came at 0.8 s
    assert found["max_late_s"] > 0.4
    assert any("their latency includes this" in warning for warning in found["warnings"])


def test_an_open_loop_keeps_its_rate(run: Run, server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """An open loop sends all calls due in its duration, also while the server stalls, and lasts as long."""
    server.delay(0.5, method="Embed")
    monkeypatch.setattr("bertline.bench.load._MAX_LATE_S", 30.0)  # allows a busy machine
    found = figures_of_run(run, "--rate", "50", *CONSTANT, "--duration", "0.99")

    assert (found["num_calls"], found["num_ok"], len(received(server)), found["num_unsent"]) == (50, 50, 50, 0)
    assert found["seconds"] >= 0.99
    assert server.max_in_flight > 2


def test_unsent_calls_are_reported(run: Run, server: FakeServer) -> None:
    """An open loop that cannot keep its rate reports the number of calls it did not send."""
    server.delay(0.1, method="Embed")
    options = ("--rate", "500", *CONSTANT, "--duration", "0.3", "--max-in-flight", "2")
    found = figures_of_run(run, *options, code=1)

    assert found["num_calls"] + found["num_unsent"] == pytest.approx(150, abs=2)
    assert found["num_unsent"] > 100
    assert found["warnings"][0].startswith(f"about {found['num_unsent']:,} calls were due but never sent")


@contextmanager
def ctrl_c(wait: Callable[[], bool]) -> Iterator[None]:
    """Send SIGINT to this process as soon as a condition holds."""

    def interrupt() -> None:
        while not wait():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    yield
    thread.join()


def test_ctrl_c_reports_what_was_measured(run: Run, server: FakeServer) -> None:
    """Ctrl-C ends the runs, and the report has all answered calls."""
    server.delay(0.02, method="Embed")
    with ctrl_c(lambda: len(received(server)) >= 20):
        report = figures(run, "--concurrency", "4,8", "--duration", "60", code=130)
    (found,) = report["runs"]

    assert report["interrupted"]
    assert found["num_ok"] >= 16
    assert 0 < found["num_calls"] - found["num_ok"] <= 4
    assert found["seconds"] < 30


def test_ctrl_c_in_the_warm_up(run: Run, server: FakeServer) -> None:
    """After Ctrl-C in the warm-up there is no run."""
    with ctrl_c(lambda: len(received(server)) >= 3):
        result = run("bench", "--warm-up", "60")

    assert (result.code, result.out.splitlines()[2:]) == (130, ["interrupted by Ctrl-C"])


@pytest.mark.parametrize(("length", "least", "most"), [(("--duration", "60"), 91, 10**6), (("--requests", "10"), 9, 9)])
def test_ctrl_c_reports_unsent_calls(
    run: Run, server: FakeServer, length: tuple[str, str], least: int, most: int
) -> None:
    """After Ctrl-C the report counts calls that were due but not sent."""
    server.delay(60.0, method="Embed")

    def is_overdue() -> bool:
        if is_sent := bool(received(server)):
            time.sleep(0.1)
        return is_sent

    with ctrl_c(is_overdue):
        found = figures_of_run(run, "--rate", "1000", *CONSTANT, "--max-in-flight", "1", *length, code=130)

    assert (found["num_calls"], found["num_ok"], found["num_failed"]) == (1, 0, 0)
    assert least <= found["num_unsent"] <= min(most, found["seconds"] * 1000)


def test_arrivals_are_exponential_or_even() -> None:
    """Gaps between Poisson arrivals are exponential with the mean of the rate; constant ones are even."""
    load = Load(rate=200.0, num_calls=20_000)
    times = np.fromiter(load.due_times(5.0), float)
    gaps = np.diff(times)

    assert (len(times), times[0]) == (20_000, 5)
    assert gaps.mean() == pytest.approx(1 / 200, rel=0.05)
    assert gaps.std() == pytest.approx(1 / 200, rel=0.05)
    assert list(load.due_times(5.0)) == list(times)
    assert list(Load(rate=4.0, arrivals="constant", num_calls=5).due_times(1.0)) == [1.0, 1.25, 1.5, 1.75, 2.0]


def test_server_timings_are_reported(run: Run, server: FakeServer) -> None:
    """The report has medians of the server's timings, and a warning counts replies without timings."""
    answer_with(server, pb.Timings(tokenize_s=0.25, queue_s=0.5, inference_s=1.0))
    timed = figures_of_run(run, "--requests", "6")
    answer_with(server, None)
    untimed = figures_of_run(run, "--requests", "6")

    assert (timed["queue_s"], timed["inference_s"], timed["warnings"]) == (0.5, 1.0, [])
    assert untimed["queue_s"] is None
    assert "6 of 6 replies carry no timings" in untimed["warnings"][0]


def test_a_busy_client_is_reported(run: Run, server: FakeServer) -> None:
    """A warning reports that the client was the bottleneck; a client that waits for the server is mostly idle."""
    server.delay(0.5, method="Embed")
    waiting = figures_of_run(run, "--requests", "2", "--concurrency", "1")
    busy = BenchRun(Load(), elapsed_s=10, busy=0.95)

    assert 0 < waiting["client_busy"] < 0.5
    assert "the client was the bottleneck: its event loop was busy 95% of the time" in next(busy.warnings())


def test_the_page_names_every_key(run: Run) -> None:
    """The page docs/guides/load-test.md names every key of the command's JSON; the reference names its options."""
    page = (Path(__file__).parents[2] / "docs" / "guides" / "load-test.md").read_text(encoding="utf-8")
    report = figures(run, "--requests", "5")
    keys = {*report, *report["runs"][0], *report["runs"][0]["latency_s"]}

    assert [key for key in sorted(keys) if f"`{key}`" not in page] == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--concurrency", "4,0"), "--concurrency must be a whole number above 0, or several separated by commas: `4"),
        (("--rate", "nan"), "--rate must be a number above 0"),
        (("--concurrency", "1", "--rate", "5"), "--concurrency (calls in flight) or --rate (calls a second), not both"),
        (("--duration", "1", "--requests", "5"), "--duration or --requests, not both"),
        (("-t", "http://localhost:1"), "without `http://`"),
    ],
)
def test_wrong_options_are_one_line(run: Run, options: tuple[str, ...], message: str) -> None:
    """The error names the option and its value."""
    assert fails(run("bench", *options), message, code=2)


def test_an_unknown_task_is_one_line(run: Run, server: FakeServer) -> None:
    """A model that does not exist, or with a task unknown to the client, is refused."""
    assert fails(run("bench", "--model", "other"), "model `other` does not exist")

    server.reply("GetModel", lambda request: pb.ModelInfo(model=server.models[0].ref, task="summary"))
    assert fails(run("bench"), "this client does not know task `summary`; update it", code=2)


def test_inputs_of_a_file_are_sent_one_after_the_other(run: Run, server: FakeServer, tmp_path: Path) -> None:
    """The texts of a file are sent in order and then again from the first, without empty lines."""
    path = tmp_path / "texts.txt"
    path.write_text("one\n\n\u3000\ntwo\nthree\n", encoding="utf-8")
    report = figures(run, "-i", str(path), "--batch-size", "2", "--requests", "4", "--concurrency", "1")

    sent = [list(request.texts) for request in received(server)]
    assert sent == [["one", "two"], ["three", "one"], ["two", "three"], ["one", "two"]]
    assert report["num_inputs"] == 3


@pytest.mark.parametrize(
    ("task", "row", "sent"),
    [
        ("embedding", {"text": "a"}, pb.EmbedRequest(texts=["a"])),
        (
            "spans",
            {"question": "a?", "context": "b"},
            pb.AnswerRequest(inputs=[pb.AnswerInput(question="a?", contexts=["b"])], top_k=1),
        ),
        (
            "multiple-choice",
            {"question": "a?", "choices": ["b", "c"]},
            pb.ChooseRequest(inputs=[pb.ChooseInput(question="a?", choices=["b", "c"])]),
        ),
    ],
)
def test_inputs_of_jsonl(task: str, row: dict[str, Any], sent: Any, tmp_path: Path) -> None:
    """JSONL has the keys of the task, and the error names a line without one."""
    path = tmp_path / "inputs.jsonl"
    path.write_text(json.dumps(row) + "\n", encoding="utf-8")
    calls = make_calls(task, read_inputs(task, str(path), Format.jsonl), batch_size=1, truncate=False)
    found = type(sent).FromString(calls.bodies[0])
    found.ClearField("model")
    found.ClearField("truncate")

    assert found == sent
    path.write_text("{}\n", encoding="utf-8")
    with pytest.raises(FileError, match="line 1"):
        read_inputs(task, str(path), Format.jsonl)


def test_a_pattern_stands_for_all_its_files(tmp_path: Path) -> None:
    """A pattern gives the inputs of all its files, in the order of their names; a file without texts is refused."""
    for name, text in (("b.txt", "three\n"), ("a.txt", "one\ntwo\n"), ("c.csv", "text\nfour\n"), ("d.none", "\n \n")):
        (tmp_path / name).write_text(text, encoding="utf-8")

    assert read_inputs("embedding", f"{tmp_path}/?.[tc]*") == ["one", "two", "three", "four"]
    with pytest.raises(FileError, match="has no inputs; give a file with one text per line"):
        read_inputs("embedding", f"{tmp_path}/d.none")


@pytest.mark.parametrize(("num_texts", "batch_size"), [(16, 64), (100, 3), (100, 64), (7, 16), (65, 64), (1, 8)])
def test_texts_are_sent_equally_often(num_texts: int, batch_size: int) -> None:
    """Every call is full, and each text is sent equally often, except for those that complete the last call."""
    calls = make_calls("embedding", [str(number) for number in range(num_texts)], batch_size)
    parts = [list(pb.EmbedRequest.FromString(body).texts) for body in calls.bodies]
    texts = [text for part in parts for text in part]
    times = Counter(texts)
    least = min(times.values())

    assert {len(part) for part in parts} == {batch_size}
    assert texts == [str(number % num_texts) for number in range(len(texts))]
    assert max(times.values()) <= least + 1
    assert len(texts) - least * num_texts < batch_size


def test_calls_are_full_of_long_texts_too() -> None:
    """Calls are full also with texts so long that the client would split them."""
    texts = [letter * 150_000 for letter in "abcd"]
    (body,) = make_calls("embedding", texts, 4, "m", "1").bodies

    expected = pb.EmbedRequest(model=pb.ModelRef(name="m", version="1"), truncate=True, texts=texts)
    assert pb.EmbedRequest.FromString(body) == expected


def test_masks_are_put_where_there_are_none(tmp_path: Path) -> None:
    """A text for FillMask gets a mask in its middle, unless it has one of any usual tokenizer."""
    texts = ["an <mask> owl", "an [MASK] owl"]
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(texts), encoding="utf-8")

    assert read_inputs("masked-lm", None)[1] == "how do I [MASK] my password"
    assert read_inputs("masked-lm", str(path)) == texts
