from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import pytest

from bertline.commands import options
from bertline.jobs import progress
from bertline.jobs.progress import ProgressBar
from bertline.testing import FakeModel, FakeServer
from bertline.v1 import encoder_pb2 as pb
from tests.clients.command import Result, Run, command, fails, label_as, numbers, received


def test_the_process_fails_in_one_line(dead_target: str) -> None:
    """The command prints one line with the address to stderr and exits with 1."""
    result = command("embed", "some text", "--target", dead_target)

    assert (result.returncode, result.stdout) == (1, b"")
    assert result.stderr.startswith(f"bertline: no server is available at `{dead_target}`".encode())
    assert result.stderr.count(b"\n") == 1


def test_version(run: Run) -> None:
    """The command prints the distribution's version."""
    assert run("--version") == (0, f"bertline {version('bertline')}\n", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--target", "there:1", "models"], "No such option: --target, options of a command stand after its name"),
        (["models", "--tls-ca", "ca.pem"], "No such option: --tls-ca, it stands before `models`"),
        (["models", "--bogus"], "No such option: --bogus; see"),
    ],
)
def test_options_in_the_wrong_place(run: Run, arguments: list[str], message: str) -> None:
    """The error states whether a known option belongs before or after the subcommand."""
    assert fails(run(*arguments), message, 2)


def test_an_interruption_is_quiet(target: str, server: FakeServer, tmp_path: Path) -> None:
    """Ctrl-C ends the command without a traceback and leaves no file."""
    server.delay(60, method="Embed")
    arguments = [sys.executable, "-m", "bertline.cli", "embed", "text", "-t", target, "-o", str(tmp_path / "out")]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        while not received(server) and process.poll() is None:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        output = process.communicate()

    assert (process.returncode, output) == (130, (b"", b""))
    assert list(tmp_path.iterdir()) == []


def test_scores_are_written_short(run: Run, server: FakeServer) -> None:
    """A float32 score has no extra digits of its double."""
    label_as(server, {"negative": 0.85, "positive": 0.15})

    assert '"score": 0.15}' in run("classify", "text").out


def test_question_and_context_of_the_command_line(run: Run) -> None:
    """A row has the best answer, followed by all spans."""
    (row,) = run("answer", "Where is Paris?", "In Paris it is, Paris.", "--top-k", "2").rows

    assert (row["answer"], row["score"], row["has_answer"]) == ("Paris", 0.75, True)
    assert row["spans"] == [
        {"start": 3, "end": 8, "text": "Paris", "score": 0.75, "context": 0},
        {"start": 16, "end": 21, "text": "Paris", "score": 0.375, "context": 0},
    ]


def test_a_text_file_gives_a_row_for_each_line(run: Run, tmp_path: Path) -> None:
    """Each line gives a row in order, and only line feeds end lines."""
    texts = ["first", *(f"text {number}" for number in range(2500)), "line\u2028separator\x85", "no line feed"]
    (tmp_path / "texts.txt").write_bytes(("\ufeff" + "\r\n".join(texts)).encode())
    result = run("embed", "--input", str(tmp_path / "texts.txt"))

    assert [row["vector"] for row in result.rows] == [numbers(text) for text in texts]


