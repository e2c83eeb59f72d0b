"""Command `bertline`: send texts or files of them to a Bertline server from a shell.

bertline models
bertline classify "A delightful film."
bertline embed --input texts.txt --output vectors.parquet
bertline bench --concurrency 1,4,16
bertline serve models
"""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterable
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from typing import Annotated, Any, NoReturn

try:
    import fsspec  # noqa: F401
    import rich.box
    import rich.console
    import rich.table
    import typer
except ModuleNotFoundError as missing:
    _package = str(missing.name).partition(".")[0]
    raise SystemExit(
        f"bertline: the command needs `{_package}`; install the extra `cli` of the wheel or the checkout, "
        "such as pip install './clients[cli]'"
    ) from None

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # gRPC reads it on import; the command prints errors itself

from bertline.client import Client
from bertline.commands import rows
from bertline.commands.bench import bench
from bertline.commands.credentials import connect, set_credentials
from bertline.commands.filled_options import Command, Group
from bertline.commands.options import TARGET, JobCommand, Target, Timeout, job_command, model_option
from bertline.errors import BertlineError
from bertline.jobs.engine import NO_SERVER, SERVER
from bertline.jobs.ray_pool import RayFailed
from bertline.jobs.storage import FileError
from bertline.jobs.write import json_line, standard_output
from bertline.results import Model

_UsageError: Any = typer.BadParameter.__base__  # click's or typer's own, depending on the version of typer

app = typer.Typer(
    cls=Group,
    help="Send texts to a Bertline server. Results are JSON, one line for each input. The options below come before "
    "the command, all others after it: bertline models --target HOST:PORT",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


Token = Annotated[
    str | None,
    typer.Option(envvar="BERTLINE_TOKEN", help="Token, if the server asks for one. Prefer the environment variable."),
]
PemPath = partial(typer.Option, metavar="FILE")
TlsCa = Annotated[
    str | None, PemPath(envvar="BERTLINE_TLS_CA", help="Use TLS; PEM file of the trusted certificate authority.")
]
TlsCert = Annotated[str | None, PemPath(help="Client certificate, if the server asks for one (mutual TLS).")]
TlsKey = Annotated[str | None, PemPath(help="Private key of the client certificate.")]


def _print(line: str) -> None:
    with standard_output() as stream:
        stream.write(f"{line}\n".encode())


def _print_version(wanted: bool) -> None:
    if wanted:
        _print(f"bertline {version('bertline')}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
]


@app.callback()
def set_options(
    token: Token = None,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    version: Version = False,
) -> None:
    """Set the options that stand before the command."""
    set_credentials(token, tls_ca, tls_cert, tls_key)


for command in (
    rows.embed,
    rows.embed_sparse,
    rows.embed_tokens,
    rows.classify,
    rows.regress,
    rows.answer,
    rows.rerank,
    rows.tag,
    rows.choose,
    rows.fill_mask,
    rows.zero_shot,
):
    app.command(cls=JobCommand)(job_command(command))
app.command(cls=Command)(bench)


@app.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True}, add_help_option=False)
def serve(context: typer.Context) -> NoReturn:
    """Serve a directory of models.

    Usage: bertline serve MODELS-DIR [flags of the server, which --help lists]. It runs `bertline-server`, a separate
    package. With that package's extra `export`, MODELS-DIR can be a repository of the Hugging Face hub, org/name.
    """
    if not find_spec(SERVER):
        raise FileError(f"{NO_SERVER}, or use `make serve` in a checkout")
    os.execv(sys.executable, [sys.executable, "-P", "-m", SERVER, *context.args])


@app.command(cls=Command)
def models(
    target: Target = TARGET,
    timeout: Timeout = 30.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSONL with the manifests.")] = False,
) -> None:
    """List models with state and load errors; --json adds manifests."""
    with connect(target, timeout) as client:
        found = client.models()
    if sys.stdout and sys.stdout.isatty() and not as_json:
        _print_table(found)
        return
    with standard_output() as stream:
        for model in found:
            stream.write(json_line(_model_row(model)) if as_json else f"{_model_line(model)}\n".encode())


@app.command(cls=Command)
def health(
    target: Target = TARGET,
    model: Annotated[str, model_option("the server as a whole")] = "",
    timeout: Timeout = 5.0,
) -> None:
    """Check a server or model; exit code 1 if it is not ready."""
    name, _, version = model.partition("/")
    if version and not name:
        raise typer.BadParameter(f"a version needs the name of its model, NAME/{version}: `{model}`")
    with connect(target, timeout) as client:
        is_serving = client.health(name, version)
        _print("serving" if is_serving else f"not serving{_reason(client, name, version)}")
    raise typer.Exit(not is_serving)


def _reason(client: Client, name: str, version: str) -> str:
    """Return why a model does not answer, if the server reports it."""
    if not name:
        return ""
    try:
        client.model(name, version)
    except BertlineError as error:
        return f": {error}"
    return ""


def _model_row(model: Model) -> dict[str, Any]:
    values = asdict(model)
    del values["manifest_json"]
    return values | {"manifest": model.manifest}


def _model_line(model: Model) -> str:
    """Return name, version, task, precision, state, and dimension or labels or load error, separated by tabs."""
    labels = textwrap.shorten(", ".join(model.labels), 80, placeholder="...")
    details = model.error or labels or str(model.dim or "")
    return "\t".join((model.name, model.version, model.task, model.precision, model.state, " ".join(details.split())))


def _print_table(found: Iterable[Model]) -> None:
    """Print a table that is never cut: the terminal wraps lines that are too wide."""
    console = rich.console.Console(markup=False, emoji=False)
    table = _table(found, console.width)
    console.width = 1000
    console.print(table)
    for model in found:
        if model.error:
            message = f"{model.name}/{model.version} is {model.state}: {model.error}"
            console.print(message, highlight=False, soft_wrap=True)


def _table(found: Iterable[Model], width: int) -> rich.table.Table:
    """Return one row a model; labels get the width that the other columns leave."""
    table = rich.table.Table(box=rich.box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for title in ("model", "state", "task", "precision", "tokens", "dim"):
        table.add_column(title, no_wrap=True)
    table.add_column("labels", max_width=max(16, width - 64), overflow="fold")
    for model in found:
        names = (f"{model.name}/{model.version}", model.state, model.task, model.precision)
        labels = textwrap.shorten(", ".join(model.labels), max(60, width - 80), placeholder="...")
        table.add_row(*names, str(model.max_seq_length or ""), str(model.dim or ""), labels)
    return table


def main() -> None:
    """Run the command. An error is one line on stderr and exit code 1; wrong usage is exit code 2."""
    _open_closed_streams()
    try:
        sys.exit(app(standalone_mode=False))
    except _UsageError as error:
        command = error.ctx.command_path if error.ctx else "bertline"
        message = error.format_message().replace("Value error, ", "").rstrip(".")  # pydantic's prefix, in newer typer
        _fail(f"{message}{_position_hint(error)}; see `{command} --help`", 2)
    except (BertlineError, FileError, RayFailed) as error:
        _fail(str(error), 1)
    except typer.Abort:  # Ctrl-C, with older versions of typer
        sys.exit(130)
    except OSError as error:
        place = f": `{error.filename}`" if error.filename else ""
        _fail(f"{error.strerror or error}{place}", 1)


def _open_closed_streams() -> None:
    """Open /dev/null in place of closed standard streams: else the next opened file gets their number and output."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def _position_hint(error: Any) -> str:
    """Return a hint about the position of an option that stands on the wrong side of the command."""
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
