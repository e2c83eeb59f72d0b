"""The command `bertline`: ask a Bertline server from a shell, about a text or a file of them.

bertline models
bertline classify "A delightful film."
bertline embed --input texts.txt --output vectors.jsonl
bertline answer --input questions.jsonl | head -3
"""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterable
from dataclasses import asdict
from enum import StrEnum
from functools import partial
from importlib.metadata import version
from typing import Annotated, Any, NoReturn

try:
    import rich.console
    import rich.table
    import typer
except ModuleNotFoundError as missing:
    raise SystemExit(f"bertline: the command needs `{missing.name}`: pip install 'bertline[cli]'") from None

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # read when grpc is imported; errors are told in one line of our own

from bertline._options import JobOptions, Target, Timeout, TopK, asks, connect, set_access
from bertline.errors import BertlineError
from bertline.jobs.operations import OPERATIONS
from bertline.jobs.run import standard_output
from bertline.jobs.sinks import json_line
from bertline.jobs.storage import FileError
from bertline.results import Model

_UsageError: Any = typer.BadParameter.__base__  # click's or typer's own, as the version of typer has it

app = typer.Typer(
    help="Ask a Bertline server. Results are JSON, a line for each input. The options below stand before the command, "
    "all others after it: bertline models --target HOST:PORT",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


class PoolingName(StrEnum):
    """`Pooling` as typer wants it."""

    cls = "cls"
    mean = "mean"


class Dtype(StrEnum):
    """Numbers of vectors in Parquet and .npy."""

    float32 = "float32"
    float16 = "float16"


Texts = Annotated[list[str] | None, typer.Argument(help="Texts; or give files with --input.", show_default=False)]

Token = Annotated[
    str | None, typer.Option(envvar="BERTLINE_TOKEN", help="Of a server that asks for one; better in the environment.")
]
PemPath = partial(typer.Option, metavar="FILE")
TlsCa = Annotated[str | None, PemPath(envvar="BERTLINE_TLS_CA", help="Speak TLS; PEM of whom to trust for it.")]
TlsCert = Annotated[str | None, PemPath(help="Your certificate, of a server that asks for one (mutual TLS).")]
TlsKey = Annotated[str | None, PemPath(help="Its private key.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"bertline {version('bertline')}")
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print it and exit.")]


@app.callback()
def access(
    token: Token = None,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    version: Version = False,
) -> None:
    """What all commands need to know."""
    set_access(token, tls_ca, tls_cert, tls_key)


@app.command()
@asks
def embed(
    job: JobOptions,
    texts: Texts = None,
    pooling: Annotated[PoolingName | None, typer.Option(help="Default: what the model was made for.")] = None,
    normalize: Annotated[bool | None, typer.Option(help="Vectors of length 1. Default: as the model was made.")] = None,
    dimensions: Annotated[int | None, typer.Option(min=1, help="Keep so many numbers, of models trained so.")] = None,
    windows: Annotated[bool, typer.Option(help="Read long texts in windows, and average.")] = False,
    dtype: Annotated[Dtype, typer.Option(help="Of the vectors in Parquet and .npy.")] = Dtype.float32,
) -> None:
    """Vectors of texts. A row needs `text`."""
    options = {
        "pooling": pooling and pooling.value,
        "normalize": normalize,
        "dimensions": dimensions,
        "windows": windows,
    }
    job.run(OPERATIONS["embed"], _texts(texts), options, dtype=dtype.value)


@app.command()
@asks
def classify(
    job: JobOptions,
    texts: Texts = None,
    top_k: Annotated[int | None, typer.Option(min=1, help="Most labels for each. Default: all.")] = None,
) -> None:
    """Labels of texts or pairs of texts. A row needs `text`, and `text_pair` for a pair."""
    job.run(OPERATIONS["classify"], _texts(texts), {"top_k": top_k})


@app.command()
@asks
def regress(job: JobOptions, texts: Texts = None) -> None:
    """A number for each text or pair of texts. A row needs `text`, and `text_pair` for a pair."""
    job.run(OPERATIONS["regress"], _texts(texts), {})


@app.command()
@asks
def answer(
    job: JobOptions,
    question: Annotated[str | None, typer.Argument(help="A question; or give files with --input.")] = None,
    context: Annotated[str | None, typer.Argument(help="The text that answers it.")] = None,
    top_k: TopK = 1,
) -> None:
    """Answers to questions, out of a context. A row needs `question` and `context`: a text, or a list of texts."""
    if (question is None) != (context is None):
        raise typer.BadParameter("a question needs its context: bertline answer QUESTION CONTEXT")
    given = [{"question": question, "context": context}] if question is not None else None
    job.run(OPERATIONS["answer"], given, {"top_k": top_k})


@app.command()
@asks
def tag(
    job: JobOptions,
    texts: Texts = None,
    return_words: Annotated[bool, typer.Option("--words", help="Every word with its tag, too.")] = False,
) -> None:
    """Entities of texts. A row needs `text`: a text, or the list of its words."""
    job.run(OPERATIONS["tag"], _texts(texts), {"return_words": return_words})


@app.command()
@asks
def choose(
    job: JobOptions,
    question: Annotated[str | None, typer.Argument(help="A question; or give files with --input.")] = None,
    choices: Annotated[list[str] | None, typer.Argument(help="What may answer it.", show_default=False)] = None,
) -> None:
    """Which of several choices fits a question. A row needs `question` and `choices`, and may have a `context`."""
    if question is not None and not choices:
        raise typer.BadParameter("a question needs its choices: bertline choose QUESTION CHOICE CHOICE")
    job.run(OPERATIONS["choose"], [{"question": question, "choices": choices}] if question is not None else None, {})


@app.command()
@asks
def fill_mask(job: JobOptions, texts: Texts = None, top_k: TopK = 5) -> None:
    """The likeliest tokens at each [MASK]. A row needs `text`."""
    job.run(OPERATIONS["fill_mask"], _texts(texts), {"top_k": top_k})


@app.command()
def models(
    target: Target = "127.0.0.1:50051",
    timeout: Timeout = 30.0,
    as_json: Annotated[bool, typer.Option("--json", help="JSONL with the manifests, as when piped.")] = False,
) -> None:
    """What the server has, and why it cannot load what it has not; --json says all of it."""
    with connect(target, timeout) as client:
        found = client.models()
    if sys.stdout.isatty() and not as_json:
        console = rich.console.Console(markup=False, emoji=False)
        console.print(_table(found, console.width))
        for model in found:
            if model.error:
                console.print(f"{model.name}/{model.version} is {model.state}: {model.error}", highlight=False)
        return
    with standard_output() as stream:
        for model in found:
            stream.write(json_line(_model_row(model)))


def _model_row(model: Model) -> dict[str, Any]:
    values = asdict(model)
    del values["manifest_json"]
    return values | {"manifest": model.manifest}


def _texts(texts: list[str] | None) -> list[dict[str, Any]] | None:
    return [{"text": text} for text in texts] if texts else None


def _table(found: Iterable[Model], width: int) -> rich.table.Table:
    """A line each; labels get what width is left."""
    table = rich.table.Table()
    for title in ("name", "version", "state", "task", "precision", "tokens", "dim", "labels"):
        table.add_column(title, no_wrap=True)
    for model in found:
        names = (model.name, model.version, model.state, model.task, model.precision)
        labels = textwrap.shorten(", ".join(model.labels), max(5, width - 85), placeholder="...")
        table.add_row(*names, str(model.max_seq_length or ""), str(model.dim or ""), labels)
    return table


def main() -> None:
    """Run the command: exit code 0, 1 with one line on stderr, or 2 when it was called wrongly."""
    try:
        sys.exit(app(standalone_mode=False))
    except _UsageError as error:
        command = error.ctx.command_path if error.ctx else "bertline"
        _fail(f"{error.format_message().rstrip('.')}{_place(error)}; see `{command} --help`", 2)
    except (BertlineError, FileError) as error:
        _fail(str(error), 1)
    except typer.Abort:  # Ctrl-C, with older versions of typer
        sys.exit(130)
    except OSError as error:
        _fail(f"{error.strerror}: `{error.filename or 'standard output'}`", 1)


def _place(error: Any) -> str:
    """Where an option that is not known here stands."""
    option, context = getattr(error, "option_name", None), error.ctx
    if not option or not context:
        return ""
    if not context.parent:
        return ", options of a command stand after its name"
    names = [name for known in context.parent.command.params for name in known.opts]
    return f", it stands before `{context.info_name}`" if option in names else ""


def _fail(message: str, code: int) -> NoReturn:
    print(f"bertline: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