def test_a_dash_is_standard_output(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`-o -` writes to standard output."""
    monkeypatch.chdir(tmp_path)

    assert len(run("embed", "-i", "-", "-o", "-", stdin=b"one\ntwo\n").rows) == 2
    assert not list(tmp_path.iterdir())


def test_jsonl_keeps_ids_and_knows_pairs(run: Run, server: FakeServer, tmp_path: Path) -> None:
    """An `id` of any type returns in its row, and pairs reach the server."""
    rows = [{"id": "a\ud800", "text": "x", "more": 1}, {"id": 7, "text": "x", "text_pair": "y"}, {"text": "z"}]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = run("classify", "-i", str(tmp_path / "in.jsonl"))

    assert [row.get("id", "none") for row in result.rows] == ["a\ud800", 7, "none"]
    assert [item.text_pair for item in received(server, "Classify")[0].inputs] == ["", "y", ""]


def test_standard_input_of_either_format(run: Run) -> None:
    """`-` reads texts, or JSONL if requested or needed by the operation."""
    questions = b'{"question": "Is it here?", "context": "here"}'
    row = {"row_number": 1, "text": "one", "vector": numbers("one")}

    assert run("embed", "-i", "-", stdin=b"one\n").rows == [row]
    assert run("embed", "-i", "-", "--format", "jsonl", stdin=b'{"text": "one"}').rows == [row]
    assert run("answer", "-i", "-", stdin=questions).rows[0]["answer"] == "here"
    assert run("embed", "-i", "-") == Result(0, "", "")


@pytest.mark.parametrize(
    ("content", "messages"),
    [
        (b"fine\n\xff\n", ["line 2: not UTF-8 (byte 0xff); convert the file"]),
        (b"\xef\xbb\xbf \nfine\n", ["line 1: the line is empty; correct it, or skip such lines with --skip-empty"]),
        (b"fine\nrefuse this\nrefuse that\n", ["line 2: text: refused", "line 3: text: refused"]),
        (b"fine\n" * 2000 + b"refuse\n", ["line 2001: text: refused"]),
    ],
)
def test_bad_lines_of_text_are_named(
    run: Run, server: FakeServer, tmp_path: Path, content: bytes, messages: list[str]
) -> None:
    """The errors name file, line and reason of bad lines, other lines have results, and the exit code is 3."""
    path = tmp_path / "texts.txt"
    path.write_bytes(content)
    for text in ("refuse this", "refuse that"):
        server.refuse(text, "refused")
    result = run("embed", "-i", str(path))

    assert result.code == 3
    assert result.err.splitlines() == [f"bertline: `{path}`, {message}" for message in messages]
    assert [row["vector"] for row in result.rows] == [numbers("fine")] * content.count(b"fine")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON (Expecting property name enclosed in double quotes at column 2)"),
        ("[1]", "not a JSON object"),
        ("9" * 5000, "a number has too many digits"),
        ('{"question": "q"}', "missing key `context`"),
        ('{"question": "q", "context": 3}', "`context` must be a string or a list of strings"),
        ('{"question": "q", "context": "\\ud800"}', "context: contains a lone surrogate"),
        ("[" * 100_000, "nested too deeply"),
        ("", "the line is empty"),
    ],
)
def test_bad_lines_of_jsonl_are_named(run: Run, tmp_path: Path, line: str, message: str) -> None:
    """The errors name file, line and key."""
    path = tmp_path / "in.jsonl"
    path.write_text('{"question": "q", "context": "c"}\n' + line + "\n")
    result = run("answer", "-i", str(path))

    assert (result.code, len(result.rows)) == (3, 1)
    assert result.err.startswith(f"bertline: `{path}`, line 2: ")
    assert result.err.count("\n") == 1
    assert message in result.err


def test_many_bad_lines_are_counted(run: Run, tmp_path: Path) -> None:
    """The command prints twenty bad lines and counts the others, and --rejects saves all."""
    path, rejects = tmp_path / "texts.txt", tmp_path / "rejects.jsonl"
    path.write_text("refuse\n" * 30)

    assert run("embed", "-i", str(path)).err.splitlines()[20:] == [
        "bertline: 10 more rows were rejected; save all of them with --rejects FILE"
    ]
    result = run("embed", "-i", str(path), "--rejects", str(rejects))
    assert result == Result(3, "", f"bertline: 30 rows were rejected; see `{rejects}` for the reasons\n")
    assert len(rejects.read_text().splitlines()) == 30


@pytest.mark.parametrize(
    ("name", "header", "rows"),
    [
        ("texts.txt", "\ufeff", ("one", "two")),
        ("rows.jsonl", "", ('{"text": "one"}', '{"text": "two"}')),
        ("one.csv", "text", ("one", "two")),
        ("rows.csv", "\ufefftext,id", ("one,1", "two,2")),
    ],
)
def test_empty_lines_can_be_skipped(run: Run, tmp_path: Path, name: str, header: str, rows: tuple[str, str]) -> None:
    """`--skip-empty` skips lines of any white space."""
    path = tmp_path / name
    path.write_text("\n".join([header, rows[0], "", "  ", "\u00a0\u3000", rows[1], ""]), encoding="utf-8")
    result = run("embed", "-i", str(path), "--skip-empty")

    assert (result.code, result.err) == (0, "")
    assert [row["vector"] for row in result.rows] == [numbers("one"), numbers("two")]


def test_output_files_are_whole_or_absent(run: Run, dead_target: str, tmp_path: Path) -> None:
    """A failed run leaves no output file, and a successful one leaves only this file."""
    output = tmp_path / "out" / "vectors.jsonl"
    output.parent.mkdir()
    failed = run("embed", "one", "-o", str(output), "-t", dead_target, "--patience", "0")

    assert fails(failed, "no server is available")
    assert list(output.parent.iterdir()) == []
    assert run("embed", "one", "-o", str(output)) == Result(0, "", "")
    assert json.loads(output.read_text()) == {"text": "one", "vector": numbers("one")}
    assert list(output.parent.iterdir()) == [output]


def test_output_files_are_replaced_only_by_force(run: Run, server: FakeServer, tmp_path: Path) -> None:
    """An existing output file is replaced only with --force, and refused before any call."""
    output = tmp_path / "vectors.jsonl"
    output.write_text("precious")
    (tmp_path / "link").symlink_to(output)

    assert fails(run("embed", "one", "-o", str(output)), f"already exists: `{output}`")
    assert (output.read_text(), received(server)) == ("precious", [])
    assert run("embed", "one", "-m", "other", "-o", str(output), "--force").code == 1
    assert output.read_text() == "precious"
    assert run("embed", "one", "-o", str(tmp_path / "link"), "--force").code == 0
    assert json.loads(output.read_text()) == {"text": "one", "vector": numbers("one")}
    assert (tmp_path / "link").is_symlink()


def test_files_that_cannot_be_used_are_named(run: Run, tmp_path: Path) -> None:
    """The errors name missing files, folders and devices."""
    missing = tmp_path / "missing" / "file"

    assert fails(run("embed", "-i", str(missing)), f"cannot read `{missing}`: No such file or directory")
    assert fails(run("embed", "-i", str(tmp_path)), f"no file matches `{tmp_path}`")
    assert fails(run("embed", "one", "-o", str(missing)), f"cannot write `{missing}`: No such file or directory")
    assert fails(run("embed", "one", "-o", "/dev/null", "--force"), "not a regular file: `/dev/null`")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "Missing command"),
        (("embed",), "give either texts or --input FILE"),
        (("answer", "question"), "a question needs a context"),
        (("rerank", "query"), "a query needs documents: bertline rerank QUERY DOCUMENT DOCUMENT"),
        (("zero-shot", "text"), "name the labels: bertline zero-shot --label sports --label politics TEXT"),
        (("embed", "text", "-t", "http://localhost:1"), "without `http://`"),
        (("embed", "-i", "a.csv", "b.csv"), "put a pattern in quotes"),
        (("embed", "text", "--pooling", "median"), "'--pooling': 'median' is not one of"),
        (("fill-mask", "text", "--top-k", "99999999999"), "--top-k"),
    ],
)
def test_wrong_calls_are_reported_in_one_line(run: Run, arguments: tuple[str, ...], message: str) -> None:
    """Wrong usage exits with 2 and names --help."""
    result = run(*arguments)

    assert fails(result, message, code=2)
    assert "--help`" in result.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("embed", "text", "--engine", ""),
        ("zero-shot", "text", "--label", "a", "--label", ""),
        ("bench", "--rate="),
        ("--tls-ca", "", "models"),
    ],
)
def test_empty_options_are_refused(run: Run, server: FakeServer, arguments: tuple[str, ...]) -> None:
    """An empty option is not taken as absent, and the error names it."""
    name = next(item for item in arguments[::-1] if item.startswith("--")).rstrip("=")

    assert fails(run(*arguments), f"{name} is empty; give a value, or leave the option out", code=2)
    assert not server.calls


def test_server_errors_are_reported_in_one_line(run: Run, server: FakeServer) -> None:
    """An unknown model or a status of the server is an error of one line with exit code 1."""
    assert fails(run("embed", "text", "--model", "other"), "model `other` does not exist (loaded: fake/1)")
    server.fail("RESOURCE_EXHAUSTED", "the queue\nis full", method="Embed", times=None)
    assert fails(run("embed", "text", "--patience", "0"), "is overloaded (the queue is full); try again later")


def test_model_version_and_options_reach_the_server(run: Run, server: FakeServer) -> None:
    """`--model NAME/VERSION` and options reach the server."""
    server.models.append(FakeModel(version="3"))
    run("embed", "text", "-m", "fake/3", "--pooling", "mean", "--no-normalize", "--truncate", "--prompt-name", "")

    (request,) = received(server)
    assert (request.model.name, request.model.version) == ("fake", "3")
    assert request.HasField("prompt_name")
    assert (request.pooling, request.normalize, request.HasField("normalize"), request.truncate) == (
        2,
        False,
        True,
        True,
    )


def test_health(run: Run, server: FakeServer, dead_target: str) -> None:
    """The command exits with 0 if the server or the model takes requests, and otherwise prints why not."""
    name = server.models[0].name

    assert run("health", "-t", server.target) == Result(0, "serving\n", "")
    assert run("health", "-t", server.target, "-m", name).code == 0
    result = run("health", "-t", server.target, "-m", "other")
    assert (result.code, result.err) == (1, "")
    assert result.out == "not serving: model `other` does not exist (loaded: fake/1)\n"
    assert fails(run("health", "-t", dead_target), "no server is available")
    assert fails(run("health", "-t", server.target, "-m", "/2"), "a version needs the name of its model", 2)


MODELS = [
    FakeModel(task="classification", labels=("negative", "neutral", "[positive]"), manifest={"opset": 18}),
    FakeModel(version="2", state="failed", error="`models/fake/2` holds no manifest"),
]


def test_models_are_one_short_line_each_when_piped(run: Run, server: FakeServer) -> None:
    """A piped list has a line a model with its fields separated by tabs."""
    server.models = [*MODELS, FakeModel(name="vectors")]

    assert [line.split("\t") for line in run("models").out.splitlines()] == [
        ["fake", "1", "classification", "fp32", "ready", "negative, neutral, [positive]"],
        ["fake", "2", "", "", "failed", "`models/fake/2` holds no manifest"],
        ["vectors", "1", "embedding", "fp32", "ready", "8"],
    ]


def test_models_with_manifests_are_jsonl(run: Run, server: FakeServer) -> None:
    """Rows of --json have the manifest, or the reason why it is missing."""
    server.models = MODELS
    row, broken = run("models", "--json").rows

    assert (row["name"], row["version"], row["manifest"]) == ("fake", "1", {"opset": 18})
    assert (broken["state"], broken["error"]) == ("failed", "`models/fake/2` holds no manifest")


def test_models_are_a_table_on_a_terminal(run: Run, server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal shows a table with names, states and labels, and load errors below it."""
    server.models = MODELS
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "120")

    shown = run("models").out
    assert "fake/1" in shown
    assert "negative, neutral, [positive]" in shown
    assert shown.splitlines()[-1] == "fake/2 is failed: `models/fake/2` holds no manifest"
    assert run("models", "--json").rows[0]["name"] == "fake"

    monkeypatch.setenv("COLUMNS", "80")
    lines = run("models").out.splitlines()
    assert max(len(line) for line in lines if "fake/1" in line) <= 80
    assert [line.split()[-1] for line in lines if "neutral" in line or "[positive]" in line] == [
        "neutral,",
        "[positive]",
    ]


