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
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, NoReturn

try:
    import rich.console
    import rich.table
    import typer
except ModuleNotFoundError as missing:
    raise SystemExit(f"bertline: the command needs `{missing.name}`: pip install 'bertline[cli]'") from None

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # read when grpc is imported; errors are told in one line of our own

import grpc

from bertline._files import FileError, open_output
from bertline._process import Files, Format
from bertline._rows import (
    answer_row,
    classification_row,
    embedding_row,
    fill_mask_row,
    model_row,
    question_input,
    text_input,
    text_or_pair_input,
)
from bertline.client import Client
from bertline.errors import BertlineError
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


Texts = Annotated[list[str] | None, typer.Argument(help="Texts; or give a file with --input.", show_default=False)]
InputPath = Annotated[str | None, typer.Option("--input", "-i", help="Read an input a line; `-` is standard input.")]
FormatOption = Annotated[
    Format | None, typer.Option("--format", help="Of the input: a text a line, or JSONL. Default: JSONL if *.jsonl.")
]
SkipEmpty = Annotated[bool, typer.Option("--skip-empty", help="Leave empty lines out instead of refusing them.")]
OutputPath = Annotated[str | None, typer.Option("--output", "-o", help="Write to a file, which is whole or absent.")]
Force = Annotated[bool, typer.Option("--force", help="Replace the output file if it exists.")]
Target = Annotated[str, typer.Option("--target", "-t", envvar="BERTLINE_TARGET", help="The server, host:port.")]
ModelName = Annotated[
    str, typer.Option("--model", "-m", help="NAME or NAME/VERSION. Default: the only one loaded.", show_default=False)
]
Timeout = Annotated[float, typer.Option("--timeout", help="Seconds that each request may take.")]
Truncate = Annotated[bool, typer.Option("--truncate", help="Cut what is too long instead of refusing it.")]

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

_TARGET, _TIMEOUT = "127.0.0.1:50051", 30.0


@dataclass(frozen=True)
class _Access:
    """What a server may ask for."""

    token: str | None = None
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None

    def credentials(self) -> grpc.ChannelCredentials | None:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise typer.BadParameter("--tls-cert and --tls-key need each other")
        if self.tls_cert and not self.tls_ca:
            raise typer.BadParameter("--tls-cert needs --tls-ca")
        if not self.tls_ca:
            return None
        return grpc.ssl_channel_credentials(*map(_read, (self.tls_ca, self.tls_key, self.tls_cert)))


_access = _Access()


@app.callback()
def access(
    token: Token = None,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    version: Version = False,
) -> None:
    """What all commands need to know."""
    global _access
    _access = _Access(token, tls_ca, tls_cert, tls_key)


@app.command()
def embed(
    texts: Texts = None,
    input_path: InputPath = None,
    input_format: FormatOption = None,
    skip_empty: SkipEmpty = False,
    output_path: OutputPath = None,
    force: Force = False,
    target: Target = _TARGET,
    model: ModelName = "",
    timeout: Timeout = _TIMEOUT,
    truncate: Truncate = False,
    pooling: Annotated[PoolingName | None, typer.Option(help="Default: what the model was made for.")] = None,
    normalize: Annotated[bool | None, typer.Option(help="Vectors of length 1. Default: as the model was made.")] = None,
) -> None:
    """Vectors of texts. A line of JSONL needs `text`."""
    files = Files(input_path, input_format, skip_empty, output_path, force)
    with _client(target, timeout) as client:
        options = {**_model(model), "pooling": pooling, "normalize": normalize, "truncate": truncate}
        files.process(texts, text_input, partial(client.embed, **options), embedding_row)


@app.command()
def classify(
    texts: Texts = None,
    input_path: InputPath = None,
    input_format: FormatOption = None,
    skip_empty: SkipEmpty = False,
    output_path: OutputPath = None,
    force: Force = False,
    target: Target = _TARGET,
    model: ModelName = "",
    timeout: Timeout = _TIMEOUT,
    truncate: Truncate = False,
) -> None:
    """Labels of texts or pairs of texts. A line of JSONL needs `text`, and `text_pair` for a pair."""
    files = Files(input_path, input_format, skip_empty, output_path, force)
    with _client(target, timeout) as client:
        ask = partial(client.classify, **_model(model), truncate=truncate)
        files.process(texts, text_or_pair_input, ask, classification_row)


@app.command()
def answer(
    question: Annotated[str | None, typer.Argument(help="A question; or give a file with --input.")] = None,
    context: Annotated[str | None, typer.Argument(help="The text that answers it.")] = None,
    input_path: Annotated[str | None, typer.Option("--input", "-i", help="Read JSONL; `-` is standard input.")] = None,
    skip_empty: SkipEmpty = False,
    output_path: OutputPath = None,
    force: Force = False,
    target: Target = _TARGET,
    model: ModelName = "",
    timeout: Timeout = _TIMEOUT,
    truncate: Truncate = False,
    top_k: Annotated[int, typer.Option(min=1, help="Most spans for each question.")] = 1,
) -> None:
    """Answers to questions, out of a context. A line of JSONL needs `question` and `context`."""
    if (question is None) != (context is None):
        raise typer.BadParameter("a question needs its context: bertline answer QUESTION CONTEXT")
    files = Files(input_path, Format.jsonl, skip_empty, output_path, force)
    with _client(target, timeout) as client:
        ask = partial(client.answer, **_model(model), truncate=truncate, top_k=top_k)
        files.process([(question, context)] if question is not None else None, question_input, ask, answer_row)


@app.command()
def fill_mask(
    texts: Texts = None,
    input_path: InputPath = None,
    input_format: FormatOption = None,
    skip_empty: SkipEmpty = False,
    output_path: OutputPath = None,
    force: Force = False,
    target: Target = _TARGET,
    model: ModelName = "",
    timeout: Timeout = _TIMEOUT,
    truncate: Truncate = False,
    top_k: Annotated[int, typer.Option(min=1, help="Most tokens for each [MASK].")] = 5,
) -> None:
    """The likeliest tokens at each [MASK]. A line of JSONL needs `text`."""
    files = Files(input_path, input_format, skip_empty, output_path, force)
    with _client(target, timeout) as client:
        ask = partial(client.fill_mask, **_model(model), truncate=truncate, top_k=top_k)
        files.process(texts, text_input, ask, fill_mask_row)


@app.command()
def models(
    target: Target = _TARGET,
    timeout: Timeout = _TIMEOUT,
    as_json: Annotated[bool, typer.Option("--json", help="JSONL with the manifests, as when piped.")] = False,
) -> None:
    """What the server has, and why it cannot load what it has not; --json says all of it."""
    with _client(target, timeout) as client:
        found = client.models()
    if sys.stdout.isatty() and not as_json:
        console = rich.console.Console(markup=False, emoji=False)
        console.print(_table(found, console.width))
        for model in found:
            if model.error:
                console.print(f"{model.name}/{model.version} is {model.state}: {model.error}", highlight=False)
        return
    with open_output(None, force=False) as write:
        for model in found:
            write(model_row(model))


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


def _client(target: str, timeout: float) -> Client:
    try:
        return Client(target, timeout=timeout, credentials=_access.credentials(), token=_access.token)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _read(path: str | None) -> bytes | None:
    return Path(path).read_bytes() if path else None


def _model(name: str) -> dict[str, Any]:
    name, _, version = name.partition("/")
    return {"model": name, "version": version}


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