def test_names_of_models_are_never_cut(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of models are complete on a narrow terminal."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "30")

    shown = run("models").out
    assert "embedding" in shown
    assert "…" not in shown


def test_progress_is_shown_to_a_person_only(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bar appears if stderr is a terminal and results go elsewhere."""
    path = tmp_path / "texts.txt"
    path.write_text("text\n" * 10)

    assert run("embed", "-i", str(path)).err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    result = run("embed", "-i", str(path))

    assert "100% 10 rows, " in result.err
    assert len(result.rows) == 10


def test_progress_fits_into_narrow_terminals(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A narrow terminal shows the time left instead of tokens, and the reason of a wait above the bar."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with ProgressBar() as bar:
        bar.add(12_000, 500_000, 0.5)
        bar.wait("the server is away")

    printed = capfd.readouterr().err
    assert re.search(r"50% 12,000 rows, [\d,]+ rows/s, 0:00:00 left", printed)
    assert "tokens" not in printed
    assert "bertline: waiting: the server is away" in printed


SUMMARY = r"bertline: {rows}, {rejected} rejected{more} in 0:00:\d\d \([\d,]+ rows/s, [\d,]+ tokens/s\)"


def test_progress_without_a_terminal_is_lines(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a terminal, progress is a line an interval with the fraction done, and a closing summary."""
    path = tmp_path / "texts.txt"
    path.write_text("text\n" * 300 + "refuse\n")
    monkeypatch.setattr(progress, "INTERVAL_S", 0.0)
    *lines, summary, rejected = run("embed", "-i", str(path), "-o", str(tmp_path / "out.jsonl")).err.splitlines()

    assert len(lines) > 1
    assert all(re.fullmatch(r"bertline: \d+%, \d+ rows, .* rows/s, .* tokens/s, .* left", line) for line in lines)
    assert re.fullmatch(SUMMARY.format(rows="301 rows", rejected="1", more=""), summary)
    assert "1 row was rejected" in rejected


def test_a_long_job_to_standard_output_has_a_summary(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long job prints its summary also if results go to standard output."""
    monkeypatch.setattr(options, "SUMMARY_AFTER_S", 0.0)
    result = run("embed", "-i", "-", stdin=b"text\n")

    assert re.fullmatch(SUMMARY.format(rows="1 row", rejected="0", more="") + "\n", result.err)


def test_the_summary_counts_the_whole_job(
    run: Run, server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The summary counts rows, rejected and truncated ones of all runs of the job."""
    monkeypatch.setattr("bertline.jobs.rows.CHUNK_ROWS", 256)
    server.models = [FakeModel(max_seq_length=8, manifest={"truncate": True})]
    path = tmp_path / "texts.txt"
    path.write_text(("refuse\n" + "a text of more words than eight\n" + "text\n" * 98) * 8)
    arguments = ("embed", "-i", str(path), "-o", f"{tmp_path}/out/", "--in-flight", "1")
    server.fail("INTERNAL", "broken", method="Embed", after=8, times=None)

    assert run(*arguments).code == 1
    server.reset()
    server.refuse("refuse", "refused")
    summary, truncated, rejected = run(*arguments).err.splitlines()

    earlier = re.search(r"\((\d+) in earlier runs\)", summary)
    assert earlier
    assert 0 < int(earlier[1]) < 800
    counts = {"rows": rf"800 rows \({earlier[1]} in earlier runs\)", "rejected": "8", "more": ", 8 truncated"}
    assert re.fullmatch(SUMMARY.format(**counts), summary)
    assert "8 of 800 rows were truncated" in truncated
    assert "8 rows were rejected" in rejected


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("embed", ["in.txt"]),
        ("classify", ["text", "in.txt"]),
        ("answer", ["in.txt", "context"]),
        ("choose", ["q", "in.txt", "other"]),
    ],
)
def test_a_text_that_names_a_file_gives_a_hint(
    run: Run, server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, arguments: list[str]
) -> None:
    """A text that names a file is an error that suggests -i, except after `--`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.txt").write_text("text\n")
    (tmp_path / "folder").mkdir()

    assert fails(run(command, *arguments), "`in.txt` is a file: did you mean -i in.txt?", 2)
    assert server.calls == []
    assert run(command, "--", *arguments).code == 0
    assert run("embed", "folder", "none.txt", "--", "in.txt").code == 0
    assert fails(run("embed", "in.txt", "--", "in.txt"), "did you mean -i in.txt?", 2)


@pytest.mark.parametrize("spelling", [["--columns.text", "body"], ["--columns.text=body"], ["--column", "text=body"]])
def test_columns_are_spelt_in_two_ways(run: Run, spelling: list[str]) -> None:
    """The command accepts training's spelling of column flags, too."""
    line = b'{"body": "one"}\n'

    assert run("embed", "-i", "-", "--format", "jsonl", *spelling, stdin=line).rows[0]["vector"] == numbers("one")


def test_columns_that_no_operation_has(run: Run) -> None:
    """The error names the known columns for either spelling, and a hyphen stands for an underscore."""
    message = "--column is NAME=COLUMN, with NAME one of text, text_pair, each once: `body=x`"
    pair = b'{"text": "one", "other": "two"}\n'

    assert fails(run("classify", "-i", "-", "--columns.body", "x"), message, 2)
    assert fails(run("classify", "-i", "-", "--columns.text"), "each once: `text=`", 2)
    assert run("classify", "-i", "-", "--format", "jsonl", "--columns.text-pair", "other", stdin=pair).code == 0


def test_one_text_is_one_call(run: Run, server: FakeServer) -> None:
    """One text takes one call, without a list of models."""
    run("classify", "a text")

    assert len(server.calls) == 1


def test_more_texts_than_fit_in_a_request_use_one_model(run: Run, server: FakeServer) -> None:
    """Several requests use one version, which is chosen before the first and checked after the last."""
    run("embed", "one", "two", "three", "--batch-size", "2")

    assert [call.method for call in server.calls] == ["ListModels", "Embed", "Embed", "GetModel"]


def test_one_text_waits_for_a_model_that_is_being_loaded(run: Run, server: FakeServer) -> None:
    """One text waits for a model that is loading."""

    def load(request: pb.GetModelRequest) -> pb.ModelInfo:
        server.models = [FakeModel()]
        return server.models[0].info

    server.models = [FakeModel(state="loading")]
    server.reply("GetModel", load)

    assert run("embed", "text").rows[0]["vector"] == numbers("text")
